//! Huge pages for guest memory, so that tracing itself has fewer page walks.
//!
//! QEMU executes some hundred instructions between two accesses that are adjacent natively. The
//! processor then no longer overlaps their page walks, and waits for each. The models use guest
//! addresses only, so the host pages of guest memory do not change the result.
//!
//! Writable mappings get huge pages within a budget of the reader (`Trace::huge_left`), so that a
//! program that uses little of its mappings does not run out of memory. An unmapped mapping returns
//! to the budget, if it is among the 512 that are stored, and if it is unmapped as a whole.

#![allow(unsafe_code, reason = "advises the kernel about the guest's memory")]

use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::trace::{guest_base, trace};

/// A shorter mapping gets no huge page.
const MIN_BYTES: u64 = 2 << 20;
/// Mappings that are stored; further ones get no huge pages.
const MAPPINGS: usize = 512;

static ADVISED: AdvisedMappings = AdvisedMappings::new();

/// The mappings that were advised.
struct AdvisedMappings([HugeMapping; MAPPINGS]);

/// One mapping; a free entry has zero bytes, and one being changed has a zero start.
struct HugeMapping {
    start: AtomicU64,
    bytes: AtomicU64,
}

/// Advises huge pages for private anonymous memory that the guest mapped with these flags.
pub(crate) fn advise(address: u64, bytes: u64, protection: u64, flags: u64) {
    let has = |set: u64, flag: i32| set & u64::from(flag.cast_unsigned()) != 0;
    if !has(protection, libc::PROT_WRITE) || has(flags, libc::MAP_NORESERVE) || bytes < MIN_BYTES {
        return;
    }
    let left = &trace().huge_left;
    if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_err() {
        return;
    }
    if !ADVISED.add(address, bytes) {
        left.fetch_add(bytes, Relaxed);
        return;
    }
    let place = address.wrapping_add(guest_base());
    if let (Ok(place), Ok(length)) = (usize::try_from(place), usize::try_from(bytes)) {
        // SAFETY: the advice changes no contents. Without huge pages, or on unmapped memory, the
        // kernel returns an error and changes nothing.
        unsafe { libc::madvise(ptr::without_provenance_mut(place), length, libc::MADV_HUGEPAGE) };
    }
}

/// The guest unmapped the range: its mappings return to the budget.
pub(crate) fn unmapped(range: &Range<u64>) {
    trace().huge_left.fetch_add(ADVISED.remove(range), Relaxed);
}

/// The guest moved the range: its mappings never return to the budget.
pub(crate) fn moved(range: &Range<u64>) {
    ADVISED.remove(range);
}

/// In the child of a fork: the mappings return to the parent's budget only.
pub(crate) fn reset_in_child() {
    ADVISED.remove(&(0..u64::MAX));
}

impl AdvisedMappings {
    const fn new() -> Self {
        Self([const { HugeMapping { start: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; MAPPINGS])
    }

    /// Stores a mapping; false if there is no free entry.
    fn add(&self, start: u64, bytes: u64) -> bool {
        let claims = |mapping: &&HugeMapping| mapping.bytes.compare_exchange(0, bytes, AcqRel, Relaxed).is_ok();
        let Some(mapping) = self.0.iter().find(claims) else { return false };
        mapping.start.store(start, Release);
        true
    }

    /// Removes the mappings within `range` and returns their bytes.
    fn remove(&self, range: &Range<u64>) -> u64 {
        let remove = |mapping: &HugeMapping| {
            let start = mapping.start.load(Acquire);
            let is_removed = start != 0
                && range.contains(&start)
                && start.saturating_add(mapping.bytes.load(Relaxed)) <= range.end
                && mapping.start.compare_exchange(start, 0, AcqRel, Relaxed).is_ok();
            if is_removed { mapping.bytes.swap(0, AcqRel) } else { 0 }
        };
        self.0.iter().map(remove).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_removed_once_and_as_a_whole() {
        let advised = AdvisedMappings::new();
        assert!(advised.add(0x1000, 0x3000) && advised.add(0x8000, 0x1000));
        assert_eq!(advised.remove(&(0x2000..0x9000)), 0x1000, "the first starts before the range");
        assert_eq!(advised.remove(&(0..0x3fff)), 0, "the second ends after the range");
        assert_eq!(advised.remove(&(0x1000..0x4000)), 0x3000);
        assert_eq!(advised.remove(&(0..u64::MAX)), 0);
    }

    #[test]
    fn the_number_of_mappings_is_bounded() {
        let advised = AdvisedMappings::new();
        let all = (1..).take_while(|&n| advised.add(n << 20, 1 << 20)).count();
        assert_eq!(all, MAPPINGS);
        assert_eq!(advised.remove(&(5 << 20..7 << 20)), 2 << 20);
        assert!(advised.add(5 << 20, 1) && advised.add(6 << 20, 1) && !advised.add(7 << 20, 1));
    }
}
