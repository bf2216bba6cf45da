//! Giving memory from the region: which addresses, on which pages.
//!
//! - A request of at least one granule gets granules of its own. Its last, partial granule is mapped whole when more
//!   than half of it is wanted (a huge page then covers it), else to the page.
//! - A smaller request shares a granule: see [`crate::small`].
//! - Hugetlb pages serve requests of at least one granule only; everything smaller is freed in pages, which they
//!   cannot bear.

#![allow(unsafe_code, reason = "maps and unmaps addresses that the table says are the caller's")]

use fieldstone_wire::{PageKind, PlacementReason};

use crate::bits::{self, PAGES};
use crate::demote::Mapping;
use crate::raw::{self, Raw, TAKEN};
use crate::state::{
    TABLE, address_of, base, claim_reserve, contains, count, granule_of, huge_pages_enabled, hugetlb_forbidden,
    is_exact, is_mosaic, is_picked, kind, limit, page_of, prefault, reserve, reserve_shrunk, touches,
};
use crate::table::{GIANT, GRANULE, PAGE, PageBits, State};
use crate::{huge, small};

/// Read and write: the only protection that is served beside "none yet".
pub(crate) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Flags of the caller that pass through to the kernel.
const KEPT_FLAGS: i32 = libc::MAP_NORESERVE | libc::MAP_POPULATE | libc::MAP_LOCKED | libc::MAP_NONBLOCK;

/// Granules of 64 MiB, to which glibc aligns its arenas.
const ARENA_GRANULES: usize = 32;

/// How far a stack that grows down is left free addresses: the usual limit of a stack.
const STACK_GROWTH: usize = 8 << 20;

/// Gives `bytes` (whole pages) with `prot` from the region.
///
/// # Errors
/// A negated errno: the kernel's, or `-ENOSPC` when no address range of the region is free.
pub(crate) fn map(bytes: usize, prot: i32, flags: i32) -> Raw {
    if is_exact() {
        count(PlacementReason::Exact, bytes);
    }
    let stack = flags & libc::MAP_STACK != 0;
    let flags = flags & KEPT_FLAGS;
    if stack {
        return map_stack(bytes, prot, flags);
    }
    if bytes < GRANULE {
        return small::map(bytes / PAGE, flags);
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
        count(PlacementReason::NoUserfault, bytes);
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
    if prefault() && !is_exact() && prot == READ_WRITE && (bytes <= GRANULE || bytes < free_bytes() / 2) {
        touch(address, bytes);
    }
}

/// Touches the pages of the reserve now, with `--prefault`, in as much as seven eighths of the available memory hold. Returns the bytes
/// that are left untouched.
pub(crate) fn populate_most(address: usize, bytes: usize) -> usize {
    if !prefault() {
        return 0;
    }
    let available = raw::available_bytes().unwrap_or_else(free_bytes);
    let touched = bytes.min(available / 8 * 7 / GRANULE * GRANULE);
    touch(address, touched);
    bytes - touched
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
        && let Some(first) = claim_reserve(State::Reserved, count)
    {
        own_tail(first + whole, tail, true);
        return address_of(first).cast_signed();
    }
    // libc trims the reservations of its arenas to an address aligned to 64 MiB: aligned ones need no trimming.
    let align = if prot == libc::PROT_NONE && count >= ARENA_GRANULES { ARENA_GRANULES } else { 1 };
    let rounds_up = tail > PAGES / 2 && prot == READ_WRITE && !is_exact();
    let mut mapped = 0;
    let first = map_granules(count, align, |address| {
        let sizes = if rounds_up { [count * GRANULE, bytes] } else { [bytes; 2] };
        map_first(address, &sizes, prot, flags).inspect(|&size| mapped = size).map_or_else(|errno| errno, |_| 0)
    });
    let first = match first {
        Ok(first) => first,
        Err(errno) => return errno,
    };
    own_tail(first + whole, tail, mapped > bytes);
    // What is sparse by intention is not touched ahead.
    let sparse = flags & libc::MAP_NORESERVE != 0;
    settle(address_of(first), mapped, if sparse { libc::PROT_NONE } else { prot });
    address_of(first).cast_signed()
}

/// Maps the first of two sizes that limits allow, where nothing is mapped; the size.
fn map_first(address: usize, sizes: &[usize; 2], prot: i32, flags: i32) -> Result<usize, Raw> {
    let mut result = 0;
    for &bytes in sizes {
        result = raw::map_new(address, bytes, prot, flags);
        if !raw::failed(result) {
            return Ok(bytes);
        }
        if result == TAKEN || sizes[0] == sizes[1] {
            break;
        }
    }
    Err(result)
}

/// Maps a stack so that it *ends* with a granule: that is where it is used first. Never on hugetlb pages: its guard and
/// what libc gives back of it are page-grained.
fn map_stack(bytes: usize, prot: i32, flags: i32) -> Raw {
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
        TABLE.open(first, pages, PAGES - head, head, false);
    }
    let address = address_of(first) + offset;
    settle(address, bytes, prot);
    address.cast_signed()
}

/// Claims `count` free granules, the first at a multiple of `align`, and has `map` map in them, where nothing is mapped.
/// Where it finds something, one granule that holds some of it stays claimed, and the next are tried. The first granule.
///
/// # Errors
/// A negated errno, and then nothing is claimed: that of `map`, or `-ENOSPC` when no addresses are left.
pub(crate) fn map_granules(count: usize, align: usize, mut map: impl FnMut(usize) -> Raw) -> Result<usize, Raw> {
    loop {
        let first = TABLE.claim_free(count, align).ok_or(-(libc::ENOSPC as Raw))?;
        match map(address_of(first)) {
            TAKEN => keep_taken(first, count),
            errno if raw::failed(errno) => {
                give_back(first, count);
                return Err(errno);
            }
            _ => return Ok(first),
        }
    }
}

/// Gives claimed granules back, but for the lowest that holds a mapping which is not ours. The region holds few of those,
/// and each is found once.
fn keep_taken(first: usize, count: usize) {
    let (mut low, mut high) = (first, first + count);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if is_free(address_of(low), (middle - low) * GRANULE) { low = middle } else { high = middle }
    }
    give_back(first, low - first);
    give_back(low + 1, first + count - low - 1);
}

/// Whether nothing is mapped in a range, as far as limits let it be tried.
pub(crate) fn is_free(address: usize, bytes: usize) -> bool {
    let held = hold_range(address, bytes);
    if !raw::failed(held) {
        // SAFETY: what this function has just mapped.
        unsafe { raw::munmap(address, bytes) };
    }
    held != TAKEN
}

/// Maps inaccessible memory where nothing is mapped.
fn hold_range(address: usize, bytes: usize) -> Raw {
    raw::map_new(address, bytes, libc::PROT_NONE, libc::MAP_NORESERVE)
}

/// Gives claimed granules back that hold nothing of ours.
pub(crate) fn give_back(first: usize, count: usize) {
    for granule in first..first + count {
        TABLE.free(granule);
    }
}

/// Unmaps what is left of the reserve in state `idle`.
pub(crate) fn drop_reserve(idle: State) {
    for granule in reserve() {
        if TABLE.change(granule, idle, State::Busy) {
            // SAFETY: a reserved granule belongs to nobody.
            unsafe { raw::munmap(address_of(granule), GRANULE) };
            TABLE.free(granule);
            reserve_shrunk(1);
        }
    }
}

/// Marks the first `tail` pages of the claimed last granule as used and leaves the others to small requests: as slack, if
/// the granule is mapped whole.
pub(crate) fn own_tail(granule: usize, tail: usize, mapped_whole: bool) {
    if tail == 0 {
        return;
    }
    if let Some(pages) = TABLE.pages(granule) {
        TABLE.open(granule, pages, 0, tail, mapped_whole);
    }
}

/// Claims addresses for `bytes` that are moved there, and holds them by a mapping: mremap(2) replaces what lies at its
/// target, so that has to be ours. `None` where the kernel or the table refuses.
pub(crate) fn hold(bytes: usize) -> Option<usize> {
    if bytes < GRANULE {
        return small::hold(bytes / PAGE);
    }
    let (whole, tail) = (bytes / GRANULE, bytes % GRANULE / PAGE);
    let first = map_granules(whole + usize::from(tail > 0), 1, |address| hold_range(address, bytes)).ok()?;
    own_tail(first + whole, tail, false);
    Some(address_of(first))
}

/// Holds claimed granules as [`hold`] does.
pub(crate) fn hold_granules(first: usize, count: usize) -> bool {
    !raw::failed(hold_range(address_of(first), count * GRANULE))
}

/// Ends a [`hold`] after a move that failed. The first `moved` bytes had moved there, and have moved back.
pub(crate) fn end_hold(address: usize, bytes: usize, moved: usize) {
    // SAFETY: mapped by `hold` and given to nobody.
    unsafe { raw::munmap(address + moved, bytes - moved) };
    release(address, bytes);
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
            State::Whole | State::Split => small::release(granule, first, count),
            _ => {}
        }
    }
}

/// Records that the program placed a mapping of its own at addresses of the region.
pub(crate) fn adopt(address: usize, bytes: usize) {
    for granule in granules(address, bytes) {
        let (first, count) = part(granule, address, bytes);
        let Some(pages) = TABLE.pages(granule) else { continue };
        let reserved = TABLE.claim_at(State::Reserved, granule, 1).is_ok();
        if reserved || TABLE.claim_at(State::Free, granule, 1).is_ok() {
            if count < PAGES {
                TABLE.open(granule, pages, first, count, reserved);
            }
        } else if TABLE.state(granule) == State::Split {
            bits::set(&pages.used, first, count);
            bits::clear(&pages.spare, first, count);
        }
    }
}

/// Makes a held granule Split whose copy on ordinary pages has taken its place: what its caller does not have is unmapped.
pub(crate) fn leave_hugetlb(granule: usize, pages: &PageBits) {
    small::unmap_set(granule, &pages.spare, 0, PAGES);
    TABLE.disown(granule, pages);
}

/// Leaves free addresses below a mapping that grows down (`MAP_GROWSDOWN`) to it: the kernel keeps mappings whose place it
/// chooses away from such a stack, and cannot grow it to within 1 MiB of another. They are not used again.
pub(crate) fn leave_below(address: usize) {
    let below = address.saturating_sub(STACK_GROWTH).max(base());
    for granule in granules(below, address - below) {
        if TABLE.claim_at(State::Free, granule, 1).is_err()
            && TABLE.state(granule) == State::Split
            && let Some(pages) = TABLE.pages(granule)
        {
            let (first, count) = part(granule, below, address - below);
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
