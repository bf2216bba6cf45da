//! The heap of `brk`, at the bottom of the region.
//!
//! ```text
//! base                      break      end of its granule
//! | granule on small pages | used ... | mapped ahead |
//! ```
//! The heap is mapped to the end of its last granule, ahead of the break, so that huge pages fit.
//! Its first granule stays on small pages, and stays the heap's if the break is lowered to its
//! start. Lowering the break unmaps the pages above it; a hugetlb page of which a part remains is
//! moved to transparent pages first.
//!
//! Invariants: the agent never writes to the heap, since the program may have protected it. `brk`
//! has one caller at a time (`sbrk` reads, then sets).

#![allow(unsafe_code, reason = "maps and unmaps the heap")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{PageKind, PlacementReason};

use crate::calls::{madvise, munmap};
use crate::hugetlb;
use crate::migration::{HugetlbMappingGuard, make_ordinary};
use crate::multi_mapping::move_mappings;
use crate::placement::{
    READ_WRITE, advise, apply_page_kind, free_granules, occupy_granules, populate_huge, reapply_page_kind, release,
};
use crate::raw;
use crate::state::{TABLE, address_of, base, claim_reserve, count, count_served, is_exact, kind, limit};
use crate::table::{GRANULE, GranuleState, PAGE};

static BREAK: AtomicUsize = AtomicUsize::new(0);
/// The first address above the mapped part.
static MAPPED_END: AtomicUsize = AtomicUsize::new(0);

/// Claims the first granule for the heap permanently. Returns the address at which the heap starts.
pub(crate) fn start() -> usize {
    BREAK.store(base(), SeqCst);
    MAPPED_END.store(base(), SeqCst);
    // On failure there is no memory for the table, and each brk(2) beyond this granule fails too.
    let _ = TABLE.claim_at(GranuleState::Free, 0, 1);
    base()
}

/// `brk(2)`: returns the new break, or the old one on failure.
pub(crate) fn brk(address: usize) -> usize {
    let current = BREAK.load(SeqCst);
    if !(base()..limit()).contains(&address) || !map_up_to(address) {
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

/// Maps until `address` is covered: to the end of its granule; to the end of its page with exact
/// placement, or if a limit or another mapping leaves no more.
fn map_up_to(address: usize) -> bool {
    if address <= MAPPED_END.load(SeqCst) {
        return true;
    }
    let _guard = HugetlbMappingGuard::begin();
    (!is_exact() && map_to(address.next_multiple_of(GRANULE))) || map_to(address.next_multiple_of(PAGE))
}

/// Maps to `end`: the rest of the last granule of the heap, then whole granules.
fn map_to(end: usize) -> bool {
    let mapped = MAPPED_END.load(SeqCst);
    // The first granule belongs to the heap even if nothing of it is mapped.
    let next = (mapped - base()).div_ceil(GRANULE).max(1);
    let rest_end = address_of(next).min(end);
    if mapped < rest_end {
        if !map_rest(mapped, rest_end) {
            return false;
        }
        MAPPED_END.store(rest_end, SeqCst);
    }
    let wanted = (end - base()).div_ceil(GRANULE);
    if next < wanted {
        let (granules, bytes) = (wanted - next, end - address_of(next));
        if TABLE.claim_at(GranuleState::Free, next, granules).is_err() || !map_granules(next, granules, bytes) {
            return false;
        }
        MAPPED_END.store(end, SeqCst);
    }
    true
}

/// Maps a part of a granule of the heap: of the first one, or of one that lowering the break has
/// unmapped.
fn map_rest(start: usize, end: usize) -> bool {
    if raw::failed(raw::map_new(start, end - start, READ_WRITE, 0)) {
        return false;
    }
    if start < address_of(1) && kind() == PageKind::Thp {
        advise(start, end - start, false);
    } else {
        apply_page_kind(start, end - start, READ_WRITE);
    }
    true
}

/// Maps the first `bytes` of claimed granules. Frees the granules on failure.
fn map_granules(first: usize, granules: usize, bytes: usize) -> bool {
    let address = address_of(first);
    let is_whole = bytes == granules * GRANULE;
    if is_whole && move_from_reserve(first, granules) {
        reapply_page_kind(address, bytes);
        return true;
    }
    if is_whole && kind() == PageKind::Hugetlb2m {
        if map_huge(address, bytes) && hugetlb::set_full(first, granules, GranuleState::Huge) {
            populate_huge(address, bytes);
            return true;
        }
        count(PlacementReason::PoolEmpty, bytes);
    }
    if raw::failed(raw::map_new(address, bytes, READ_WRITE, 0)) {
        free_granules(first, granules);
        return false;
    }
    apply_page_kind(address, bytes, READ_WRITE);
    true
}

/// Moves granules of the reserve to the heap; their old addresses are not used again. Transparent
/// pages move with their contents. Hugetlb pages return to the pool instead, from which the heap
/// takes as many: moving a part of a mapping would lose the reservations of its untouched pages
/// permanently.
fn move_from_reserve(first: usize, granules: usize) -> bool {
    let hugetlb = kind() == PageKind::Hugetlb2m;
    let from = if hugetlb { GranuleState::ReservedHuge } else { GranuleState::Reserved };
    let Some(claimed) = claim_reserve(from, granules) else { return false };
    let (old, bytes) = (address_of(claimed), granules * GRANULE);
    let target = address_of(first);
    let is_occupied = !hugetlb && occupy_granules(first, granules);
    let moved = if is_occupied { move_mappings(old, bytes, target, 0, false) } else { Err(bytes) };
    if let Err(moved) = moved {
        // SAFETY: the granules were unused reserve, and this thread claimed them.
        unsafe { raw::munmap(old, bytes) };
        if moved < bytes {
            // SAFETY: this call mapped the target, except the bytes that moved and came back.
            unsafe { raw::munmap(target + moved, bytes - moved) };
        }
    }
    free_granules(claimed, granules);
    moved.is_ok()
}

fn map_huge(address: usize, bytes: usize) -> bool {
    !raw::failed(raw::map_new(address, bytes, READ_WRITE, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB))
}

/// Unmaps the pages completely above `address`. As in the kernel, the last page keeps its contents
/// and protection above the break.
fn lower(address: usize, old: usize) {
    let page = address.next_multiple_of(PAGE);
    if page < old {
        unmap_granules((page - base()).div_ceil(GRANULE).max(1));
        unmap_pages_above(page);
        discard_pages_above(page);
    }
}

/// Unmaps the granules of the heap from `kept` on.
fn unmap_granules(kept: usize) {
    let (start, mapped) = (address_of(kept), MAPPED_END.load(SeqCst));
    if start < mapped && !raw::failed(munmap(start, mapped - start)) {
        // The last granule belongs to the heap up to its end, mapped or not.
        release(mapped, mapped.next_multiple_of(GRANULE) - mapped);
        MAPPED_END.store(start, SeqCst);
    }
}

/// Unmaps the mapped pages above `page` in the last granule of the heap.
fn unmap_pages_above(page: usize) {
    let mapped = MAPPED_END.load(SeqCst);
    if page < mapped {
        make_ordinary(page, mapped - page, PlacementReason::DemotedByCall);
        // SAFETY: the program lowered its break below these pages; the rest above the break is
        // slack.
        if !raw::failed(unsafe { raw::munmap(page, mapped - page) }) {
            MAPPED_END.store(page, SeqCst);
        }
    }
}

/// Discards the contents of pages that could not be unmapped, so that they read as zeroes when the
/// heap grows again.
fn discard_pages_above(page: usize) {
    let mapped = MAPPED_END.load(SeqCst);
    if page < mapped {
        madvise(page, mapped - page, libc::MADV_DONTNEED);
    }
}

/// Unmaps the pages above the break.
pub(crate) fn drop_slack() {
    unmap_pages_above(BREAK.load(SeqCst).next_multiple_of(PAGE));
}
