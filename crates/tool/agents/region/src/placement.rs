//! Allocates memory of the region: chooses the addresses and the page kind.
//!
//! - A request of at least one granule gets its own granules. If more than half of its last,
//!   partial granule is requested, that granule is mapped as a whole, so that a huge page covers
//!   it; otherwise only the requested pages are.
//! - A smaller request shares a granule: see [`crate::small`].
//! - Hugetlb pages serve requests of at least one granule only: smaller ones are freed page by
//!   page, which hugetlb pages do not support.

#![allow(unsafe_code, reason = "maps and unmaps addresses that the table says are the caller's")]

use fieldstone_wire::{PageKind, PlacementReason};

use crate::bits::{self, PAGES};
use crate::migration::HugetlbMappingGuard;
use crate::raw::{self, OCCUPIED, RawResult};
use crate::state::{
    TABLE, address_of, base, claim_reserve, contains, count, granule_of, is_exact, is_huge_granule,
    is_hugetlb_forbidden, is_mosaic, is_prefault, kind, limit, overlaps, page_of, reenables_huge_pages, reserve,
    shrink_reserve,
};
use crate::table::{GIANT, GRANULE, GranuleState, PAGE, PageBits};
use crate::{hugetlb, small};

/// Read and write: the only protection that the region serves, beside none.
pub(crate) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Flags of the caller that are passed to the kernel.
const KERNEL_FLAGS: i32 = libc::MAP_NORESERVE | libc::MAP_POPULATE | libc::MAP_LOCKED | libc::MAP_NONBLOCK;

/// Granules in 64 MiB, the alignment of glibc's arenas.
const ARENA_GRANULES: usize = 32;

/// Bytes kept free below a stack that grows down: the usual limit of a stack.
const STACK_GROWTH: usize = 8 << 20;

/// Maps `bytes` (whole pages) with `prot` in the region.
///
/// # Errors
/// A negated errno: the kernel's, or `-ENOSPC` when no address range of the region is free.
pub(crate) fn map(bytes: usize, prot: i32, flags: i32) -> RawResult {
    if is_exact() {
        count(PlacementReason::Exact, bytes);
    }
    let stack = flags & libc::MAP_STACK != 0;
    let flags = flags & KERNEL_FLAGS;
    if stack {
        return map_stack(bytes, prot, flags);
    }
    if bytes < GRANULE {
        return small::map(bytes / PAGE, flags);
    }
    if prot == READ_WRITE {
        let _guard = HugetlbMappingGuard::begin();
        let hugetlb = match kind() {
            PageKind::Hugetlb1g if bytes >= GIANT * GRANULE => hugetlb::map(bytes, flags, GranuleState::Giant),
            PageKind::Hugetlb2m => hugetlb::map(bytes, flags, GranuleState::Huge),
            _ => None,
        };
        if let Some(address) = hugetlb {
            return address;
        }
    }
    if is_hugetlb_forbidden() {
        count(PlacementReason::NoUserfault, bytes);
    }
    map_large(bytes, prot, flags)
}

/// Requests the page kind for memory that was just mapped, and touches it with `--prefault`.
pub(crate) fn apply_page_kind(address: usize, bytes: usize, prot: i32) {
    if is_mosaic() && contains(address) {
        apply_mosaic(address, bytes);
    } else {
        advise(address, bytes, kind() != PageKind::Small4k);
    }
    populate(address, bytes, prot);
}

/// Requests the page kind again for memory that grew or moved. Its advice moved along; in a mosaic
/// the new place may need other advice, for the pages not yet touched.
pub(crate) fn reapply_page_kind(address: usize, bytes: usize) {
    if is_mosaic() {
        apply_mosaic(address, bytes);
    }
}

/// Advises a range of the region, with one call for adjacent granules of equal advice.
fn apply_mosaic(address: usize, bytes: usize) {
    let all = granules(address, bytes);
    let mut first = all.start;
    while first < all.end {
        let is_huge = is_huge_granule(first);
        let end = (first..all.end).find(|&granule| is_huge_granule(granule) != is_huge).unwrap_or(all.end);
        let start = address_of(first).max(address);
        advise(start, address_of(end).min(address + bytes) - start, is_huge);
        first = end;
    }
}

/// Requests huge pages, or small pages if not `huge`.
pub(crate) fn advise(address: usize, bytes: usize, huge: bool) {
    if huge && reenables_huge_pages() {
        // SAFETY: the call changes a flag of this process and no memory contents.
        unsafe { raw::syscall(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as usize, 0, 0, 0, 0, 0]) };
    }
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: neither advice changes contents; if the kernel refuses, the pages stay small.
    unsafe { raw::madvise(address, bytes, advice) };
}

/// Touches the pages of a mapping with `--prefault`, unless that takes more than half of the free
/// memory: the kernel would kill the program for pages that it may never use.
pub(crate) fn populate(address: usize, bytes: usize, prot: i32) {
    if is_prefault() && !is_exact() && prot == READ_WRITE && (bytes <= GRANULE || bytes < free_bytes() / 2) {
        touch(address, bytes);
    }
}

/// Touches the pages of the reserve with `--prefault`, up to 7/8 of the available memory. Returns
/// the untouched bytes.
pub(crate) fn populate_reserve(address: usize, bytes: usize) -> usize {
    if !is_prefault() {
        return 0;
    }
    let available = raw::available_bytes().unwrap_or_else(free_bytes);
    let touched = bytes.min(available / 8 * 7 / GRANULE * GRANULE);
    touch(address, touched);
    bytes - touched
}

/// Touches hugetlb pages with `--prefault`. The pool reserved them when they were mapped.
pub(crate) fn populate_huge(address: usize, bytes: usize) {
    if is_prefault() {
        touch(address, bytes);
    }
}

/// Touches pages. Hugetlb pages have to be touched before they move: when a part of a mapping
/// moves, the kernel loses the reservations of its untouched pages, and the pool misses them until
/// the next boot.
pub(crate) fn touch(address: usize, bytes: usize) {
    // SAFETY: populating keeps contents; if it fails, the pages are touched at first use.
    unsafe { raw::madvise(address, bytes, libc::MADV_POPULATE_WRITE) };
}

fn free_bytes() -> usize {
    let info = raw::sysinfo();
    (info.freeram as usize).saturating_mul(info.mem_unit as usize)
}

fn map_large(bytes: usize, prot: i32, flags: i32) -> RawResult {
    let whole = bytes / GRANULE;
    let tail = bytes % GRANULE / PAGE;
    let count = whole + usize::from(tail > 0);
    if prot == READ_WRITE
        && let Some(first) = claim_reserve(GranuleState::Reserved, count)
    {
        open_tail(first + whole, tail, true);
        return address_of(first).cast_signed();
    }
    // libc trims the reservations of its arenas to a multiple of 64 MiB: an aligned one needs no
    // trimming.
    let align = if prot == libc::PROT_NONE && count >= ARENA_GRANULES { ARENA_GRANULES } else { 1 };
    let rounds_up = tail > PAGES / 2 && prot == READ_WRITE && !is_exact();
    let mut mapped = 0;
    let first = map_granules(count, align, |address| {
        let sizes = if rounds_up { [count * GRANULE, bytes] } else { [bytes; 2] };
        map_first_allowed(address, &sizes, prot, flags).inspect(|&size| mapped = size).map_or_else(|errno| errno, |_| 0)
    });
    let first = match first {
        Ok(first) => first,
        Err(errno) => return errno,
    };
    open_tail(first + whole, tail, mapped > bytes);
    // A mapping that is sparse by intention is not touched ahead.
    let sparse = flags & libc::MAP_NORESERVE != 0;
    apply_page_kind(address_of(first), mapped, if sparse { libc::PROT_NONE } else { prot });
    address_of(first).cast_signed()
}

/// Maps the first of two sizes that the limits allow, over no existing mapping. Returns the size.
fn map_first_allowed(address: usize, sizes: &[usize; 2], prot: i32, flags: i32) -> Result<usize, RawResult> {
    let mut result = 0;
    for &bytes in sizes {
        result = raw::map_new(address, bytes, prot, flags);
        if !raw::failed(result) {
            return Ok(bytes);
        }
        if result == OCCUPIED || sizes[0] == sizes[1] {
            break;
        }
    }
    Err(result)
}

/// Maps a stack so that it *ends* at a granule boundary, where it is used first. Never on hugetlb
/// pages: libc protects its guard and frees parts of it page by page.
fn map_stack(bytes: usize, prot: i32, flags: i32) -> RawResult {
    let count = bytes.div_ceil(GRANULE);
    let (below, head) = (count - bytes / GRANULE, bytes % GRANULE / PAGE);
    let offset = count * GRANULE - bytes;
    let first = match map_granules(count, 1, |start| raw::map_new(start + offset, bytes, prot, flags)) {
        Ok(first) => first,
        Err(errno) => return errno,
    };
    if below > 0
        && let Some(pages) = TABLE.pages(first)
    {
        TABLE.open_split(first, pages, PAGES - head, head, false);
    }
    let address = address_of(first) + offset;
    apply_page_kind(address, bytes, prot);
    address.cast_signed()
}

/// Claims `count` free granules, the first at a multiple of `align`, and calls `map` to map in them
/// without replacing a mapping. If they are occupied, one occupied granule stays claimed and the
/// next ones are tried. Returns the first.
///
/// # Errors
/// A negated errno: that of `map`, or `-ENOSPC` if no addresses are left. Then nothing is claimed.
pub(crate) fn map_granules(
    count: usize,
    align: usize,
    mut map: impl FnMut(usize) -> RawResult,
) -> Result<usize, RawResult> {
    loop {
        let first = TABLE.claim_free(count, align).ok_or(-(libc::ENOSPC as RawResult))?;
        match map(address_of(first)) {
            OCCUPIED => skip_occupied(first, count),
            errno if raw::failed(errno) => {
                free_granules(first, count);
                return Err(errno);
            }
            _ => return Ok(first),
        }
    }
}

/// Frees claimed granules except the lowest that holds a mapping unknown to the agent. The region
/// holds few of those, and each is found once.
fn skip_occupied(first: usize, count: usize) {
    let (mut low, mut high) = (first, first + count);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if is_free(address_of(low), (middle - low) * GRANULE) { low = middle } else { high = middle }
    }
    free_granules(first, low - first);
    free_granules(low + 1, first + count - low - 1);
}

/// Whether nothing is mapped in a range, as far as the limits allow to test it.
pub(crate) fn is_free(address: usize, bytes: usize) -> bool {
    let occupied = occupy_range(address, bytes);
    if !raw::failed(occupied) {
        // SAFETY: this function mapped the range just now, over no existing mapping.
        unsafe { raw::munmap(address, bytes) };
    }
    occupied != OCCUPIED
}

/// Maps inaccessible memory over no existing mapping.
fn occupy_range(address: usize, bytes: usize) -> RawResult {
    raw::map_new(address, bytes, libc::PROT_NONE, libc::MAP_NORESERVE)
}

/// Frees claimed granules that hold no mapping of the agent.
pub(crate) fn free_granules(first: usize, count: usize) {
    for granule in first..first + count {
        TABLE.free(granule);
    }
}

/// Unmaps the unused granules of the reserve in state `unused`.
pub(crate) fn drop_reserve(unused: GranuleState) {
    for granule in reserve() {
        if TABLE.change_state(granule, unused, GranuleState::Busy) {
            // SAFETY: the granule was unused reserve and is Busy now, so only this thread uses it.
            unsafe { raw::munmap(address_of(granule), GRANULE) };
            TABLE.free(granule);
            shrink_reserve(1);
        }
    }
}

/// Marks the first `tail` pages of the claimed last granule as used and leaves the others to small
/// requests, as slack if the granule is mapped as a whole.
pub(crate) fn open_tail(granule: usize, tail: usize, is_mapped_whole: bool) {
    if tail == 0 {
        return;
    }
    if let Some(pages) = TABLE.pages(granule) {
        TABLE.open_split(granule, pages, 0, tail, is_mapped_whole);
    }
}

/// Claims addresses for `bytes` that will move there, and occupies them by an inaccessible mapping:
/// mremap(2) replaces any mapping at its target. `None` if the kernel or the table refuses.
pub(crate) fn occupy(bytes: usize) -> Option<usize> {
    if bytes < GRANULE {
        return small::occupy(bytes / PAGE);
    }
    let (whole, tail) = (bytes / GRANULE, bytes % GRANULE / PAGE);
    let first = map_granules(whole + usize::from(tail > 0), 1, |address| occupy_range(address, bytes)).ok()?;
    open_tail(first + whole, tail, false);
    Some(address_of(first))
}

/// Occupies claimed granules as [`occupy`] does.
pub(crate) fn occupy_granules(first: usize, count: usize) -> bool {
    !raw::failed(occupy_range(address_of(first), count * GRANULE))
}

/// Reverts [`occupy`] after a failed move. The first `moved` bytes had moved there, and have moved
/// back.
pub(crate) fn release_target(address: usize, bytes: usize, moved: usize) {
    // SAFETY: `occupy` mapped this range, and no caller has received it.
    unsafe { raw::munmap(address + moved, bytes - moved) };
    release(address, bytes);
}

/// The part of a range in `granule`: first page and number of pages, zero if there is none.
pub(crate) fn pages_in(granule: usize, address: usize, bytes: usize) -> (usize, usize) {
    let start = address.max(address_of(granule));
    let end = (address + bytes).min(address_of(granule) + GRANULE);
    (page_of(start), end.saturating_sub(start).div_ceil(PAGE))
}

/// The granules of the region that a range overlaps.
pub(crate) fn granules(address: usize, bytes: usize) -> core::ops::Range<usize> {
    if bytes == 0 || !overlaps(address, bytes) {
        return 0..0;
    }
    let first = granule_of(address.max(base()));
    let last = granule_of((address + bytes).min(limit()) - 1);
    first..last + 1
}

/// Records that the kernel unmapped a range. Hugetlb granules in it are left to the caller.
pub(crate) fn release(address: usize, bytes: usize) {
    for granule in granules(address, bytes) {
        let (first, count) = pages_in(granule, address, bytes);
        match TABLE.state(granule) {
            GranuleState::Whole if count == PAGES => TABLE.free(granule),
            GranuleState::Whole | GranuleState::Split => small::release(granule, first, count),
            _ => {}
        }
    }
}

/// Records that the program itself made a mapping at addresses of the region.
pub(crate) fn record_foreign_mapping(address: usize, bytes: usize) {
    for granule in granules(address, bytes) {
        let (first, count) = pages_in(granule, address, bytes);
        let Some(pages) = TABLE.pages(granule) else { continue };
        let reserved = TABLE.claim_at(GranuleState::Reserved, granule, 1).is_ok();
        if reserved || TABLE.claim_at(GranuleState::Free, granule, 1).is_ok() {
            if count < PAGES {
                TABLE.open_split(granule, pages, first, count, reserved);
            }
        } else if TABLE.state(granule) == GranuleState::Split {
            bits::set(&pages.used, first, count);
            bits::clear(&pages.spare, first, count);
        }
    }
}

/// Makes a busy granule Split after a copy on ordinary pages replaced its hugetlb page, and unmaps
/// its spare pages.
pub(crate) fn split_after_migration(granule: usize, pages: &PageBits) {
    small::unmap_set(granule, &pages.spare, 0, PAGES);
    TABLE.split_hugetlb(granule, pages);
}

/// Keeps free addresses below a mapping that grows down (`MAP_GROWSDOWN`): the kernel places no
/// mapping of its choice near such a stack, and cannot grow it to within 1 MiB of another. These
/// addresses are never used again.
pub(crate) fn keep_free_below(address: usize) {
    let below = address.saturating_sub(STACK_GROWTH).max(base());
    for granule in granules(below, address - below) {
        if TABLE.claim_at(GranuleState::Free, granule, 1).is_err()
            && TABLE.state(granule) == GranuleState::Split
            && let Some(pages) = TABLE.pages(granule)
        {
            let (first, count) = pages_in(granule, below, address - below);
            bits::runs(&pages.spare, first, count).filter(|run| !run.2).for_each(|(first, count, _)| {
                bits::set(&pages.used, first, count);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::GRANULES;

    #[test]
    fn a_range_has_a_part_in_each_of_its_granules() {
        let (start, bytes) = (address_of(3) + 5 * PAGE, 2 * GRANULE);
        assert_eq!(granules(start, bytes), 3..6);
        assert_eq!(pages_in(3, start, bytes), (5, PAGES - 5));
        assert_eq!(pages_in(4, start, bytes), (0, PAGES));
        assert_eq!(pages_in(5, start, bytes), (0, 5));
        assert_eq!(pages_in(5, start, bytes + 1), (0, 6), "a page that is begun counts");
        assert_eq!(pages_in(6, start, bytes).1, 0);
        assert_eq!(pages_in(2, start, bytes).1, 0);
    }

    #[test]
    fn a_range_is_cut_to_the_region() {
        assert_eq!(granules(address_of(7), 0), 0..0);
        assert_eq!(granules(limit() - PAGE, 8 * GRANULE), GRANULES - 1..GRANULES);
        assert_eq!(granules(limit(), GRANULE), 0..0);
        assert_eq!(granules(address_of(2), GRANULE), 2..3, "the next granule is not touched");
        assert_eq!(granules(address_of(2), usize::MAX), 0..0, "the kernel refuses such a range");
    }
}
