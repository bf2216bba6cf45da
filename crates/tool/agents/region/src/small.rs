//! Requests of less than a granule share granules.
//!
//! A granule is mapped as a whole when it is opened, so that adjacent requests together fill a huge
//! page. The first such granule stays on small pages: a small program would not fill a huge page.
//!
//! ```text
//! granule   | used  | slack | used  | free     | used  | slack ........ |
//! request           | ------------------------ |
//!           slack:    mapped already, no system call
//!           free:     mapped by the request; fails if the kernel placed an unknown mapping there, whose pages then stay used
//! ```
//!
//! With exact placement ([`crate::state::is_exact`]) there is no slack: each request maps its own
//! pages.

#![allow(unsafe_code, reason = "unmaps addresses that the table proves to be this agent's own")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{PageKind, PlacementReason};

use crate::bits::{self, PAGES, Words};
use crate::placement::{self, READ_WRITE, apply_page_kind, map_granules, touch};
use crate::raw::{self, OCCUPIED, RawResult};
use crate::state::{TABLE, address_of, claim_reserve, count, is_exact, is_prefault, kind};
use crate::table::{GRANULE, GRANULES, GranuleState, PAGE, PageBits};

/// The Split granule of the last request, tried first.
static LAST_USED: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The granule that stays on small pages with `thp`.
static SMALL_PAGE_GRANULE: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Resets the state of this file.
#[cfg(test)]
pub(crate) fn reset() {
    LAST_USED.store(usize::MAX, SeqCst);
}

/// Maps `pages` with read and write access.
///
/// # Errors
/// A negated errno: the kernel's, or `-ENOSPC` when no address range of the region is free.
pub(crate) fn map(pages: usize, flags: i32) -> RawResult {
    if matches!(kind(), PageKind::Hugetlb2m | PageKind::Hugetlb1g) {
        count(PlacementReason::PageGrained, pages * PAGE);
    }
    map_run(pages, READ_WRITE, flags).unwrap_or_else(|errno| errno)
}

/// Occupies addresses for `pages` that will move there.
pub(crate) fn occupy(pages: usize) -> Option<usize> {
    let occupied = map_run(pages, libc::PROT_NONE, libc::MAP_NORESERVE);
    occupied.ok().map(isize::cast_unsigned)
}

/// Claims a run of pages and maps it. Retries with the next run if the first is occupied by an
/// unknown mapping.
fn map_run(pages: usize, prot: i32, flags: i32) -> Result<RawResult, RawResult> {
    loop {
        let (granule, first) = claim(pages)?;
        match map_claimed(granule, first, pages, prot, flags) {
            Ok(()) => return Ok((address_of(granule) + first * PAGE).cast_signed()),
            // The occupied pages stay used, so each retry finds fewer.
            Err(OCCUPIED) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Claims pages of a shared granule: the last one, then the lowest with enough free pages, then a
/// new one.
fn claim(pages: usize) -> Result<(usize, usize), RawResult> {
    let last = LAST_USED.load(SeqCst);
    let found = (last < GRANULES).then(|| TABLE.claim_pages(last..last + 1, pages)).flatten();
    let found = found.or_else(|| TABLE.claim_pages(0..TABLE.high(), pages));
    let place = match found {
        Some(place) => place,
        None => (open_granule(pages)?, 0),
    };
    LAST_USED.store(place.0, SeqCst);
    Ok(place)
}

/// Opens a granule for small requests and claims its first `pages`.
fn open_granule(pages: usize) -> Result<usize, RawResult> {
    let granule = if is_exact() { map_granules(1, 1, |address| address.cast_signed())? } else { map_whole_granule()? };
    let bits = TABLE.pages(granule).ok_or(-(libc::ENOMEM as RawResult))?;
    let slack = !is_exact();
    TABLE.open_split(granule, bits, 0, pages, slack);
    if slack {
        bits::set(&bits.spare, 0, pages);
    }
    Ok(granule)
}

/// Maps a whole granule for future requests.
fn map_whole_granule() -> Result<usize, RawResult> {
    if let Some(granule) = claim_reserve(GranuleState::Reserved, 1) {
        return Ok(granule);
    }
    let granule = map_granules(1, 1, |address| raw::map_new(address, GRANULE, READ_WRITE, 0))?;
    if LAST_USED.load(SeqCst) == usize::MAX && kind() == PageKind::Thp {
        placement::advise(address_of(granule), GRANULE, false);
        SMALL_PAGE_GRANULE.store(granule, SeqCst);
    } else {
        apply_page_kind(address_of(granule), GRANULE, READ_WRITE);
    }
    Ok(granule)
}

/// Maps every page of a claimed run that is not slack, with `prot`. On failure the run is free
/// again, except pages that another mapping occupies: they stay used.
fn map_claimed(granule: usize, first: usize, pages: usize, prot: i32, flags: i32) -> Result<(), RawResult> {
    let bits = TABLE.pages(granule).ok_or(-(libc::ENOMEM as RawResult))?;
    for (start, count, slack) in bits::runs(&bits.spare, first, pages) {
        let (address, bytes) = (address_of(granule) + start * PAGE, count * PAGE);
        let result = if slack { apply_flags(address, bytes, flags) } else { raw::map_new(address, bytes, prot, flags) };
        if raw::failed(result) {
            undo(granule, bits, first..start);
            free_run(granule, bits, start, first + pages - start, result == OCCUPIED);
            return Err(result);
        }
        if slack {
            count_resident(address, bytes);
        } else {
            apply_page_kind(address, bytes, prot);
        }
    }
    bits::clear(&bits.spare, first, pages);
    Ok(())
}

/// Applies flags of mmap(2) to slack, which is mapped already.
fn apply_flags(address: usize, bytes: usize, flags: i32) -> RawResult {
    if flags & libc::MAP_POPULATE != 0 {
        touch(address, bytes);
    }
    // SAFETY: the call locks mapped pages that this thread claimed.
    let locked = flags & libc::MAP_LOCKED == 0
        || !raw::failed(unsafe { raw::syscall(libc::SYS_mlock, [address, bytes, 0, 0, 0, 0]) });
    if locked { 0 } else { -(libc::EAGAIN as RawResult) }
}

/// Counts the pages of fresh memory that are resident because of a neighbour's huge page.
fn count_resident(address: usize, bytes: usize) {
    if kind() == PageKind::Small4k {
        return;
    }
    let mut pages = [0_u8; PAGES];
    // SAFETY: the kernel writes one byte a page, at most 512, the size of `pages`.
    let result = unsafe { raw::syscall(libc::SYS_mincore, [address, bytes, pages.as_mut_ptr() as usize, 0, 0, 0]) };
    let resident = pages.iter().filter(|&&page| page & 1 == 1).count();
    if !raw::failed(result) && resident > 0 {
        count(PlacementReason::Resident, resident * PAGE);
    }
}

/// Unmaps the pages of a claimed `run` that this call mapped, and frees the run. Slack stays slack.
fn undo(granule: usize, bits: &PageBits, run: core::ops::Range<usize>) {
    for (start, count, slack) in bits::runs(&bits.spare, run.start, run.len()) {
        if !slack {
            // SAFETY: the failing call mapped these pages just now and returned them to no caller.
            unsafe { raw::munmap(address_of(granule) + start * PAGE, count * PAGE) };
        }
    }
    free_run(granule, bits, run.start, run.len(), false);
}

/// Frees claimed pages that were not allocated. With `is_occupied`, pages that another mapping
/// occupies stay used.
fn free_run(granule: usize, bits: &PageBits, first: usize, pages: usize, is_occupied: bool) {
    for page in first..first + pages {
        let mapped = || raw::is_mapped(address_of(granule) + page * PAGE, PAGE);
        if !(is_occupied && !bits::all_set(&bits.spare, page, 1) && mapped()) {
            TABLE.unclaim_page(granule, bits, page);
        }
    }
}

/// Frees pages of a granule that the kernel has unmapped.
pub(crate) fn release(granule: usize, first: usize, pages: usize) {
    let Some(bits) = TABLE.pages(granule) else { return };
    if TABLE.state(granule) == GranuleState::Whole && !TABLE.split_whole(granule, bits) {
        return;
    }
    let empty = TABLE.free_pages(granule, bits, first, pages);
    // The granule of the last request stays mapped: a program that maps and unmaps in turn would
    // map it each time.
    if empty && LAST_USED.load(SeqCst) != granule && TABLE.claim_all_pages(granule, bits) {
        unmap_slack(granule, bits, 0, PAGES);
        TABLE.free(granule);
    }
}

/// Unmaps the slack in a claimed run.
pub(crate) fn unmap_slack(granule: usize, bits: &PageBits, first: usize, pages: usize) {
    unmap_set(granule, &bits.spare, first, pages);
    bits::clear(&bits.spare, first, pages);
}

/// Unmaps the pages of a claimed run whose bit in `unused` is set: mapped, and not allocated.
pub(crate) fn unmap_set(granule: usize, unused: &Words, first: usize, pages: usize) {
    for (start, count, mapped) in bits::runs(unused, first, pages) {
        if mapped {
            // SAFETY: the agent mapped these pages, they are not allocated, and the caller claimed
            // them.
            unsafe { raw::munmap(address_of(granule) + start * PAGE, count * PAGE) };
        }
    }
}

/// Unmaps all slack of the region.
pub(crate) fn drop_slack() {
    for granule in (0..TABLE.high()).filter(|&granule| TABLE.state(granule) == GranuleState::Split) {
        let Some(bits) = TABLE.pages(granule) else { continue };
        for (first, pages, slack) in bits::runs(&bits.spare, 0, PAGES) {
            if slack && bits::claim_run(&bits.used, first, pages) {
                unmap_slack(granule, bits, first, pages);
                release(granule, first, pages);
            }
        }
    }
}

/// Marks all allocated pages in granules that neighbours may have filled. Without slack, the spare
/// bit of a used page is free to serve as the mark. Pages freed or mapped later have none.
pub(crate) fn mark_used() {
    let small = if is_prefault() { usize::MAX } else { SMALL_PAGE_GRANULE.load(SeqCst) };
    let shared = |&granule: &usize| granule != small && TABLE.state(granule) == GranuleState::Split;
    for bits in (0..TABLE.high()).filter(shared).filter_map(|granule| TABLE.pages(granule)) {
        for (first, count, used) in bits::runs(&bits.used, 0, PAGES) {
            if used {
                bits::set(&bits.spare, first, count);
            }
        }
    }
}

/// Whether a page has the mark of [`mark_used`].
pub(crate) fn is_marked(granule: usize, page: usize) -> bool {
    TABLE.state(granule) == GranuleState::Split
        && TABLE.pages(granule).is_some_and(|bits| bits::all_set(&bits.spare, page, 1))
}
