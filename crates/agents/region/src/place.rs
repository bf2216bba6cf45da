//! Giving memory from the region: which addresses, on which pages.
//!
//! - A request of at least one granule gets granules of its own. Its last, partial granule is mapped whole when more
//!   than half of it is wanted (a huge page then covers it), else to the page.
//! - A smaller request shares a granule that is mapped whole when it is opened, so that neighbours together get a
//!   huge page where each alone could not. The first of these granules stays on small pages: a small program pays
//!   nothing for huge pages it would not fill.
//! - Hugetlb pages serve requests of at least one granule only; everything smaller is freed in pages, which they
//!   cannot bear.

#![allow(unsafe_code, reason = "maps and unmaps addresses that the table says are the caller's")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{Outside, PageKind};

use crate::bits::{self, PAGES};
use crate::demote::Mapping;
use crate::huge;
use crate::raw::{self, Raw};
use crate::state::{
    TABLE, address_of, base, contains, count, granule_of, huge_pages_enabled, hugetlb_forbidden, is_mosaic, is_picked,
    kind, limit, map_chunk, page_of, prefault, reserve, touches,
};
use crate::table::{GIANT, GRANULE, GRANULES, PAGE, State};

/// Read and write: the only protection that is served beside "none yet".
pub(crate) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Flags of the caller that pass through to the kernel.
const KEPT_FLAGS: i32 = libc::MAP_NORESERVE | libc::MAP_POPULATE | libc::MAP_LOCKED | libc::MAP_NONBLOCK;

/// Granules of 64 MiB, to which glibc aligns its arenas.
const ARENA_GRANULES: usize = 32;

/// The Split granule that served last, tried first.
static LAST_OPEN: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Gives `bytes` (whole pages) with `prot` from the region.
///
/// # Errors
/// A negated errno: the kernel's, or `-ENOSPC` when no address range of the region is free.
pub(crate) fn map(bytes: usize, prot: i32, flags: i32) -> Raw {
    let stack = flags & libc::MAP_STACK != 0;
    let flags = flags & KEPT_FLAGS;
    if stack {
        return map_stack(bytes, prot, flags);
    }
    if bytes < GRANULE {
        return map_small(bytes / PAGE, flags);
    }
    if prot == READ_WRITE {
        let _mapping = Mapping::begin();
        let hugetlb = match kind() {
            PageKind::Hugetlb1g if bytes >= GIANT * GRANULE => huge::map(bytes, flags, State::Giant),
            PageKind::Hugetlb2m => huge::map(bytes, flags, State::Huge),
            _ => None,
        };
        if let Some(address) = hugetlb {
            return address;
        }
    }
    if hugetlb_forbidden() {
        count(Outside::NoUserfault, bytes);
    }
    map_large(bytes, prot, flags)
}

/// Asks the kernel for the kind of page on memory that was just mapped, and for the pages themselves with
/// `--prefault`.
pub(crate) fn settle(address: usize, bytes: usize, prot: i32) {
    if is_mosaic() && contains(address) {
        settle_mosaic(address, bytes);
    } else {
        advise(address, bytes, kind() != PageKind::Small4k);
    }
    populate(address, bytes, prot);
}

/// What grew or moved took the advice of its old place along: in a mosaic it gets that of the new one, for the pages that it
/// has not touched yet.
pub(crate) fn settle_anew(address: usize, bytes: usize) {
    if is_mosaic() {
        settle_mosaic(address, bytes);
    }
}

/// Advises a range of the region chunk by chunk: one call for neighbours that are alike.
fn settle_mosaic(address: usize, bytes: usize) {
    let all = granules(address, bytes);
    let mut first = all.start;
    while first < all.end {
        let picked = is_picked(first);
        let end = (first..all.end).find(|&granule| is_picked(granule) != picked).unwrap_or(all.end);
        let start = address_of(first).max(address);
        advise(start, address_of(end).min(address + bytes) - start, picked);
        first = end;
    }
}

/// Asks for huge pages, or for small ones.
pub(crate) fn advise(address: usize, bytes: usize, huge: bool) {
    if huge && huge_pages_enabled() {
        // SAFETY: a switch of the kernel's for this process; changes no contents.
        unsafe { raw::syscall(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as usize, 0, 0, 0, 0, 0]) };
    }
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: neither advice changes contents; a refusal (no such kernel feature) leaves small pages.
    unsafe { raw::madvise(address, bytes, advice) };
}

/// Touches the pages of a mapping now, with `--prefault`. Not where that takes more than half of the memory that is
/// free: the kernel would kill for pages that the program may never use.
pub(crate) fn populate(address: usize, bytes: usize, prot: i32) {
    if prefault() && prot == READ_WRITE && (bytes <= GRANULE || bytes < free_bytes() / 2) {
        touch(address, bytes);
    }
}

/// Touches hugetlb pages now, with `--prefault`: the pool has set them aside when they were mapped.
pub(crate) fn populate_huge(address: usize, bytes: usize) {
    if prefault() {
        touch(address, bytes);
    }
}

/// Touches pages now. Hugetlb pages have to be before they move: the kernel loses the reservations of untouched ones for
/// good when a part of their mapping moves, and the pool is the poorer by them until the next boot.
pub(crate) fn touch(address: usize, bytes: usize) {
    // SAFETY: populating keeps contents; a failure leaves the pages to be touched at use.
    unsafe { raw::madvise(address, bytes, libc::MADV_POPULATE_WRITE) };
}

fn free_bytes() -> usize {
    let info = raw::sysinfo();
    (info.freeram as usize).saturating_mul(info.mem_unit as usize)
}

fn map_large(bytes: usize, prot: i32, flags: i32) -> Raw {
    let whole = bytes / GRANULE;
    let tail = bytes % GRANULE / PAGE;
    let count = whole + usize::from(tail > 0);
    if prot == READ_WRITE
        && let Some(first) = TABLE.claim_from(State::Reserved, reserve(), count)
    {
        own_tail(first + whole, tail, true);
        return address_of(first).cast_signed();
    }
    // libc trims the reservations of its arenas to an address aligned to 64 MiB: aligned ones need no trimming.
    let align = if prot == libc::PROT_NONE && count >= ARENA_GRANULES { ARENA_GRANULES } else { 1 };
    loop {
        let Some(first) = TABLE.claim_free(count, align) else { return -(libc::ENOSPC as Raw) };
        let rounded = if tail > PAGES / 2 && prot == READ_WRITE { count * GRANULE } else { bytes };
        match map_free(address_of(first), rounded, bytes, prot, flags) {
            Ok(mapped) => {
                own_tail(first + whole, tail, mapped > bytes);
                // What is sparse by intention is not touched ahead.
                let sparse = flags & libc::MAP_NORESERVE != 0;
                settle(address_of(first), mapped, if sparse { libc::PROT_NONE } else { prot });
                return address_of(first).cast_signed();
            }
            // Something that we did not map lies there: these addresses stay claimed, the next are tried.
            Err(errno) if errno == -(libc::EEXIST as Raw) => {}
            Err(errno) => {
                give_back(first, count);
                return errno;
            }
        }
    }
}

/// Maps a stack so that it *ends* with a granule: that is where it is used first. Never on hugetlb pages: its guard and
/// what libc gives back of it are page-grained.
fn map_stack(bytes: usize, prot: i32, flags: i32) -> Raw {
    let count = bytes.div_ceil(GRANULE);
    let (below, head) = (count - bytes / GRANULE, bytes % GRANULE / PAGE);
    let Some(first) = TABLE.claim_free(count, 1) else { return -(libc::ENOSPC as Raw) };
    let address = address_of(first + count) - bytes;
    if let Err(errno) = map_free(address, bytes, bytes, prot, flags) {
        // Where something lies that is not ours, the addresses stay claimed: the next stack passes them by.
        if errno != -(libc::EEXIST as Raw) {
            give_back(first, count);
        }
        return errno;
    }
    if below > 0
        && let Some(pages) = TABLE.pages(first, map_chunk)
    {
        TABLE.open(first, pages, PAGES - head, head, false);
    }
    settle(address, bytes, prot);
    address.cast_signed()
}

/// Maps free addresses: `rounded` bytes, or only `exact` where a limit forbids more. The bytes that were mapped.
pub(crate) fn map_free(address: usize, rounded: usize, exact: usize, prot: i32, flags: i32) -> Result<usize, Raw> {
    let mut result = 0;
    for bytes in [rounded, exact] {
        // SAFETY: NOREPLACE never takes the place of a mapping.
        result = unsafe { raw::map_anonymous(address, bytes, prot, flags | libc::MAP_FIXED_NOREPLACE) };
        if !raw::failed(result) {
            return Ok(bytes);
        }
        if result == -(libc::EEXIST as Raw) {
            break;
        }
    }
    Err(result)
}

/// Gives claimed granules back that hold nothing.
pub(crate) fn give_back(first: usize, count: usize) {
    for granule in first..first + count {
        TABLE.free(granule);
    }
}

/// Marks the first `tail` pages of the claimed last granule as used and leaves the others to small requests.
pub(crate) fn own_tail(granule: usize, tail: usize, mapped_whole: bool) {
    if tail == 0 {
        return;
    }
    // Without memory for the bits the granule stays Whole: its unused addresses are lost, nothing else.
    if let Some(pages) = TABLE.pages(granule, map_chunk) {
        TABLE.open(granule, pages, 0, tail, mapped_whole);
    }
}

fn map_small(pages: usize, flags: i32) -> Raw {
    if matches!(kind(), PageKind::Hugetlb2m | PageKind::Hugetlb1g) {
        count(Outside::PageGrained, pages * PAGE);
    }
    let (granule, first) = match claim_small(pages) {
        Ok(place) => place,
        Err(errno) => return errno,
    };
    let result = back_pages(granule, first, pages, flags);
    if raw::failed(result) {
        release(address_of(granule) + first * PAGE, pages * PAGE);
    }
    result
}

/// Claims addresses for `bytes` that are moved there; what is mapped there is slack of ours or nothing.
pub(crate) fn claim(bytes: usize) -> Option<usize> {
    if bytes >= GRANULE {
        let (whole, tail) = (bytes / GRANULE, bytes % GRANULE / PAGE);
        let first = TABLE.claim_free(whole + usize::from(tail > 0), 1)?;
        own_tail(first + whole, tail, false);
        return Some(address_of(first));
    }
    let (granule, first) = claim_small(bytes / PAGE).ok()?;
    let bits = TABLE.pages(granule, map_chunk)?;
    bits::clear(&bits.spare, first, bytes / PAGE);
    Some(address_of(granule) + first * PAGE)
}

/// Claims pages of a granule that serves small requests: the last one first, then the lowest with room, then a new one.
fn claim_small(pages: usize) -> Result<(usize, usize), Raw> {
    let last = LAST_OPEN.load(SeqCst);
    let found = (last < GRANULES).then(|| TABLE.claim_pages(last..last + 1, pages, map_chunk)).flatten();
    let found = found.or_else(|| TABLE.claim_pages(0..TABLE.high(), pages, map_chunk));
    let place = match found {
        Some(place) => place,
        None => (open_granule(pages)?, 0),
    };
    LAST_OPEN.store(place.0, SeqCst);
    Ok(place)
}

/// Opens a granule for small requests and claims its first pages.
fn open_granule(pages: usize) -> Result<usize, Raw> {
    let no_space = -(libc::ENOSPC as Raw);
    let reserve = TABLE.claim_from(State::Reserved, reserve(), 1);
    let mapped = reserve.is_some();
    let granule = reserve.or_else(|| TABLE.claim_free(1, 1)).ok_or(no_space)?;
    if !mapped {
        map_free(address_of(granule), GRANULE, GRANULE, READ_WRITE, 0).inspect_err(|&errno| {
            if errno != -(libc::EEXIST as Raw) {
                give_back(granule, 1)
            }
        })?;
        if LAST_OPEN.load(SeqCst) == usize::MAX && kind() == PageKind::Thp {
            advise(address_of(granule), GRANULE, false);
        } else {
            settle(address_of(granule), GRANULE, READ_WRITE);
        }
    }
    let bits = TABLE.pages(granule, map_chunk).ok_or(no_space)?;
    TABLE.open(granule, bits, 0, pages, true);
    bits::set(&bits.spare, 0, pages);
    Ok(granule)
}

/// Makes claimed pages of a Split granule readable and writable and zero: for nothing where they are spare.
fn back_pages(granule: usize, first: usize, pages: usize, flags: i32) -> Raw {
    let address = address_of(granule) + first * PAGE;
    let Some(bits) = TABLE.pages(granule, map_chunk) else { return -(libc::ENOMEM as Raw) };
    let spare = bits::all_set(&bits.spare, first, pages);
    bits::clear(&bits.spare, first, pages);
    if spare && flags & (libc::MAP_POPULATE | libc::MAP_LOCKED) == 0 {
        return address.cast_signed();
    }
    // SAFETY: the pages were claimed by this call alone: what is mapped there is slack of ours or nothing.
    let result = unsafe { raw::map_anonymous(address, pages * PAGE, READ_WRITE, flags | libc::MAP_FIXED) };
    if !raw::failed(result) {
        settle(address, pages * PAGE, READ_WRITE);
    }
    result
}

/// The part of a range that lies in `granule`: first page and count, which is zero where there is none.
pub(crate) fn part(granule: usize, address: usize, bytes: usize) -> (usize, usize) {
    let start = address.max(address_of(granule));
    let end = (address + bytes).min(address_of(granule) + GRANULE);
    (page_of(start), end.saturating_sub(start).div_ceil(PAGE))
}

/// The granules of the region that a range touches.
pub(crate) fn granules(address: usize, bytes: usize) -> core::ops::Range<usize> {
    if bytes == 0 || !touches(address, bytes) {
        return 0..0;
    }
    let first = granule_of(address.max(base()));
    let last = granule_of((address + bytes).min(limit()) - 1);
    first..last + 1
}

/// Tells the table that the kernel unmapped a range; hugetlb granules in it are not this function's.
pub(crate) fn release(address: usize, bytes: usize) {
    for granule in granules(address, bytes) {
        let (first, count) = part(granule, address, bytes);
        match TABLE.state(granule) {
            State::Whole if count == PAGES => TABLE.free(granule),
            State::Whole | State::Split => release_pages(granule, first, count),
            _ => {}
        }
    }
}

fn release_pages(granule: usize, first: usize, count: usize) {
    let Some(pages) = TABLE.pages(granule, map_chunk) else { return };
    if TABLE.state(granule) == State::Whole && !TABLE.split(granule, pages) {
        return;
    }
    let empty = TABLE.free_pages(granule, pages, first, count);
    // The granule that serves small requests stays, lest a program that maps and unmaps in turn pays for it each time.
    if empty && LAST_OPEN.load(SeqCst) != granule && TABLE.close(granule, pages) {
        // SAFETY: every page is claimed by `close`: nobody has any of them.
        unsafe { raw::munmap(address_of(granule), GRANULE) };
        TABLE.free(granule);
    }
}

/// Tells the table that the program placed a mapping of its own at addresses of the region.
pub(crate) fn adopt(address: usize, bytes: usize) {
    for granule in granules(address, bytes) {
        let (first, count) = part(granule, address, bytes);
        if count == PAGES && TABLE.claim_at(State::Free, granule, 1).is_ok() {
            continue;
        }
        let Some(pages) = TABLE.pages(granule, map_chunk) else { continue };
        if TABLE.claim_at(State::Free, granule, 1).is_ok() {
            TABLE.open(granule, pages, first, count, false);
        } else if TABLE.state(granule) == State::Split {
            bits::set(&pages.used, first, count);
            bits::clear(&pages.spare, first, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_a_part_in_each_of_its_granules() {
        let (start, bytes) = (address_of(3) + 5 * PAGE, 2 * GRANULE);
        assert_eq!(granules(start, bytes), 3..6);
        assert_eq!(part(3, start, bytes), (5, PAGES - 5));
        assert_eq!(part(4, start, bytes), (0, PAGES));
        assert_eq!(part(5, start, bytes), (0, 5));
        assert_eq!(part(5, start, bytes + 1), (0, 6), "a page that is begun counts");
        assert_eq!(part(6, start, bytes).1, 0);
        assert_eq!(part(2, start, bytes).1, 0);
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
