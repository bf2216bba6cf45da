//! Hugetlb pages: serves requests with them, and frees and clears them.
//!
//! The kernel unmaps and protects them as a whole only, while the program works on pages of 4 KiB.
//! The table's spare bits mark the parts of a hugetlb page that the program has unmapped or never
//! requested. When all parts are spare, the page is unmapped.
//!
//! A thread that changes the state of a hugetlb page marks its granules Busy; other threads, also
//! in fork, wait. The wait is bounded, since the busy thread may be interrupted by the waiting
//! signal handler.

#![allow(unsafe_code, reason = "maps, unmaps and clears hugetlb pages that the table says are the caller's")]

use core::ops::Range;

use fieldstone_wire::PlacementReason;

use crate::bits::{self, PAGES};
use crate::migration::make_ordinary;
use crate::placement::{
    READ_WRITE, apply_page_kind, free_granules, granules, map_granules, open_tail, pages_in, populate_huge,
};
use crate::raw::{self, RawResult};
use crate::state::{TABLE, address_of, claim_reserve, count};
use crate::table::{GIANT, GRANULE, GranuleState, PAGE};

/// The most calls of sched_yield(2) while a granule is Busy: about one second on an idle processor.
const MAX_YIELDS: usize = 1_000_000;

/// The state of a granule once it is not Busy.
pub(crate) fn settled_state(granule: usize) -> GranuleState {
    for _ in 0..MAX_YIELDS {
        let state = TABLE.state(granule);
        if state != GranuleState::Busy {
            return state;
        }
        raw::yield_now();
    }
    GranuleState::Busy
}

/// Whether a part of the range is on hugetlb pages of the region.
pub(crate) fn has_hugetlb(address: usize, bytes: usize) -> bool {
    granules(address, bytes).any(|granule| settled_state(granule).is_hugetlb())
}

/// The granules of the hugetlb page that contains `granule`, whose state is `state`.
pub(crate) fn unit(granule: usize, state: GranuleState) -> Range<usize> {
    let first = if state == GranuleState::Giant { granule / GIANT * GIANT } else { granule };
    first..first + if state == GranuleState::Giant { GIANT } else { 1 }
}

/// Marks all of the granules Busy, or none.
pub(crate) fn mark_all_busy(range: &Range<usize>, state: GranuleState) -> bool {
    let marked = TABLE.mark_busy(range.clone(), state);
    if marked < range.len() {
        TABLE.set_states(range.start..range.start + marked, state);
    }
    marked == range.len()
}

/// Marks the hugetlb page that contains `granule` Busy; `None` if `granule` is not hugetlb.
fn mark_unit_busy(granule: usize) -> Option<(Range<usize>, GranuleState)> {
    loop {
        let state = settled_state(granule);
        let unit = unit(granule, state);
        if !state.is_hugetlb() {
            return None;
        }
        if mark_all_busy(&unit, state) {
            return Some((unit, state));
        }
    }
}

/// Maps hugetlb pages of the size of `state`, and the rest of the request on transparent pages
/// behind them. `None` if the pool has too few pages, or if no addresses are free.
pub(crate) fn map(bytes: usize, flags: i32, state: GranuleState) -> Option<RawResult> {
    let (align, size_flag) = match state {
        GranuleState::Giant => (GIANT, libc::MAP_HUGE_1GB),
        _ => (1, libc::MAP_HUGE_2MB),
    };
    let tail = bytes % GRANULE / PAGE;
    let granules = bytes / GRANULE + usize::from(tail > 0);
    // The last granule is a huge page too if more than half of it is requested.
    let huge_tail = state == GranuleState::Huge && tail > PAGES / 2;
    let huge = if huge_tail { granules } else { bytes / GRANULE / align * align };
    if state == GranuleState::Huge
        && let Some(first) = claim_reserve(GranuleState::ReservedHuge, granules)
    {
        return use_reserve(first, granules, bytes);
    }
    let huge_flags = (flags & !libc::MAP_NORESERVE) | libc::MAP_HUGETLB | size_flag;
    let pages = |address| raw::map_new(address, huge * GRANULE, READ_WRITE, huge_flags);
    let Ok(first) = map_granules(granules, align, pages) else {
        count(PlacementReason::PoolEmpty, bytes);
        return None;
    };
    let address = address_of(first);
    let rest = bytes.saturating_sub(huge * GRANULE);
    if !set_full(first, huge, state) || !map_tail(first + huge, rest, flags) {
        // SAFETY: this call mapped these pages, and `map_tail` failed and so mapped nothing.
        unsafe { raw::munmap(address, huge * GRANULE) };
        free_granules(first, granules);
        return None;
    }
    if huge_tail {
        spare_tail(first + huge - 1, tail);
    }
    populate_huge(address, huge * GRANULE);
    Some(address.cast_signed())
}

/// Turns claimed granules of the hugetlb reserve into a mapping of `bytes`.
fn use_reserve(first: usize, granules: usize, bytes: usize) -> Option<RawResult> {
    if !set_full(first, granules, GranuleState::Huge) {
        // SAFETY: the granules were unused reserve, and this thread claimed them.
        unsafe { raw::munmap(address_of(first), granules * GRANULE) };
        free_granules(first, granules);
        return None;
    }
    let tail = bytes % GRANULE / PAGE;
    if tail > 0 {
        spare_tail(first + granules - 1, tail);
    }
    Some(address_of(first).cast_signed())
}

/// Marks claimed, mapped granules as hugetlb and fully used. False, and nothing marked, without
/// memory for the bits.
pub(crate) fn set_full(first: usize, granules: usize, state: GranuleState) -> bool {
    let all = first..first + granules;
    if all.clone().any(|granule| TABLE.pages(granule).is_none()) {
        return false;
    }
    for granule in all {
        if let Some(pages) = TABLE.pages(granule) {
            TABLE.set_full(granule, pages, state);
        }
    }
    true
}

/// Marks all but the first `tail` pages of a hugetlb granule as spare.
pub(crate) fn spare_tail(granule: usize, tail: usize) {
    if let Some(pages) = TABLE.pages(granule) {
        bits::clear(&pages.spare, 0, tail);
        bits::set(&pages.spare, tail, PAGES - tail);
    }
}

/// Maps the end of a request on ordinary pages, behind its hugetlb pages.
fn map_tail(first: usize, bytes: usize, flags: i32) -> bool {
    if bytes == 0 {
        return true;
    }
    if raw::failed(raw::map_new(address_of(first), bytes, READ_WRITE, flags)) {
        return false;
    }
    count(PlacementReason::PageGrained, bytes);
    open_tail(first + bytes / GRANULE, bytes % GRANULE / PAGE, false);
    apply_page_kind(address_of(first), bytes, READ_WRITE);
    true
}

/// Unmaps a range of the region that includes hugetlb pages.
///
/// A hugetlb page of which the program keeps nothing is unmapped. One of which it keeps a part is
/// made ordinary first, and `unmap_ordinary` unmaps the range. If it cannot be made ordinary, its
/// part of the range is zeroed and marked spare.
pub(crate) fn unmap(address: usize, bytes: usize, unmap_ordinary: impl Fn(usize, usize) -> RawResult) -> RawResult {
    let range = granules(address, bytes);
    let end = address + bytes;
    let mut at = address;
    let mut result = 0;
    for granule in range {
        // Adjacent ordinary pages are unmapped by one call.
        let Some((unit, state, keeps)) = prepare_unmap(granule, address, bytes) else { continue };
        let start = address_of(unit.start).max(address);
        if at < start {
            result = unmap_ordinary(at, start - at).min(result);
        }
        at = (address_of(unit.end)).min(end);
        if keeps {
            unit.clone().for_each(|granule| release_part(granule, address, bytes));
            TABLE.set_states(unit, state);
            continue;
        }
        // SAFETY: the program unmapped every page of it, and the granules are Busy, so no other
        // thread changes them.
        unsafe { raw::munmap(address_of(unit.start), unit.len() * GRANULE) };
        unit.for_each(|granule| TABLE.free(granule));
    }
    if at < end { unmap_ordinary(at, end - at).min(result) } else { result }
}

/// Marks the hugetlb page that contains `granule` Busy, and whether the program keeps a part of it.
/// `None` if it is not hugetlb, or if it was made ordinary because the program keeps a part.
fn prepare_unmap(granule: usize, address: usize, bytes: usize) -> Option<(Range<usize>, GranuleState, bool)> {
    let keeps = |unit: &Range<usize>| unit.clone().any(|granule| keeps_some(granule, address, bytes));
    let (unit, state) = mark_unit_busy(granule)?;
    if !keeps(&unit) {
        return Some((unit, state, false));
    }
    TABLE.set_states(unit.clone(), state);
    if make_ordinary(address_of(unit.start), PAGE, PlacementReason::DemotedByCall) {
        return None;
    }
    let (unit, state) = mark_unit_busy(granule)?;
    let keeps = keeps(&unit);
    Some((unit, state, keeps))
}

/// Marks the part of a range in a busy hugetlb granule as spare, zeroed for its next use.
fn release_part(granule: usize, address: usize, bytes: usize) {
    let (first, count) = pages_in(granule, address, bytes);
    if let Some(pages) = TABLE.pages(granule).filter(|_| count > 0) {
        // SAFETY: a hugetlb page of the agent is always mapped read-write, and the program unmapped
        // this part.
        unsafe { zero(address_of(granule) + first * PAGE, count * PAGE) };
        bits::set(&pages.spare, first, count);
    }
}

/// # Safety
/// The range has to be on hugetlb pages of the agent (always read-write: protecting them makes them
/// ordinary), and its contents must be unused.
unsafe fn zero(start: usize, bytes: usize) {
    // SAFETY: the caller guarantees that the range is mapped, writable and unused.
    unsafe { core::ptr::write_bytes(core::ptr::with_exposed_provenance_mut::<u8>(start), 0, bytes) };
}

/// Whether the program uses pages of a hugetlb granule outside the range.
fn keeps_some(granule: usize, address: usize, bytes: usize) -> bool {
    let (first, count) = pages_in(granule, address, bytes);
    TABLE.pages(granule).is_none_or(|pages| {
        let behind = first + count;
        !bits::all_set(&pages.spare, 0, first) || !bits::all_set(&pages.spare, behind, PAGES - behind)
    })
}

/// `MADV_DONTNEED` on the part of a range in `granule`. A hugetlb page is cleared and stays mapped:
/// a surplus page returned to a pool that was lowered is lost, and the next access would raise
/// SIGBUS.
pub(crate) fn discard(granule: usize, address: usize, bytes: usize) -> RawResult {
    let (first, count) = pages_in(granule, address, bytes);
    let (start, bytes) = (address_of(granule) + first * PAGE, count * PAGE);
    if settled_state(granule).is_hugetlb() {
        // SAFETY: the range is on a hugetlb page of the agent, and the program discarded its
        // contents.
        unsafe { zero(start, bytes) };
        return 0;
    }
    // SAFETY: the program discards the contents of this range.
    unsafe { raw::madvise(start, bytes, libc::MADV_DONTNEED) }
}
