//! Moving and growing what the program sees as one mapping and the kernel as several.
//!
//! Memory that was on hugetlb pages consists of pieces: each hugetlb page may be a mapping of its own, and so may each
//! batch that left them. `mremap` takes one mapping at a time; no piece crosses a granule's end.

#![allow(unsafe_code, reason = "moves the program's own memory to addresses that were claimed for it")]

use crate::raw;
use crate::state::address_of;
use crate::table::GRANULE;

/// Moves `bytes` from `old` to `target`, piece by piece, all or none; the last piece grows by `more` bytes on the way.
/// With `keep`, fresh memory stays where each piece was.
pub(crate) fn move_all(old: usize, bytes: usize, target: usize, more: usize, keep: bool) -> bool {
    let end = old + bytes;
    let mut at = old;
    while at < end {
        let piece = piece_bytes(at, end);
        let grown = if at + piece == end { piece + more } else { piece };
        if !move_piece(at, piece, grown, target + (at - old), keep) {
            move_back(old, at, target);
            return false;
        }
        at += piece;
    }
    true
}

/// Puts the pieces back that had moved; with `keep`, over the fresh memory that took their place.
fn move_back(old: usize, end: usize, target: usize) {
    let mut at = old;
    while at < end {
        let piece = piece_bytes(at, end);
        move_piece(target + (at - old), piece, piece, at, false);
        at += piece;
    }
}

/// From `at` to the end of its granule, or to `end`.
fn piece_bytes(at: usize, end: usize) -> usize {
    let offset = at.wrapping_sub(address_of(0)) % GRANULE;
    (GRANULE - offset).min(end - at)
}

/// The last piece of a range: its first address and its length.
fn last_piece(old: usize, bytes: usize) -> (usize, usize) {
    let last = old + bytes - 1;
    let start = last - last.wrapping_sub(address_of(0)) % GRANULE;
    let start = start.max(old);
    (start, old + bytes - start)
}

fn move_piece(from: usize, bytes: usize, new_bytes: usize, to: usize, keep: bool) -> bool {
    // MREMAP_DONTUNMAP keeps the length; what is to grow is then never asked for.
    let kept = if keep { libc::MREMAP_DONTUNMAP } else { 0 };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | kept;
    // SAFETY: moves the program's memory to addresses claimed for it, or back to where it came from.
    !raw::failed(unsafe { raw::mremap(from, bytes, new_bytes, flags, to) })
}

/// Grows a range in its place by `more` bytes, where nothing lies behind it.
pub(crate) fn extend(old: usize, bytes: usize, more: usize) -> bool {
    let (start, piece) = last_piece(old, bytes);
    // SAFETY: the program's own mapping grows into addresses that were claimed for it.
    !raw::failed(unsafe { raw::mremap(start, piece, piece + more, 0, 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_their_granules() {
        let granule = address_of(5);
        assert_eq!(piece_bytes(granule, granule + 3 * GRANULE), GRANULE);
        assert_eq!(piece_bytes(granule + 4096, granule + 3 * GRANULE), GRANULE - 4096);
        assert_eq!(piece_bytes(granule + GRANULE, granule + GRANULE + 8192), 8192);
    }

    #[test]
    fn the_last_piece_is_where_the_pieces_end() {
        for (first, bytes) in
            [(0, 4096), (4096, 8192), (0, GRANULE), (4096, GRANULE), (8192, 3 * GRANULE - 4096), (0, 2 * GRANULE)]
        {
            let old = address_of(3) + first;
            let mut at = old;
            let mut last = (at, 0);
            while at < old + bytes {
                last = (at, piece_bytes(at, old + bytes));
                at += last.1;
            }
            assert_eq!(last_piece(old, bytes), last, "{first:#x} + {bytes:#x}");
        }
    }
}
