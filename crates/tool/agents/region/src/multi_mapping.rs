//! Moves and grows a range that is one mapping for the program and several in the kernel.
//!
//! Each hugetlb page may be a mapping of its own, and so may each batch of pages that was moved off
//! hugetlb, wherever it moved since. `mremap` takes one mapping at a time and fails with `EFAULT`
//! for more. The boundaries are found by trial: a granule first, since hugetlb pages are not
//! smaller, then halves.

#![allow(unsafe_code, reason = "moves the program's own memory to addresses that were claimed for it")]

use crate::raw::{self, RawResult};
use crate::state::address_of;
use crate::table::{GRANULE, PAGE};

/// Moves `bytes` from `old` to `target`, mapping by mapping; the last one grows by `more` bytes.
/// With `keep`, fresh memory stays at the old place, and nothing can grow. Mappings at the target
/// are replaced.
///
/// # Errors
/// The number of bytes moved before the kernel refused the next mapping. They have moved back.
pub(crate) fn move_mappings(old: usize, bytes: usize, target: usize, more: usize, keep: bool) -> Result<(), usize> {
    let kept = if keep { libc::MREMAP_DONTUNMAP } else { 0 };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | kept;
    let end = old + bytes;
    let mut at = old;
    while at < end {
        let to = target + (at - old);
        let moved = largest_accepted(to_granule_end(at, end), |size| {
            let new_bytes = if at + size == end { size + more } else { size };
            // SAFETY: the range is the program's, and the caller claimed the target for it (or it
            // moves back).
            unsafe { raw::mremap(at, size, new_bytes, flags, to) }
        });
        let Some(moved) = moved else {
            // The moved part goes back; with `keep`, over the fresh memory at its old place.
            if at > old {
                let _ = move_mappings(target, at - old, old, 0, false);
            }
            return Err(at - old);
        };
        at += moved;
    }
    Ok(())
}

/// Grows a range in place by `more` bytes, if nothing is mapped behind it.
pub(crate) fn grow_in_place(old: usize, bytes: usize, more: usize) -> bool {
    let end = old + bytes;
    let start = old.max(end - 1 - offset(end - 1));
    largest_accepted(end - start, |size| {
        // SAFETY: the range is the program's, and the caller claimed the addresses that it grows
        // into.
        unsafe { raw::mremap(end - size, size, size + more, 0, 0) }
    })
    .is_some()
}

/// The first size among `bytes`, its half, its quarter and so on, in whole pages, that `call`
/// accepts.
fn largest_accepted(bytes: usize, mut call: impl FnMut(usize) -> RawResult) -> Option<usize> {
    let mut size = bytes;
    loop {
        let result = call(size);
        if !raw::failed(result) {
            return Some(size);
        }
        if result != -(libc::EFAULT as RawResult) || size <= PAGE {
            return None;
        }
        size = (size / 2).next_multiple_of(PAGE);
    }
}

/// From `at` to the end of its granule, or to `end`.
fn to_granule_end(at: usize, end: usize) -> usize {
    (GRANULE - offset(at)).min(end - at)
}

/// The offset within a granule; the address may be outside the region.
fn offset(address: usize) -> usize {
    address.wrapping_sub(address_of(0)) % GRANULE
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_granule_is_tried_first() {
        let granule = address_of(5);
        assert_eq!(to_granule_end(granule, granule + 3 * GRANULE), GRANULE);
        assert_eq!(to_granule_end(granule + PAGE, granule + 3 * GRANULE), GRANULE - PAGE);
        assert_eq!(to_granule_end(granule + GRANULE, granule + GRANULE + 2 * PAGE), 2 * PAGE);
    }

    #[test]
    fn halves_are_tried_until_one_is_accepted() {
        for mapping in 1..40 {
            let mut tried = Vec::new();
            let found = largest_accepted(37 * PAGE, |size| {
                tried.push(size);
                if size <= mapping * PAGE { 0 } else { -(libc::EFAULT as RawResult) }
            });
            let found = found.unwrap();
            assert!(found <= mapping * PAGE && found.is_multiple_of(PAGE), "{tried:?}");
            assert!(found == 37 * PAGE || 2 * found > (mapping - 1) * PAGE, "not smaller than needed: {tried:?}");
        }
    }

    #[test]
    fn only_efault_makes_a_smaller_trial() {
        let mut calls = 0;
        let refused = largest_accepted(64 * PAGE, |_| {
            calls += 1;
            -(libc::ENOMEM as RawResult)
        });
        assert_eq!((refused, calls), (None, 1));
        assert_eq!(largest_accepted(64 * PAGE, |_| -(libc::EFAULT as RawResult)), None, "a hole");
    }
}
