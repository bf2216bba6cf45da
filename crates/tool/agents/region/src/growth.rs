//! Huge pages for a mapping that grows in steps.
//!
//! When a chunk of 2 MiB is first touched, a growing mapping does not cover it yet, so the kernel
//! fills it with small pages. The growth that completes a chunk collapses it into a huge page.
//!
//! ```text
//! chunks    |           |           |           |
//! before    [ huge      | small ]                    the mapping ended here
//! after     [ huge      | huge      | untouched ]    the second chunk is complete, the third gets a huge page when touched
//! ```
//!
//! One growth completes at most one partial chunk. The kernel copies it (`MADV_COLLAPSE`, Linux
//! 6.1), and refuses if the program requested small pages, if pages are pinned, or if no huge page
//! is free; then nothing changes.
//!
//! Invariants: an untouched chunk is not filled, and a chunk that the mapping does not cover is not
//! collapsed. At most two bytes are copied for each byte of growth, so that a mapping that shrinks
//! and grows over one boundary cannot cause a copy each time.

#![allow(unsafe_code, reason = "asks the kernel for a huge page under the program's own memory")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::PageKind;

use crate::raw;
use crate::spans::{KNOWN_SPANS, OPENED};
use crate::state::{address_of, contains, granule_of, is_huge_granule, kind};
use crate::table::GRANULE;

/// Bytes of growth that no copy has used up yet.
static UNUSED_GROWTH: AtomicUsize = AtomicUsize::new(0);
/// Bytes of growth that one copy uses up.
const COPY_COST: usize = GRANULE / 2;

/// Collapses the chunk with the last of `old_bytes` into a huge page, if growth to `new_bytes`
/// completed it. The mapping at `address` already has `new_bytes`.
pub(crate) fn collapse_completed(address: usize, old_bytes: usize, new_bytes: usize) {
    // MADV_COLLAPSE ignores disabled huge pages, and folios of 64 KiB require that larger ones are
    // disabled.
    if matches!(kind(), PageKind::Small4k | PageKind::Folio64k) {
        return;
    }
    UNUSED_GROWTH.fetch_add(new_bytes - old_bytes, SeqCst);
    if let Some(granule) = completed_granule(address, old_bytes, new_bytes)
        && is_huge_granule(granule)
        && use_growth(&UNUSED_GROWTH)
    {
        collapse(address_of(granule));
    }
}

/// Collapses the chunks at both ends of a just opened part of a reservation, if they are complete
/// now.
pub(crate) fn collapse_completed_ends(address: usize, bytes: usize) {
    if matches!(kind(), PageKind::Small4k | PageKind::Folio64k) {
        return;
    }
    UNUSED_GROWTH.fetch_add(bytes, SeqCst);
    let (first, last) = (address / GRANULE * GRANULE, (address + bytes - 1) / GRANULE * GRANULE);
    let is_cut = |chunk: usize| chunk < address || chunk + GRANULE > address + bytes;
    let is_wanted = |chunk: usize| !contains(chunk) || is_huge_granule(granule_of(chunk));
    let chunks = [Some(first), (last > first).then_some(last)];
    for chunk in chunks.into_iter().flatten().filter(|&chunk| is_cut(chunk) && is_wanted(chunk)) {
        if KNOWN_SPANS.covers(chunk, GRANULE, OPENED) && use_growth(&UNUSED_GROWTH) {
            collapse(chunk);
        }
    }
}

fn collapse(chunk: usize) {
    // SAFETY: the call keeps contents; a thread that accesses the chunk waits. If refused, the
    // pages stay.
    unsafe { raw::madvise(chunk, GRANULE, libc::MADV_COLLAPSE) };
}

/// The granule that a mapping covered in part before, and covers now.
fn completed_granule(address: usize, old_bytes: usize, new_bytes: usize) -> Option<usize> {
    let last = address + old_bytes - 1;
    if !contains(address) || !contains(last) {
        return None;
    }
    let granule = granule_of(last);
    let (start, end) = (address_of(granule), address_of(granule + 1));
    (address <= start && last + 1 < end && end <= address + new_bytes).then_some(granule)
}

/// Subtracts the cost of one copy, if enough growth is left.
fn use_growth(growth: &AtomicUsize) -> bool {
    growth.fetch_update(SeqCst, SeqCst, |bytes| bytes.checked_sub(COPY_COST)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::PAGE;

    #[test]
    fn a_chunk_is_completed_if_it_was_covered_in_part_before() {
        let start = address_of(5);
        assert_eq!(completed_granule(start, PAGE, GRANULE), Some(5));
        assert_eq!(completed_granule(start, 2 * GRANULE + PAGE, 9 * GRANULE), Some(7), "the later ones are untouched");
        assert_eq!(completed_granule(start, GRANULE + PAGE, 2 * GRANULE - PAGE), None, "it is not covered yet");
        assert_eq!(completed_granule(start, 2 * GRANULE, 3 * GRANULE), None, "it was covered before");
        assert_eq!(completed_granule(start + PAGE, PAGE, GRANULE), None, "its beginning is not covered");
        assert_eq!(completed_granule(start + PAGE, GRANULE, 2 * GRANULE - PAGE), Some(6));
        assert_eq!(completed_granule(address_of(0).wrapping_sub(GRANULE), PAGE, GRANULE), None, "not in the region");
    }

    #[test]
    fn at_most_two_bytes_are_copied_for_a_byte_of_growth() {
        let growth = AtomicUsize::new(0);
        let (mut copied, mut bytes) = (0, 0);
        for step in [PAGE, GRANULE / 2, 3 * PAGE, 2 * GRANULE].into_iter().cycle().take(1000) {
            growth.fetch_add(step, SeqCst);
            bytes += step;
            copied += if use_growth(&growth) { GRANULE } else { 0 };
            assert!(copied <= 2 * bytes, "{copied} for {bytes}");
        }
        assert!(copied > bytes / 4, "{copied} for {bytes}");
    }
}
