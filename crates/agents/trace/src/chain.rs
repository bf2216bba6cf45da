//! Whether an access had to wait for another one: pointers that lead to pointers.
//!
//! A walk for an address that is known early hides behind other work; one for an address that was itself just read does not.
//! Registers cannot be seen, so two signs are taken: an instruction that loads into a register that its own address is made
//! of (`decode` finds these), and a word beside one of the addresses recorded last that points to where the access goes.
//! Looking costs a system call, so only each 512th recorded access is judged.

#![allow(unsafe_code, reason = "asks the kernel for a look at the guest's memory, which may be gone")]

use std::ffi::c_void;

/// Each of so many recorded accesses is judged.
const EACH: u32 = 512;
/// Addresses that are remembered.
const REMEMBERED: usize = 4;
/// What is looked at around a remembered address: two lines.
const LOOK_BYTES: usize = 128;
/// A pointer leads to the object, and the access may be to a field of it.
const OBJECT_BYTES: u64 = 256;

/// The addresses recorded last, those on the stack left out: what a compiler spills there is no data structure.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Chain {
    before: [u64; REMEMBERED],
    count: u32,
}

impl Chain {
    pub(crate) const NEW: Self = Self { before: [0; REMEMBERED], count: 0 };

    /// Notes a recorded access; whether it depends, if it is this one's turn. `base` is where the guest's address 0 lies.
    pub(crate) fn note(&mut self, address: u64, on_stack: bool, base: u64) -> Option<bool> {
        if on_stack {
            return None;
        }
        let before = self.before;
        self.before = [address, before[0], before[1], before[2]];
        self.count = self.count.wrapping_add(1);
        self.count
            .is_multiple_of(EACH)
            .then(|| before.iter().any(|&before| before != 0 && leads_to(before.wrapping_add(base), address)))
    }
}

/// Whether a word around `place` points to `address`.
fn leads_to(place: u64, address: u64) -> bool {
    let mut words = [0_u64; LOOK_BYTES / 8];
    let start = place & !(LOOK_BYTES as u64 - 1);
    let (Ok(start), local) = (usize::try_from(start), words.as_mut_ptr().cast::<c_void>()) else { return false };
    let here = libc::iovec { iov_base: local, iov_len: LOOK_BYTES };
    let there = libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: LOOK_BYTES };
    // SAFETY: the kernel writes `words`, which are that long, and answers with an error where nothing is mapped.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    read == LOOK_BYTES.cast_signed() && words.iter().any(|&word| address.wrapping_sub(word) < OBJECT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_depends_and_an_array_does_not() {
        let nodes: Vec<Box<[u64; 32]>> = (0..20_000).map(|_| Box::new([7; 32])).collect();
        let place = |at: usize| nodes[at].as_ptr().addr() as u64;
        let mut linked = nodes.clone();
        let places: Vec<u64> = linked.iter().map(|node| node.as_ptr().addr() as u64).collect();
        for (node, next) in linked.iter_mut().zip(&places[1..]) {
            node[3] = *next;
        }
        let judge = |places: &dyn Fn(usize) -> u64| {
            let mut chain = Chain::NEW;
            let judged: Vec<bool> = (0..20_000).filter_map(|at| chain.note(places(at) + 16, false, 0)).collect();
            assert_eq!(judged.len(), 20_000 / EACH as usize);
            judged.iter().filter(|depends| **depends).count()
        };
        assert_eq!(judge(&|at| places[at]), 20_000 / EACH as usize);
        assert_eq!(judge(&place), 0);
    }

    #[test]
    fn memory_that_is_gone_harms_nobody() {
        let mut chain = Chain::NEW;
        assert!((1..5000).filter_map(|at| chain.note(at << 12, false, 0)).all(|depends| !depends));
    }
}
