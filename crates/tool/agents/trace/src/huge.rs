//! Huge pages for the guest's memory, so that the trace itself pays less for translation.
//!
//! QEMU runs some hundred instructions between two accesses of the guest that lie next to each other natively: the processor
//! no longer overlaps their page walks, and a program that walks much would wait for each of them. The models see guest
//! addresses alone, so which pages the guest's memory really has is free to choose.
//!
//! What is mapped to be written at once is asked for, as far as the reader allows (`Trace::huge_left`), so that a program which uses
//! little of what it maps does not run out of memory here. What goes away again is given back to that, as long as the mapping
//! is remembered: of some hundred, and only as a whole.

#![allow(unsafe_code, reason = "advises the kernel about the guest's memory")]

use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::trace::{guest_base, trace};

/// A shorter mapping has no huge page.
const SHORTEST: u64 = 2 << 20;
/// Mappings that are remembered; what is mapped beyond them is not asked for.
const MAPPINGS: usize = 512;

static ASKED: Asked = Asked::nothing();

/// What was asked for.
struct Asked([Mapping; MAPPINGS]);

/// One mapping. Free where it has no bytes; in between where it has no start.
struct Mapping {
    start: AtomicU64,
    bytes: AtomicU64,
}

/// Asks for huge pages where the guest has mapped private anonymous memory with these flags.
pub(crate) fn ask(address: u64, bytes: u64, protection: u64, flags: u64) {
    let has = |set: u64, flag: i32| set & u64::from(flag.cast_unsigned()) != 0;
    if !has(protection, libc::PROT_WRITE) || has(flags, libc::MAP_NORESERVE) || bytes < SHORTEST {
        return;
    }
    let left = &trace().huge_left;
    if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_err() {
        return;
    }
    if !ASKED.add(address, bytes) {
        left.fetch_add(bytes, Relaxed);
        return;
    }
    let place = address.wrapping_add(guest_base());
    if let (Ok(place), Ok(length)) = (usize::try_from(place), usize::try_from(bytes)) {
        // SAFETY: which pages memory has changes nothing in it. A kernel without huge pages, or no such memory, is an error that
        // leaves all as it was.
        unsafe { libc::madvise(ptr::without_provenance_mut(place), length, libc::MADV_HUGEPAGE) };
    }
}

/// What the guest had there is gone.
pub(crate) fn give_back(range: &Range<u64>) {
    trace().huge_left.fetch_add(ASKED.remove(range), Relaxed);
}

/// What the guest had there is elsewhere: it is never given back.
pub(crate) fn forget(range: &Range<u64>) {
    ASKED.remove(range);
}

/// What a fork's child has is its parent's to give back.
pub(crate) fn forget_in_child() {
    ASKED.remove(&(0..u64::MAX));
}

impl Asked {
    const fn nothing() -> Self {
        Self([const { Mapping { start: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; MAPPINGS])
    }

    /// Remembers a mapping; false where there is no room.
    fn add(&self, start: u64, bytes: u64) -> bool {
        let is_taken = |one: &&Mapping| one.bytes.compare_exchange(0, bytes, AcqRel, Relaxed).is_ok();
        let Some(one) = self.0.iter().find(is_taken) else { return false };
        one.start.store(start, Release);
        true
    }

    /// Forgets mappings that lie in `range`; their bytes.
    fn remove(&self, range: &Range<u64>) -> u64 {
        let remove = |one: &Mapping| {
            let start = one.start.load(Acquire);
            let lies = start != 0
                && range.contains(&start)
                && start.saturating_add(one.bytes.load(Relaxed)) <= range.end
                && one.start.compare_exchange(start, 0, AcqRel, Relaxed).is_ok();
            if lies { one.bytes.swap(0, AcqRel) } else { 0 }
        };
        self.0.iter().map(remove).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_given_back_once_and_as_a_whole() {
        let asked = Asked::nothing();
        assert!(asked.add(0x1000, 0x3000) && asked.add(0x8000, 0x1000));
        assert_eq!(asked.remove(&(0x2000..0x9000)), 0x1000, "the first begins before");
        assert_eq!(asked.remove(&(0..0x3fff)), 0, "it ends behind");
        assert_eq!(asked.remove(&(0x1000..0x4000)), 0x3000);
        assert_eq!(asked.remove(&(0..u64::MAX)), 0);
    }

    #[test]
    fn there_is_room_for_some_hundred() {
        let asked = Asked::nothing();
        let all = (1..).take_while(|&n| asked.add(n << 20, 1 << 20)).count();
        assert_eq!(all, MAPPINGS);
        assert_eq!(asked.remove(&(5 << 20..7 << 20)), 2 << 20);
        assert!(asked.add(5 << 20, 1) && asked.add(6 << 20, 1) && !asked.add(7 << 20, 1));
    }
}
