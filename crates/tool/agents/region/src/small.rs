//! Requests of less than a granule: they share granules.
//!
//! A granule is mapped whole when it is opened, so that neighbours together fill a huge page where each alone could not.
//! The first of these granules stays on small pages: a small program pays nothing for huge pages that it would not fill.
//!
//! ```text
//! granule   | given | slack | given | not ours | given | slack ........ |
//! request           | ------------------------ |
//!                   nothing     refused: page 2 of the run holds a mapping that the kernel placed unseen; it stays used
//! ```
//!
//! What is slack needs no system call; other addresses are mapped only where nothing lies. Once placement is exact
//! ([`crate::state::is_exact`]) there is no slack: each request maps its own pages.

#![allow(unsafe_code, reason = "unmaps addresses that the table proves to be this agent's own")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{PageKind, PlacementReason};

use crate::bits::{self, PAGES, Words};
use crate::place::{self, READ_WRITE, map_granules, settle, touch};
use crate::raw::{self, Raw, TAKEN};
use crate::state::{TABLE, address_of, claim_reserve, count, is_exact, kind, prefault};
use crate::table::{GRANULE, GRANULES, PAGE, PageBits, State};

/// The Split granule that served last, tried first.
static LAST_OPEN: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The granule that stays on small pages under `thp`.
static SMALL: AtomicUsize = AtomicUsize::new(usize::MAX);

/// As if no granule had served yet.
#[cfg(test)]
pub(crate) fn reset() {
    LAST_OPEN.store(usize::MAX, SeqCst);
}

/// Gives `pages` with read and write access.
///
/// # Errors
/// A negated errno: the kernel's, or `-ENOSPC` when no address range of the region is free.
pub(crate) fn map(pages: usize, flags: i32) -> Raw {
    if matches!(kind(), PageKind::Hugetlb2m | PageKind::Hugetlb1g) {
        count(PlacementReason::PageGrained, pages * PAGE);
    }
    place_run(pages, READ_WRITE, flags).unwrap_or_else(|errno| errno)
}

/// Holds addresses for `pages` that are moved there.
pub(crate) fn hold(pages: usize) -> Option<usize> {
    let held = place_run(pages, libc::PROT_NONE, libc::MAP_NORESERVE);
    held.ok().map(isize::cast_unsigned)
}

/// Claims a run of pages and makes it a mapping of this agent's: the next one where something unseen lies in the first.
fn place_run(pages: usize, prot: i32, flags: i32) -> Result<Raw, Raw> {
    loop {
        let (granule, first) = claim(pages)?;
        match back(granule, first, pages, prot, flags) {
            Ok(()) => return Ok((address_of(granule) + first * PAGE).cast_signed()),
            // The pages that are taken stay used: each turn finds fewer.
            Err(TAKEN) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Claims pages of a granule that serves small requests: the last one first, then the lowest with room, then a new one.
fn claim(pages: usize) -> Result<(usize, usize), Raw> {
    let last = LAST_OPEN.load(SeqCst);
    let found = (last < GRANULES).then(|| TABLE.claim_pages(last..last + 1, pages)).flatten();
    let found = found.or_else(|| TABLE.claim_pages(0..TABLE.high(), pages));
    let place = match found {
        Some(place) => place,
        None => (open(pages)?, 0),
    };
    LAST_OPEN.store(place.0, SeqCst);
    Ok(place)
}

/// Opens a granule for small requests and claims its first pages.
fn open(pages: usize) -> Result<usize, Raw> {
    let granule = if is_exact() { map_granules(1, 1, |address| address.cast_signed())? } else { map_slack()? };
    let bits = TABLE.pages(granule).ok_or(-(libc::ENOMEM as Raw))?;
    let slack = !is_exact();
    TABLE.open(granule, bits, 0, pages, slack);
    if slack {
        bits::set(&bits.spare, 0, pages);
    }
    Ok(granule)
}

/// Maps a granule for requests to come.
fn map_slack() -> Result<usize, Raw> {
    if let Some(granule) = claim_reserve(State::Reserved, 1) {
        return Ok(granule);
    }
    let granule = map_granules(1, 1, |address| raw::map_new(address, GRANULE, READ_WRITE, 0))?;
    if LAST_OPEN.load(SeqCst) == usize::MAX && kind() == PageKind::Thp {
        place::advise(address_of(granule), GRANULE, false);
        SMALL.store(granule, SeqCst);
    } else {
        settle(address_of(granule), GRANULE, READ_WRITE);
    }
    Ok(granule)
}

/// Makes every page of a claimed run a mapping of this agent's, fresh and with `prot`; slack is read-write.
/// On failure the run is free again, but for the pages that another mapping has: they stay used.
fn back(granule: usize, first: usize, pages: usize, prot: i32, flags: i32) -> Result<(), Raw> {
    let bits = TABLE.pages(granule).ok_or(-(libc::ENOMEM as Raw))?;
    for (start, count, slack) in bits::runs(&bits.spare, first, pages) {
        let (address, bytes) = (address_of(granule) + start * PAGE, count * PAGE);
        let result = if slack { apply(address, bytes, flags) } else { raw::map_new(address, bytes, prot, flags) };
        if raw::failed(result) {
            undo(granule, bits, first..start);
            free_run(granule, bits, start, first + pages - start, result == TAKEN);
            return Err(result);
        }
        if slack {
            count_resident(address, bytes);
        } else {
            settle(address, bytes, prot);
        }
    }
    bits::clear(&bits.spare, first, pages);
    Ok(())
}

/// Does to slack what flags of mmap(2) do to memory that they map.
fn apply(address: usize, bytes: usize, flags: i32) -> Raw {
    if flags & libc::MAP_POPULATE != 0 {
        touch(address, bytes);
    }
    // SAFETY: locks pages that this call has claimed.
    let locked = flags & libc::MAP_LOCKED == 0
        || !raw::failed(unsafe { raw::syscall(libc::SYS_mlock, [address, bytes, 0, 0, 0, 0]) });
    if locked { 0 } else { -(libc::EAGAIN as Raw) }
}

/// Counts the pages of fresh memory that a neighbour's huge page has made resident.
fn count_resident(address: usize, bytes: usize) {
    if kind() == PageKind::Small4k {
        return;
    }
    let mut pages = [0_u8; PAGES];
    // SAFETY: the kernel writes one byte a page, of which a granule has as many.
    let seen = unsafe { raw::syscall(libc::SYS_mincore, [address, bytes, pages.as_mut_ptr() as usize, 0, 0, 0]) };
    let resident = pages.iter().filter(|&&page| page & 1 == 1).count();
    if !raw::failed(seen) && resident > 0 {
        count(PlacementReason::Resident, resident * PAGE);
    }
}

/// Unmaps what a call has mapped of its claimed `run`, and frees it. What was slack still is.
fn undo(granule: usize, bits: &PageBits, run: core::ops::Range<usize>) {
    for (start, count, slack) in bits::runs(&bits.spare, run.start, run.len()) {
        if !slack {
            // SAFETY: the failing call mapped these pages a moment ago, and gave them to nobody.
            unsafe { raw::munmap(address_of(granule) + start * PAGE, count * PAGE) };
        }
    }
    free_run(granule, bits, run.start, run.len(), false);
}

/// Frees claimed pages that were not given. With `taken`, those that another mapping has stay used.
fn free_run(granule: usize, bits: &PageBits, first: usize, pages: usize, taken: bool) {
    for page in first..first + pages {
        let mapped = || is_mapped(address_of(granule) + page * PAGE);
        if !(taken && !bits::all_set(&bits.spare, page, 1) && mapped()) {
            TABLE.unclaim(granule, bits, page);
        }
    }
}

/// Whether anything is mapped at a page: msync(2) with `MS_ASYNC` does nothing else since Linux 2.6.19.
fn is_mapped(address: usize) -> bool {
    // SAFETY: changes nothing.
    !raw::failed(unsafe { raw::syscall(libc::SYS_msync, [address, PAGE, libc::MS_ASYNC as usize, 0, 0, 0]) })
}

/// Marks pages of a granule free that the kernel has unmapped.
pub(crate) fn release(granule: usize, first: usize, pages: usize) {
    let Some(bits) = TABLE.pages(granule) else { return };
    if TABLE.state(granule) == State::Whole && !TABLE.split(granule, bits) {
        return;
    }
    let empty = TABLE.free_pages(granule, bits, first, pages);
    // The granule that serves small requests stays, lest a program that maps and unmaps in turn pays for it each time.
    if empty && LAST_OPEN.load(SeqCst) != granule && TABLE.close(granule, bits) {
        unmap_slack(granule, bits, 0, PAGES);
        TABLE.free(granule);
    }
}

/// Unmaps the slack in a claimed run.
pub(crate) fn unmap_slack(granule: usize, bits: &PageBits, first: usize, pages: usize) {
    unmap_set(granule, &bits.spare, first, pages);
    bits::clear(&bits.spare, first, pages);
}

/// Unmaps those pages of a claimed run whose bit says that they are mapped and nobody's.
pub(crate) fn unmap_set(granule: usize, unused: &Words, first: usize, pages: usize) {
    for (start, count, mapped) in bits::runs(unused, first, pages) {
        if mapped {
            // SAFETY: this agent has mapped them, nobody has them, and the caller has claimed them.
            unsafe { raw::munmap(address_of(granule) + start * PAGE, count * PAGE) };
        }
    }
}

/// Unmaps all slack of the region.
pub(crate) fn drop_slack() {
    for granule in (0..TABLE.high()).filter(|&granule| TABLE.state(granule) == State::Split) {
        let Some(bits) = TABLE.pages(granule) else { continue };
        for (first, pages, slack) in bits::runs(&bits.spare, 0, PAGES) {
            if slack && bits::claim_run(&bits.used, first, pages) {
                unmap_slack(granule, bits, first, pages);
                release(granule, first, pages);
            }
        }
    }
}

/// Marks the pages that were given so far in granules that neighbours may have filled. Once there is no slack, the spare bit
/// of a used page is such a mark; what is freed or mapped later has none.
pub(crate) fn mark_given() {
    let small = if prefault() { usize::MAX } else { SMALL.load(SeqCst) };
    let shared = |&granule: &usize| granule != small && TABLE.state(granule) == State::Split;
    for bits in (0..TABLE.high()).filter(shared).filter_map(|granule| TABLE.pages(granule)) {
        for (first, count, used) in bits::runs(&bits.used, 0, PAGES) {
            if used {
                bits::set(&bits.spare, first, count);
            }
        }
    }
}

/// Whether a page has the mark.
pub(crate) fn is_marked(granule: usize, page: usize) -> bool {
    TABLE.state(granule) == State::Split && TABLE.pages(granule).is_some_and(|bits| bits::all_set(&bits.spare, page, 1))
}
