//! NUMA memory policies: memory that moves keeps its policy.
//!
//! A policy set by mbind(2) belongs to the mapping. `mremap` moves it along; a copy to fresh memory
//! does not. A mapping without one follows the policy of the thread that touches it
//! (set_mempolicy(2), `numactl`). If the kernel has no nodes, or a sandbox forbids
//! get_mempolicy(2), mappings count as without a policy.

#![allow(unsafe_code, reason = "reads and sets memory policies of mappings")]

use core::ffi::c_int;

use crate::raw;
use crate::state::address_of;

/// The largest number of nodes that a kernel supports.
const NODES: usize = 1024;
/// `MPOL_F_ADDR`: read the policy of the mapping at an address, not that of the thread.
const OF_ADDRESS: usize = 2;

/// The policy of a mapping; mode and nodes are zero if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NumaPolicy {
    mode: c_int,
    nodes: [u64; NODES / 64],
}

impl NumaPolicy {
    const NONE: Self = Self { mode: 0, nodes: [0; NODES / 64] };

    fn of(address: usize) -> Self {
        let mut policy = Self::NONE;
        let (mode, nodes) = (&raw mut policy.mode as usize, policy.nodes.as_mut_ptr() as usize);
        // SAFETY: the kernel writes one mode and at most `NODES` bits, both within `policy`.
        let result = unsafe { raw::syscall(libc::SYS_get_mempolicy, [mode, nodes, NODES, address, OF_ADDRESS, 0]) };
        if raw::failed(result) { Self::NONE } else { policy }
    }
}

/// Gives fresh memory the policy of the memory at `from`. Must happen before it is touched.
pub(crate) fn copy_policy(from: usize, to: usize, bytes: usize) {
    let policy = NumaPolicy::of(from);
    if policy != NumaPolicy::NONE {
        let nodes = policy.nodes.as_ptr() as usize;
        // The kernel reads one bit less than the given number.
        let arguments = [to, bytes, policy.mode as usize, nodes, NODES + 1, 0];
        // SAFETY: the kernel reads the bits and changes no contents. If refused, the policy of the
        // thread applies.
        unsafe { raw::syscall(libc::SYS_mbind, arguments) };
    }
}

/// The number of granules from `first` on that have one policy, at most `limit`.
pub(crate) fn uniform_granules(first: usize, limit: usize) -> usize {
    let policy = NumaPolicy::of(address_of(first));
    1 + (first + 1..first + limit.max(1)).take_while(|&granule| NumaPolicy::of(address_of(granule)) == policy).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::GRANULE;

    fn mapped(bytes: usize) -> usize {
        // SAFETY: without a fixed address the kernel picks a free range, so no mapping is replaced.
        let mapped = unsafe { raw::map_anonymous(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0) };
        assert!(!raw::failed(mapped));
        mapped.cast_unsigned()
    }

    #[test]
    fn a_policy_is_copied_and_no_policy_is_not() {
        const BIND: c_int = 2;
        let (from, to) = (mapped(GRANULE), mapped(GRANULE));
        copy_policy(from, to, GRANULE);
        assert_eq!(NumaPolicy::of(to), NumaPolicy::NONE);
        let node = [1_u64];
        let arguments = [from, GRANULE, BIND as usize, node.as_ptr() as usize, 64, 0];
        // SAFETY: the kernel reads one word and changes the policy of a mapping of this test.
        if raw::failed(unsafe { raw::syscall(libc::SYS_mbind, arguments) }) {
            std::println!("SKIP mbind is not permitted here");
            return;
        }
        copy_policy(from, to, GRANULE);
        let policy = NumaPolicy::of(to);
        assert_eq!((policy.mode, policy.nodes[0]), (BIND, 1));
        assert_eq!(policy, NumaPolicy::of(from));
    }
}
