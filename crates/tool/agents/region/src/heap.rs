//! The program's heap: what libc asks of `brk`, at the bottom of the region.
//!
//! The heap is mapped to the end of its last granule, ahead of the break, so that huge pages fit; its first granule
//! stays on small pages, and stays the heap's when the break is lowered to its start. A lowered break unmaps what is above
//! it, to the page; a hugetlb page that keeps a part is moved to transparent pages first. Nothing is written to the heap:
//! the program may have protected it. `brk` has one caller at a time by its nature (`sbrk` reads, then sets).

#![allow(unsafe_code, reason = "maps and unmaps the heap")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{PageKind, PlacementReason};

use crate::calls::{madvise, munmap};
use crate::demote::{Mapping, make_ordinary};
use crate::huge;
use crate::pieces::move_all;
use crate::place::{READ_WRITE, advise, give_back, hold_granules, populate_huge, release, settle, settle_anew};
use crate::raw;
use crate::state::{TABLE, address_of, base, claim_reserve, count, count_served, is_exact, kind, limit};
use crate::table::{GRANULE, PAGE, State};

static BREAK: AtomicUsize = AtomicUsize::new(0);
/// First address past what is mapped.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Claims the first granule for the heap, for as long as the process lives. The address at which the heap begins.
pub(crate) fn start() -> usize {
    BREAK.store(base(), SeqCst);
    MAPPED.store(base(), SeqCst);
    // Refused, there is no memory for the table, and each brk(2) that needs more than this granule fails too.
    let _ = TABLE.claim_at(State::Free, 0, 1);
    base()
}

/// `brk(2)`: the new break, or the old one where `address` cannot be had.
pub(crate) fn brk(address: usize) -> usize {
    let current = BREAK.load(SeqCst);
    if !(base()..limit()).contains(&address) || !reach(address) {
        return current;
    }
    if address > current {
        count_served(address - current);
    } else {
        lower(address, current);
    }
    BREAK.store(address, SeqCst);
    address
}

/// Maps until `address` is covered: to the end of its granule, or to its page where placement is exact, or where a limit
/// or another mapping leaves no more.
fn reach(address: usize) -> bool {
    if address <= MAPPED.load(SeqCst) {
        return true;
    }
    let _mapping = Mapping::begin();
    (!is_exact() && map_to(address.next_multiple_of(GRANULE))) || map_to(address.next_multiple_of(PAGE))
}

/// Maps to `end`: the rest of the last granule that is the heap's, then whole granules.
fn map_to(end: usize) -> bool {
    let mapped = MAPPED.load(SeqCst);
    // The first granule is the heap's also while nothing of it is mapped.
    let next = (mapped - base()).div_ceil(GRANULE).max(1);
    let rest_end = address_of(next).min(end);
    if mapped < rest_end {
        if !map_rest(mapped, rest_end) {
            return false;
        }
        MAPPED.store(rest_end, SeqCst);
    }
    let wanted = (end - base()).div_ceil(GRANULE);
    if next < wanted {
        let (granules, bytes) = (wanted - next, end - address_of(next));
        if TABLE.claim_at(State::Free, next, granules).is_err() || !map_granules(next, granules, bytes) {
            return false;
        }
        MAPPED.store(end, SeqCst);
    }
    true
}

/// Maps a part of a granule that is the heap's: of the first one, or of one that a lowered break has unmapped.
fn map_rest(start: usize, end: usize) -> bool {
    if raw::failed(raw::map_new(start, end - start, READ_WRITE, 0)) {
        return false;
    }
    if start < address_of(1) && kind() == PageKind::Thp {
        advise(start, end - start, false);
    } else {
        settle(start, end - start, READ_WRITE);
    }
    true
}

/// Maps the first `bytes` of claimed granules. The claim ends where that fails.
fn map_granules(first: usize, granules: usize, bytes: usize) -> bool {
    let address = address_of(first);
    let whole = bytes == granules * GRANULE;
    if whole && take_reserve(first, granules) {
        settle_anew(address, bytes);
        return true;
    }
    if whole && kind() == PageKind::Hugetlb2m {
        if map_huge(address, bytes) && huge::own(first, granules, State::Huge) {
            populate_huge(address, bytes);
            return true;
        }
        count(PlacementReason::PoolEmpty, bytes);
    }
    if raw::failed(raw::map_new(address, bytes, READ_WRITE, 0)) {
        give_back(first, granules);
        return false;
    }
    settle(address, bytes, READ_WRITE);
    true
}

/// Takes granules of the reserve for the heap; their old addresses are not used again. Transparent pages move here with
/// what they have. Hugetlb pages do not: the kernel loses the reservations of the pages left behind, for good. They go
/// back to the pool, from which the heap takes as many a moment later.
fn take_reserve(first: usize, granules: usize) -> bool {
    let hugetlb = kind() == PageKind::Hugetlb2m;
    let from = if hugetlb { State::ReservedHuge } else { State::Reserved };
    let Some(taken) = claim_reserve(from, granules) else { return false };
    let (old, bytes) = (address_of(taken), granules * GRANULE);
    let target = address_of(first);
    let held = !hugetlb && hold_granules(first, granules);
    let moved = if held { move_all(old, bytes, target, 0, false) } else { Err(bytes) };
    if let Err(moved) = moved {
        // SAFETY: the reserve belongs to nobody.
        unsafe { raw::munmap(old, bytes) };
        if moved < bytes {
            // SAFETY: held by this call.
            unsafe { raw::munmap(target + moved, bytes - moved) };
        }
    }
    give_back(taken, granules);
    moved.is_ok()
}

fn map_huge(address: usize, bytes: usize) -> bool {
    !raw::failed(raw::map_new(address, bytes, READ_WRITE, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB))
}

/// Unmaps the pages that lie wholly above `address`. As in the kernel, what the last page keeps above the break has its
/// bytes and its protection still.
fn lower(address: usize, old: usize) {
    let page = address.next_multiple_of(PAGE);
    if page < old {
        unmap_granules((page - base()).div_ceil(GRANULE).max(1));
        unmap_above(page);
        discard_above(page);
    }
}

/// Unmaps the granules of the heap from `kept` on.
fn unmap_granules(kept: usize) {
    let (start, mapped) = (address_of(kept), MAPPED.load(SeqCst));
    if start < mapped && !raw::failed(munmap(start, mapped - start)) {
        // The heap has the last granule to its end, mapped or not.
        release(mapped, mapped.next_multiple_of(GRANULE) - mapped);
        MAPPED.store(start, SeqCst);
    }
}

/// Unmaps, to the page, what is mapped above `page` in the heap's last granule.
fn unmap_above(page: usize) {
    let mapped = MAPPED.load(SeqCst);
    if page < mapped {
        make_ordinary(page, mapped - page, PlacementReason::DemotedByCall);
        // SAFETY: the program gave these pages up; what is mapped above its break is slack.
        if !raw::failed(unsafe { raw::munmap(page, mapped - page) }) {
            MAPPED.store(page, SeqCst);
        }
    }
}

/// Makes pages that could not be unmapped read as zeroes when the heap grows over them.
fn discard_above(page: usize) {
    let mapped = MAPPED.load(SeqCst);
    if page < mapped {
        madvise(page, mapped - page, libc::MADV_DONTNEED);
    }
}

/// Unmaps what is mapped ahead of the break.
pub(crate) fn drop_slack() {
    unmap_above(BREAK.load(SeqCst).next_multiple_of(PAGE));
}
