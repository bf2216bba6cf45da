//! Moving and growing what the program sees as one mapping and the kernel as several.
//!
//! Memory that was on hugetlb pages consists of pieces: each hugetlb page may be a mapping of its own, and so may each
//! batch that left them, wherever it was moved since. `mremap` takes one mapping at a time and answers `EFAULT` for
//! more. Where the pieces end is found by trying: a granule first, for hugetlb pages know nothing smaller, then halves.

#![allow(unsafe_code, reason = "moves the program's own memory to addresses that were claimed for it")]

use crate::raw::{self, Raw};
use crate::state::address_of;
use crate::table::{GRANULE, PAGE};

/// Moves `bytes` from `old` to `target`, piece by piece; the last piece grows by `more` bytes on the way.
/// With `keep`, fresh memory stays where each piece was, and nothing can grow. What lies at the target is replaced.
///
/// # Errors
/// How many bytes had moved when the kernel refused the next piece. They have moved back.
pub(crate) fn move_all(old: usize, bytes: usize, target: usize, more: usize, keep: bool) -> Result<(), usize> {
    let kept = if keep { libc::MREMAP_DONTUNMAP } else { 0 };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | kept;
    let end = old + bytes;
    let mut at = old;
    while at < end {
        let to = target + (at - old);
        let moved = largest(to_granule_end(at, end), |piece| {
            let grown = if at + piece == end { piece + more } else { piece };
            // SAFETY: moves the program's memory to addresses claimed for it, or back to where it came from.
            unsafe { raw::mremap(at, piece, grown, flags, to) }
        });
        let Some(moved) = moved else {
            // What has moved goes back; with `keep`, over the fresh memory that took its place.
            if at > old {
                let _ = move_all(target, at - old, old, 0, false);
            }
            return Err(at - old);
        };
        at += moved;
    }
    Ok(())
}

/// Grows a range in its place by `more` bytes, where nothing lies behind it.
pub(crate) fn extend(old: usize, bytes: usize, more: usize) -> bool {
    let end = old + bytes;
    let start = old.max(end - 1 - offset(end - 1));
    largest(end - start, |piece| {
        // SAFETY: the program's own mapping grows into addresses that were claimed for it.
        unsafe { raw::mremap(end - piece, piece, piece + more, 0, 0) }
    })
    .is_some()
}

/// The first of `bytes`, its half, its quarter and so on, in whole pages, that `call` accepts as one mapping.
fn largest(bytes: usize, mut call: impl FnMut(usize) -> Raw) -> Option<usize> {
    let mut piece = bytes;
    loop {
        let result = call(piece);
        if !raw::failed(result) {
            return Some(piece);
        }
        if result != -(libc::EFAULT as Raw) || piece <= PAGE {
            return None;
        }
        piece = (piece / 2).next_multiple_of(PAGE);
    }
}

/// From `at` to the end of its granule, or to `end`.
fn to_granule_end(at: usize, end: usize) -> usize {
    (GRANULE - offset(at)).min(end - at)
}

/// The place within a granule, of an address that need not lie in the region.
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
    fn halves_are_tried_until_one_mapping_takes_them() {
        for mapping in 1..40 {
            let mut tried = Vec::new();
            let found = largest(37 * PAGE, |piece| {
                tried.push(piece);
                if piece <= mapping * PAGE { 0 } else { -(libc::EFAULT as Raw) }
            });
            let found = found.unwrap();
            assert!(found <= mapping * PAGE && found.is_multiple_of(PAGE), "{tried:?}");
            assert!(found == 37 * PAGE || 2 * found > (mapping - 1) * PAGE, "no smaller than need be: {tried:?}");
        }
    }

    #[test]
    fn what_is_no_matter_of_pieces_is_not_tried_again() {
        let mut calls = 0;
        let refused = largest(64 * PAGE, |_| {
            calls += 1;
            -(libc::ENOMEM as Raw)
        });
        assert_eq!((refused, calls), (None, 1));
        assert_eq!(largest(64 * PAGE, |_| -(libc::EFAULT as Raw)), None, "a hole");
    }
}
