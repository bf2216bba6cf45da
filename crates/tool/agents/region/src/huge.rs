//! Hugetlb pages: given to requests, taken back whole, cleared.
//!
//! The kernel takes them as a whole only, while the program speaks of pages of 4 KiB. The table's spare bits say which
//! parts of a hugetlb page are not (or no longer) the program's; the last that is given back takes the page with it.
//!
//! Whoever changes what a hugetlb page is holds its granules: other threads, a fork among them, wait. The wait is
//! bounded, since a signal handler may have interrupted the holder.

#![allow(unsafe_code, reason = "maps, unmaps and clears hugetlb pages that the table says are the caller's")]

use core::ops::Range;

use fieldstone_wire::PlacementReason;

use crate::bits::{self, PAGES};
use crate::demote::make_ordinary;
use crate::place::{READ_WRITE, give_back, granules, map_granules, own_tail, part, populate_huge, settle};
use crate::raw::{self, Raw};
use crate::state::{TABLE, address_of, claim_reserve, count};
use crate::table::{GIANT, GRANULE, PAGE, State};

/// Times that the processor is given up for another thread: about a second, when nobody else wants it.
const PATIENCE: usize = 1_000_000;

/// The state of a granule once nobody is changing it.
pub(crate) fn at_rest(granule: usize) -> State {
    for _ in 0..PATIENCE {
        let state = TABLE.state(granule);
        if state != State::Busy {
            return state;
        }
        raw::yield_now();
    }
    State::Busy
}

/// Whether some of the range lies on hugetlb pages of ours.
pub(crate) fn has_hugetlb(address: usize, bytes: usize) -> bool {
    granules(address, bytes).any(|granule| at_rest(granule).is_hugetlb())
}

/// The granules of the hugetlb page of `state` that `granule` is in.
pub(crate) fn unit(granule: usize, state: State) -> Range<usize> {
    let first = if state == State::Giant { granule / GIANT * GIANT } else { granule };
    first..first + if state == State::Giant { GIANT } else { 1 }
}

/// Holds all of the granules or none.
pub(crate) fn hold_all(range: &Range<usize>, state: State) -> bool {
    let held = TABLE.hold(range.clone(), state);
    if held < range.len() {
        TABLE.let_go(range.start..range.start + held, state);
    }
    held == range.len()
}

/// Holds the hugetlb page that `granule` is in; `None` if it is in none.
fn hold_unit(granule: usize) -> Option<(Range<usize>, State)> {
    loop {
        let state = at_rest(granule);
        let unit = unit(granule, state);
        if !state.is_hugetlb() {
            return None;
        }
        if hold_all(&unit, state) {
            return Some((unit, state));
        }
    }
}

/// Maps whole hugetlb pages of the unit of `state`, and the rest of the request on transparent pages behind them.
/// `None` where the pool has not enough, or no addresses are free.
pub(crate) fn map(bytes: usize, flags: i32, state: State) -> Option<Raw> {
    let (align, size_flag) = match state {
        State::Giant => (GIANT, libc::MAP_HUGE_1GB),
        _ => (1, libc::MAP_HUGE_2MB),
    };
    let tail = bytes % GRANULE / PAGE;
    let granules = bytes / GRANULE + usize::from(tail > 0);
    // The last granule goes on a huge page too if more than half of it is wanted.
    let huge_tail = state == State::Huge && tail > PAGES / 2;
    let huge = if huge_tail { granules } else { bytes / GRANULE / align * align };
    if state == State::Huge
        && let Some(first) = claim_reserve(State::ReservedHuge, granules)
    {
        return take_reserved(first, granules, bytes);
    }
    let huge_flags = (flags & !libc::MAP_NORESERVE) | libc::MAP_HUGETLB | size_flag;
    let pages = |address| raw::map_new(address, huge * GRANULE, READ_WRITE, huge_flags);
    let Ok(first) = map_granules(granules, align, pages) else {
        count(PlacementReason::PoolEmpty, bytes);
        return None;
    };
    let address = address_of(first);
    let rest = bytes.saturating_sub(huge * GRANULE);
    if !own(first, huge, state) || !map_behind(first + huge, rest, flags) {
        // SAFETY: what this call mapped; `map_behind` failed, and so mapped nothing.
        unsafe { raw::munmap(address, huge * GRANULE) };
        give_back(first, granules);
        return None;
    }
    if huge_tail {
        spare_tail(first + huge - 1, tail);
    }
    populate_huge(address, huge * GRANULE);
    Some(address.cast_signed())
}

/// Turns claimed granules of a hugetlb reserve into a mapping of `bytes`.
fn take_reserved(first: usize, granules: usize, bytes: usize) -> Option<Raw> {
    if !own(first, granules, State::Huge) {
        // SAFETY: the reserve belongs to nobody.
        unsafe { raw::munmap(address_of(first), granules * GRANULE) };
        give_back(first, granules);
        return None;
    }
    let tail = bytes % GRANULE / PAGE;
    if tail > 0 {
        spare_tail(first + granules - 1, tail);
    }
    Some(address_of(first).cast_signed())
}

/// Marks claimed, mapped granules as hugetlb and the program's. False, and nothing marked, without memory for the bits.
pub(crate) fn own(first: usize, granules: usize, state: State) -> bool {
    let all = first..first + granules;
    if all.clone().any(|granule| TABLE.pages(granule).is_none()) {
        return false;
    }
    for granule in all {
        if let Some(pages) = TABLE.pages(granule) {
            TABLE.own(granule, pages, state);
        }
    }
    true
}

/// Leaves the program the first `tail` pages of a hugetlb granule.
pub(crate) fn spare_tail(granule: usize, tail: usize) {
    if let Some(pages) = TABLE.pages(granule) {
        bits::clear(&pages.spare, 0, tail);
        bits::set(&pages.spare, tail, PAGES - tail);
    }
}

/// Maps the end of a request on ordinary pages, behind its hugetlb ones.
fn map_behind(first: usize, bytes: usize, flags: i32) -> bool {
    if bytes == 0 {
        return true;
    }
    if raw::failed(raw::map_new(address_of(first), bytes, READ_WRITE, flags)) {
        return false;
    }
    count(PlacementReason::PageGrained, bytes);
    own_tail(first + bytes / GRANULE, bytes % GRANULE / PAGE, false);
    settle(address_of(first), bytes, READ_WRITE);
    true
}

/// Unmaps a range of the region that has hugetlb pages: one goes when none of it is the program's any more; one that
/// keeps some is made ordinary first, and `unmap_ordinary` does the rest, as it does with what is ordinary already. Where
/// it has to stay on hugetlb, its part of the range is zeroed and not the program's any more, but stays mapped.
pub(crate) fn unmap(address: usize, bytes: usize, unmap_ordinary: impl Fn(usize, usize) -> Raw) -> Raw {
    let range = granules(address, bytes);
    let end = address + bytes;
    let mut at = address;
    let mut result = 0;
    for granule in range {
        // What is ordinary is gathered: one call for a run.
        let Some((unit, state, keeps)) = hold_to_unmap(granule, address, bytes) else { continue };
        let start = address_of(unit.start).max(address);
        if at < start {
            result = unmap_ordinary(at, start - at).min(result);
        }
        at = (address_of(unit.end)).min(end);
        if keeps {
            unit.clone().for_each(|granule| give_up(granule, address, bytes));
            TABLE.let_go(unit, state);
            continue;
        }
        // SAFETY: the program gave up every page of it, and nobody else changes it meanwhile.
        unsafe { raw::munmap(address_of(unit.start), unit.len() * GRANULE) };
        unit.for_each(|granule| TABLE.free(granule));
    }
    if at < end { unmap_ordinary(at, end - at).min(result) } else { result }
}

/// Holds the hugetlb page that `granule` is in, and whether the program keeps some of it. `None` if it is in none, or was
/// made ordinary because the program keeps some.
fn hold_to_unmap(granule: usize, address: usize, bytes: usize) -> Option<(Range<usize>, State, bool)> {
    let keeps = |unit: &Range<usize>| unit.clone().any(|granule| keeps_some(granule, address, bytes));
    let (unit, state) = hold_unit(granule)?;
    if !keeps(&unit) {
        return Some((unit, state, false));
    }
    TABLE.let_go(unit.clone(), state);
    if make_ordinary(address_of(unit.start), PAGE, PlacementReason::DemotedByCall) {
        return None;
    }
    let (unit, state) = hold_unit(granule)?;
    let keeps = keeps(&unit);
    Some((unit, state, keeps))
}

/// Takes the part of a range that lies in a held hugetlb granule from the program: it reads as zeroes if it is given again.
fn give_up(granule: usize, address: usize, bytes: usize) {
    let (first, count) = part(granule, address, bytes);
    if let Some(pages) = TABLE.pages(granule).filter(|_| count > 0) {
        // SAFETY: mapped, readable and writable, and the program gave it up.
        unsafe { zero(address_of(granule) + first * PAGE, count * PAGE) };
        bits::set(&pages.spare, first, count);
    }
}

/// # Safety
/// The range has to be hugetlb pages of ours, which are always readable and writable: protecting them makes them
/// ordinary. Nobody may want its contents.
unsafe fn zero(start: usize, bytes: usize) {
    // SAFETY: the caller's range is mapped and writable.
    unsafe { core::ptr::write_bytes(core::ptr::with_exposed_provenance_mut::<u8>(start), 0, bytes) };
}

/// Whether the program has pages of a hugetlb granule outside the range.
fn keeps_some(granule: usize, address: usize, bytes: usize) -> bool {
    let (first, count) = part(granule, address, bytes);
    TABLE.pages(granule).is_none_or(|pages| {
        let behind = first + count;
        !bits::all_set(&pages.spare, 0, first) || !bits::all_set(&pages.spare, behind, PAGES - behind)
    })
}

/// `MADV_DONTNEED` on the part of a range that lies in `granule`. A hugetlb page is cleared and stays: what is given back
/// of a pool that was lowered meanwhile (a surplus page) does not come back, and the next touch would be a SIGBUS.
pub(crate) fn drop_contents(granule: usize, address: usize, bytes: usize) -> Raw {
    let (first, count) = part(granule, address, bytes);
    let (start, bytes) = (address_of(granule) + first * PAGE, count * PAGE);
    if at_rest(granule).is_hugetlb() {
        // SAFETY: a part of a hugetlb page of ours, whose contents the program gave up.
        unsafe { zero(start, bytes) };
        return 0;
    }
    // SAFETY: the program gave the contents up.
    unsafe { raw::madvise(start, bytes, libc::MADV_DONTNEED) }
}
