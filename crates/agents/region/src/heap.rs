//! The program's heap: what libc asks of `brk`, at the bottom of the region.
//!
//! The heap is mapped to the end of its last granule, ahead of the break, so that huge pages fit; its first granule
//! stays on small pages. A lowered break unmaps what is above it, to the page; a hugetlb page that keeps a part is
//! moved to transparent pages first. `brk` has one caller at a time by its nature (`sbrk` reads, then sets).

#![allow(unsafe_code, reason = "maps, unmaps and zeroes the heap")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{Outside, PageKind};

use crate::calls::munmap;
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

/// The address at which the heap begins.
pub(crate) fn start() -> usize {
    BREAK.store(base(), SeqCst);
    MAPPED.store(base(), SeqCst);
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

/// Maps until `address` is covered: what an earlier lowering left of the last granule, then whole granules. To the page
/// where placement is exact.
fn reach(address: usize) -> bool {
    let mapped = MAPPED.load(SeqCst);
    if address <= mapped {
        return true;
    }
    let _mapping = Mapping::begin();
    let end = address.next_multiple_of(if is_exact() { PAGE } else { GRANULE });
    let mut next = (mapped - base()).div_ceil(GRANULE);
    if mapped < address_of(next) {
        let rest = address_of(next).min(end);
        if !back_rest(mapped, rest) {
            return false;
        }
        MAPPED.store(rest, SeqCst);
    }
    let wanted = (address - base()).div_ceil(GRANULE);
    while next < wanted {
        // The first granule is not like the others.
        let count = if next == 0 { 1 } else { wanted - next };
        let bytes = address_of(next + count).min(end) - address_of(next);
        if TABLE.claim_at(State::Free, next, count).is_err() || !back(next, count, bytes) {
            return false;
        }
        MAPPED.store(address_of(next) + bytes, SeqCst);
        next += count;
    }
    true
}

/// Maps what a lowered break unmapped of a granule that is still the heap's.
fn back_rest(start: usize, end: usize) -> bool {
    let mapped = !raw::failed(raw::map_new(start, end - start, READ_WRITE, 0));
    if mapped && start > address_of(1) {
        settle(start, end - start, READ_WRITE);
    }
    mapped
}

/// Maps the first `bytes` of claimed granules.
fn back(first: usize, granules: usize, bytes: usize) -> bool {
    let address = address_of(first);
    let whole = first > 0 && bytes == granules * GRANULE;
    if whole && take_reserve(first, granules) {
        settle_anew(address, bytes);
        return true;
    }
    if whole && kind() == PageKind::Hugetlb2m {
        if map_huge(address, bytes) && huge::own(first, granules, State::Huge) {
            populate_huge(address, bytes);
            return true;
        }
        count(Outside::PoolEmpty, bytes);
    }
    if raw::failed(raw::map_new(address, bytes, READ_WRITE, 0)) {
        give_back(first, granules);
        return false;
    }
    if first > 0 || kind() != PageKind::Thp {
        settle(address, bytes, READ_WRITE);
    } else {
        advise(address, bytes, false);
    }
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

/// Unmaps what lies between `address` and the old break.
fn lower(address: usize, old: usize) {
    let kept = (address - base()).div_ceil(GRANULE).max(1);
    let mapped = MAPPED.load(SeqCst);
    if mapped > address_of(kept) {
        munmap(address_of(kept), mapped - address_of(kept));
        // The heap has the last granule to its end, mapped or not.
        release(mapped, mapped.next_multiple_of(GRANULE) - mapped);
        MAPPED.store(address_of(kept), SeqCst);
    }
    if address.next_multiple_of(PAGE) < old {
        unmap_above(address);
    }
    zero(address, old.min(MAPPED.load(SeqCst)));
}

/// Unmaps, to the page, what is mapped above `address` in the heap's last granule.
fn unmap_above(address: usize) {
    let (page, mapped) = (address.next_multiple_of(PAGE), MAPPED.load(SeqCst));
    if page < mapped {
        make_ordinary(page, mapped - page, Outside::DemotedByCall);
        // SAFETY: the program gave these pages up; what is mapped above its break is slack.
        if !raw::failed(unsafe { raw::munmap(page, mapped - page) }) {
            MAPPED.store(page, SeqCst);
        }
    }
}

/// Unmaps what is mapped ahead of the break.
pub(crate) fn drop_slack() {
    unmap_above(BREAK.load(SeqCst));
}

/// Makes heap that was given up, and that stays mapped, read as zeroes again.
fn zero(start: usize, end: usize) {
    let start_address = core::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: mapped heap above the new break; it is writable unless the program protected it, and then lowering the
    // break into it is the program's own fault.
    unsafe { core::ptr::write_bytes(start_address, 0, end.saturating_sub(start)) };
}
