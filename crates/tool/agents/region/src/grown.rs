//! A mapping that grows in steps fills its chunks of 2 MiB with small pages: when a chunk is first touched, the mapping does
//! not yet cover all of it, and the kernel gives a huge page only to what does. The growth that completes a chunk puts it on
//! one.
//!
//! ```text
//! chunks    |           |           |           |
//! before    [ huge      | small ]                    the mapping ended here
//! after     [ huge      | huge      | untouched ]    the second chunk is complete, the third gets a huge page when touched
//! ```
//!
//! One growth completes at most one chunk that was begun. The kernel copies it (`MADV_COLLAPSE`, Linux 6.1), and refuses
//! where the program asked for small pages, where pages are pinned, where no huge page is free: then all stays as it is.
//! No chunk that is untouched is filled, and none that the mapping does not cover. A mapping that shrinks and grows over
//! the same edge again and again would have the chunk copied each time. So copies are paid for by growth: at most two bytes are
//! copied for a byte grown, whatever the program does.

#![allow(unsafe_code, reason = "asks the kernel for a huge page under the program's own memory")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::PageKind;

use crate::raw;
use crate::spans::{KNOWN, OPENED};
use crate::state::{address_of, contains, granule_of, is_picked, kind};
use crate::table::GRANULE;

/// Bytes by which mappings have grown, and that have not paid for a copy yet.
static GROWN: AtomicUsize = AtomicUsize::new(0);
/// The growth that pays for one copy.
const PRICE: usize = GRANULE / 2;

/// Puts the chunk that held the last of `old_bytes` on a huge page, if growth to `new_bytes` has completed it. The mapping
/// already lies at `address`, with `new_bytes`.
pub(crate) fn complete(address: usize, old_bytes: usize, new_bytes: usize) {
    // The call does not heed what is switched off, and folios of 64 KiB are had by switching huge pages off.
    if matches!(kind(), PageKind::Small4k | PageKind::Folio64k) {
        return;
    }
    GROWN.fetch_add(new_bytes - old_bytes, SeqCst);
    if let Some(granule) = completed(address, old_bytes, new_bytes)
        && is_picked(granule)
        && pay(&GROWN)
    {
        collapse(address_of(granule));
    }
}

/// Puts the chunks at both ends of a reservation's part that was just opened on huge pages, if it has completed them.
pub(crate) fn complete_ends(address: usize, bytes: usize) {
    if matches!(kind(), PageKind::Small4k | PageKind::Folio64k) {
        return;
    }
    GROWN.fetch_add(bytes, SeqCst);
    let (first, last) = (address / GRANULE * GRANULE, (address + bytes - 1) / GRANULE * GRANULE);
    let cut = |chunk: usize| chunk < address || chunk + GRANULE > address + bytes;
    let picked = |chunk: usize| !contains(chunk) || is_picked(granule_of(chunk));
    let chunks = [Some(first), (last > first).then_some(last)];
    for chunk in chunks.into_iter().flatten().filter(|&chunk| cut(chunk) && picked(chunk)) {
        if KNOWN.covers(chunk, GRANULE, OPENED) && pay(&GROWN) {
            collapse(chunk);
        }
    }
}

fn collapse(chunk: usize) {
    // SAFETY: keeps contents; a thread that accesses the chunk meanwhile waits. A refusal leaves its pages as they are.
    unsafe { raw::madvise(chunk, GRANULE, libc::MADV_COLLAPSE) };
}

/// The granule that a mapping had a part of and now has all of.
fn completed(address: usize, old_bytes: usize, new_bytes: usize) -> Option<usize> {
    let last = address + old_bytes - 1;
    if !contains(address) || !contains(last) {
        return None;
    }
    let granule = granule_of(last);
    let (start, end) = (address_of(granule), address_of(granule + 1));
    (address <= start && last + 1 < end && end <= address + new_bytes).then_some(granule)
}

/// Takes the price of one copy, if there is so much.
fn pay(grown: &AtomicUsize) -> bool {
    grown.fetch_update(SeqCst, SeqCst, |bytes| bytes.checked_sub(PRICE)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::PAGE;

    #[test]
    fn only_a_chunk_that_was_begun_and_is_covered_now_is_completed() {
        let start = address_of(5);
        assert_eq!(completed(start, PAGE, GRANULE), Some(5));
        assert_eq!(completed(start, 2 * GRANULE + PAGE, 9 * GRANULE), Some(7), "those behind are untouched");
        assert_eq!(completed(start, GRANULE + PAGE, 2 * GRANULE - PAGE), None, "it is not all there");
        assert_eq!(completed(start, 2 * GRANULE, 3 * GRANULE), None, "it was all there");
        assert_eq!(completed(start + PAGE, PAGE, GRANULE), None, "the beginning is another's");
        assert_eq!(completed(start + PAGE, GRANULE, 2 * GRANULE - PAGE), Some(6));
        assert_eq!(completed(address_of(0).wrapping_sub(GRANULE), PAGE, GRANULE), None, "not in the region");
    }

    #[test]
    fn no_more_is_copied_than_growth_has_paid_for() {
        let grown = AtomicUsize::new(0);
        let (mut copied, mut bytes) = (0, 0);
        for step in [PAGE, GRANULE / 2, 3 * PAGE, 2 * GRANULE].into_iter().cycle().take(1000) {
            grown.fetch_add(step, SeqCst);
            bytes += step;
            copied += if pay(&grown) { GRANULE } else { 0 };
            assert!(copied <= 2 * bytes, "{copied} for {bytes}");
        }
        assert!(copied > bytes / 4, "{copied} for {bytes}");
    }
}
