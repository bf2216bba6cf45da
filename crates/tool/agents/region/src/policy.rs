//! Where the program wants its memory on a machine of several nodes: kept when the memory moves.
//!
//! A policy set by mbind(2) belongs to the mapping. `mremap` takes it along, a copy to fresh memory does not. What has
//! none of its own follows the thread that touches it (set_mempolicy(2), `numactl`), as everywhere. Source:
//! get_mempolicy(2). Where the kernel has no nodes, or a sandbox forbids the question, there is nothing to keep.

#![allow(unsafe_code, reason = "asks the kernel about the program's mappings, and tells it about ours")]

use core::ffi::c_int;

use crate::raw;
use crate::state::address_of;

/// The most nodes that a kernel is built for.
const NODES: usize = 1024;
/// `MPOL_F_ADDR`: the policy of the mapping at an address, not the thread's.
const OF_ADDRESS: usize = 2;

/// The policy of a mapping. No mode and no nodes: it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    mode: c_int,
    nodes: [u64; NODES / 64],
}

impl Policy {
    const NONE: Self = Self { mode: 0, nodes: [0; NODES / 64] };

    fn of(address: usize) -> Self {
        let mut policy = Self::NONE;
        let (mode, nodes) = (&raw mut policy.mode as usize, policy.nodes.as_mut_ptr() as usize);
        // SAFETY: the kernel writes one mode and as many bits as it is told there is room for, both in `policy`.
        let asked = unsafe { raw::syscall(libc::SYS_get_mempolicy, [mode, nodes, NODES, address, OF_ADDRESS, 0]) };
        if raw::failed(asked) { Self::NONE } else { policy }
    }
}

/// Gives fresh memory the policy of other memory. To be done before it is touched.
pub(crate) fn copy(from: usize, to: usize, bytes: usize) {
    let policy = Policy::of(from);
    if policy != Policy::NONE {
        let nodes = policy.nodes.as_ptr() as usize;
        // The kernel counts one bit less than it is told.
        let arguments = [to, bytes, policy.mode as usize, nodes, NODES + 1, 0];
        // SAFETY: reads the bits; says where pages come from, and changes no contents. Refused, the pages come from
        // where the thread's own policy says.
        unsafe { raw::syscall(libc::SYS_mbind, arguments) };
    }
}

/// How many granules from `first` on have one policy, `most` at most.
pub(crate) fn uniform(first: usize, most: usize) -> usize {
    let policy = Policy::of(address_of(first));
    1 + (first + 1..first + most.max(1)).take_while(|&granule| Policy::of(address_of(granule)) == policy).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::GRANULE;

    fn mapped(bytes: usize) -> usize {
        // SAFETY: no address is named, so nothing that exists is touched.
        let mapped = unsafe { raw::map_anonymous(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0) };
        assert!(!raw::failed(mapped));
        mapped.cast_unsigned()
    }

    #[test]
    fn a_policy_goes_along_and_none_stays_none() {
        const BIND: c_int = 2;
        let (from, to) = (mapped(GRANULE), mapped(GRANULE));
        copy(from, to, GRANULE);
        assert_eq!(Policy::of(to), Policy::NONE);
        let node = [1_u64];
        let arguments = [from, GRANULE, BIND as usize, node.as_ptr() as usize, 64, 0];
        // SAFETY: reads one word; this test's own mapping.
        if raw::failed(unsafe { raw::syscall(libc::SYS_mbind, arguments) }) {
            std::println!("SKIP mbind is not permitted here");
            return;
        }
        copy(from, to, GRANULE);
        let policy = Policy::of(to);
        assert_eq!((policy.mode, policy.nodes[0]), (BIND, 1));
        assert_eq!(policy, Policy::of(from));
    }
}
