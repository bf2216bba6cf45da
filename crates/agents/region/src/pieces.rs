//! Moving what the program sees as one mapping and the kernel as several.
//!
//! Memory that was on hugetlb pages consists of pieces: each hugetlb page may be a mapping of its own, and so may each
//! batch that left them. `mremap` moves one mapping at a time; no piece crosses a granule's end.

#![allow(unsafe_code, reason = "moves the program's own memory to addresses that were claimed for it")]

use crate::place::READ_WRITE;
use crate::raw;
use crate::state::address_of;
use crate::table::GRANULE;

/// Moves `bytes` from `old` to `target`, piece by piece; all or none.
pub(crate) fn move_all(old: usize, bytes: usize, target: usize) -> bool {
    let mut at = old;
    while at < old + bytes {
        let piece = piece_bytes(at, old + bytes);
        if !move_piece(at, piece, target + (at - old)) {
            move_back(old, at, target);
            return false;
        }
        at += piece;
    }
    true
}

fn move_back(old: usize, end: usize, target: usize) {
    let mut at = old;
    while at < end {
        let piece = piece_bytes(at, end);
        move_piece(target + (at - old), piece, at);
        at += piece;
    }
}

/// From `at` to the end of its granule, or to `end`.
fn piece_bytes(at: usize, end: usize) -> usize {
    let offset = at.wrapping_sub(address_of(0)) % GRANULE;
    (GRANULE - offset).min(end - at)
}

fn move_piece(from: usize, bytes: usize, to: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: moves the program's memory to addresses claimed for it, or back to where it came from.
    !raw::failed(unsafe { raw::mremap(from, bytes, bytes, flags, to) })
}

/// Maps fresh memory behind what was moved, in place of slack of ours.
pub(crate) fn extend(address: usize, bytes: usize) -> bool {
    // SAFETY: claimed addresses that hold nothing but slack.
    bytes == 0 || !raw::failed(unsafe { raw::map_anonymous(address, bytes, READ_WRITE, libc::MAP_FIXED) })
}
