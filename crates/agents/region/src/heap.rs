//! The program's heap: what libc asks of `brk`, at the bottom of the region.
//!
//! The heap is mapped a granule at a time, ahead of the break, so that huge pages fit; its first granule stays on
//! small pages. Memory above a lowered break goes back in whole granules; the rest of the last granule is zeroed,
//! since a raised break promises zeroes. `brk` has one caller at a time by its nature (`sbrk` reads, then sets).

#![allow(unsafe_code, reason = "maps, unmaps and zeroes the heap")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{Outside, PageKind};

use crate::demote::Mapping;
use crate::place::{READ_WRITE, own_huge, populate, retire, settle};
use crate::raw;
use crate::state::{TABLE, address_of, base, count, count_served, granule_of, kind, limit};
use crate::table::{GRANULE, PAGE, State};

static BREAK: AtomicUsize = AtomicUsize::new(0);
/// Granules mapped, from the region's base.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The address at which the heap begins.
pub(crate) fn start() -> usize {
    BREAK.store(base(), SeqCst);
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

/// Maps granules until `address` is covered.
fn reach(address: usize) -> bool {
    let wanted = (address - base()).div_ceil(GRANULE);
    let mapped = MAPPED.load(SeqCst);
    if wanted <= mapped {
        return true;
    }
    // Each granule is claimed in the state that it idles in; a run of equal ones is mapped by one call.
    let mut next = mapped;
    while next < wanted {
        let idle = TABLE.state(next);
        let mut end = next + 1;
        while end < wanted && next > 0 && TABLE.state(end) == idle {
            end += 1;
        }
        let claimable = matches!(idle, State::Free | State::Reserved | State::ReservedHuge);
        if !claimable || TABLE.claim_at(idle, next, end - next).is_err() || !back(next, end - next, idle) {
            return false;
        }
        next = end;
        MAPPED.store(next, SeqCst);
    }
    true
}

/// Maps claimed granules, unless the reserve did.
fn back(first: usize, granules: usize, idle: State) -> bool {
    let (address, bytes) = (address_of(first), granules * GRANULE);
    match idle {
        State::Reserved => return true,
        State::ReservedHuge => return own_huge(first, granules, State::Huge),
        _ => {}
    }
    let _mapping = Mapping::begin();
    if first > 0 && kind() == PageKind::Hugetlb2m {
        if map_huge(address, bytes) && own_huge(first, granules, State::Huge) {
            populate(address, bytes, READ_WRITE);
            return true;
        }
        count(Outside::PoolEmpty, bytes);
    }
    // SAFETY: NOREPLACE never takes the place of a mapping.
    let result = unsafe { raw::map_anonymous(address, bytes, READ_WRITE, libc::MAP_FIXED_NOREPLACE) };
    if raw::failed(result) {
        (first..first + granules).for_each(|granule| TABLE.free(granule, State::Free));
        return false;
    }
    if first > 0 || kind() != PageKind::Thp {
        settle(address, bytes, READ_WRITE);
    } else {
        // SAFETY: changes no contents.
        unsafe { raw::madvise(address, bytes, libc::MADV_NOHUGEPAGE) };
    }
    true
}

fn map_huge(address: usize, bytes: usize) -> bool {
    let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: NOREPLACE never takes the place of a mapping.
    !raw::failed(unsafe { raw::map_anonymous(address, bytes, READ_WRITE, flags) })
}

/// Gives back what lies between `address` and the old break.
fn lower(address: usize, old: usize) {
    let kept = (address - base()).div_ceil(GRANULE).max(1);
    let mapped = MAPPED.load(SeqCst);
    for granule in kept..mapped {
        // SAFETY: the program gave up everything from `address` on.
        unsafe { raw::munmap(address_of(granule), GRANULE) };
        retire(granule);
    }
    if kept < mapped {
        MAPPED.store(kept, SeqCst);
    }
    clear(address, old.min(address_of(kept)));
}

/// Makes `start..end`, inside one granule of the heap, read as zeroes again.
fn clear(start: usize, end: usize) {
    if start >= end {
        return;
    }
    let mut zeroed_to = end;
    if !TABLE.state(granule_of(start)).is_hugetlb() {
        let pages = start.next_multiple_of(PAGE);
        if pages < end {
            // SAFETY: the program gave these pages up.
            unsafe { raw::madvise(pages, end.next_multiple_of(PAGE) - pages, libc::MADV_DONTNEED) };
        }
        zeroed_to = end.min(pages);
    }
    // SAFETY: mapped heap that the program gave up; the heap is readable and writable unless the program protected
    // a part of it, and then lowering the break through it is its own fault.
    unsafe { core::ptr::write_bytes(core::ptr::with_exposed_provenance_mut::<u8>(start), 0, zeroed_to - start) };
}
