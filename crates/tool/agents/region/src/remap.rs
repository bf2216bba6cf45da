//! `mremap`: a mapping that grows stays in the region, and in place if possible.

#![allow(unsafe_code, reason = "moves the program's own mappings as it asks")]

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fieldstone_wire::{PageKind, PlacementReason};

use crate::bits::{self, PAGES};
use crate::calls::{NO_MEMORY, munmap, whole_pages};
use crate::hugetlb::{self, has_hugetlb, mark_all_busy, settled_state};
use crate::migration::{HugetlbMappingGuard, make_ordinary};
use crate::multi_mapping::{grow_in_place, move_mappings};
use crate::placement::{
    self, READ_WRITE, apply_page_kind, granules, reapply_page_kind, record_foreign_mapping, release,
};
use crate::raw::{self, RawResult};
use crate::state::{TABLE, address_of, contains, count_served, granule_of, kind, overlaps, page_of, reserve};
use crate::table::{GRANULE, GranuleState, PAGE};
use crate::{growth, numa_policy, small};

/// Whether a range of several kernel mappings has moved out of the region. From then on such ranges
/// may be anywhere.
static HAS_SPLIT_RANGES_OUTSIDE: AtomicBool = AtomicBool::new(false);

/// The arguments of `mremap`.
#[derive(Clone, Copy)]
pub(crate) struct MremapCall {
    pub(crate) old: usize,
    pub(crate) old_bytes: usize,
    pub(crate) new_bytes: usize,
    pub(crate) flags: i32,
    pub(crate) new: usize,
}

impl MremapCall {
    /// Forwards the call to the kernel unchanged.
    fn forward(&self) -> RawResult {
        // SAFETY: the program makes exactly this call; the agent only forwards it.
        unsafe { raw::mremap(self.old, self.old_bytes, self.new_bytes, self.flags, self.new) }
    }
}

/// `mremap(2)`.
pub(crate) fn mremap(call: MremapCall) -> RawResult {
    let (Some(old_bytes), Some(new_bytes)) = (whole_pages(call.old_bytes), whole_pages(call.new_bytes)) else {
        return call.forward();
    };
    let targets_region = call.flags & libc::MREMAP_FIXED != 0 && overlaps(call.new, new_bytes);
    if !overlaps(call.old, old_bytes) && !targets_region {
        return remap_outside(call, old_bytes, new_bytes);
    }
    if call.flags & !libc::MREMAP_MAYMOVE != 0 || old_bytes == 0 || !call.old.is_multiple_of(PAGE) {
        return remap_fixed(call, old_bytes, new_bytes);
    }
    if new_bytes <= old_bytes {
        return shrink(call, old_bytes, new_bytes);
    }
    if all_huge(call.old, old_bytes)
        && let Some(address) = grow_huge(call, old_bytes, new_bytes)
    {
        return address;
    }
    if !make_ordinary(call.old, old_bytes, PlacementReason::DemotedByCall) {
        return NO_MEMORY;
    }
    grow(call, old_bytes, new_bytes)
}

/// The program gives the new address, or keeps the old mapping (`MREMAP_DONTUNMAP`).
fn remap_fixed(call: MremapCall, old_bytes: usize, new_bytes: usize) -> RawResult {
    let (fixed, keep) = (call.flags & libc::MREMAP_FIXED != 0, call.flags & libc::MREMAP_DONTUNMAP != 0);
    let ordinary = make_ordinary(call.old, old_bytes, PlacementReason::DemotedByCall)
        && (!fixed || make_ordinary(call.new, new_bytes, PlacementReason::DemotedByCall));
    if !ordinary {
        return NO_MEMORY;
    }
    if keep && !fixed {
        return move_keeping_old(call, old_bytes);
    }
    let result = remap_outside(call, old_bytes, new_bytes);
    if raw::failed(result) {
        return result;
    }
    if !keep && old_bytes > 0 && result.cast_unsigned() != call.old {
        release(call.old, old_bytes);
    }
    record_foreign_mapping(result.cast_unsigned(), new_bytes);
    result
}

/// Forwards the call to the kernel, which chooses the new address unless the program did. If the
/// kernel refused because the range spans several mappings, makes the call mapping by mapping.
fn remap_outside(call: MremapCall, old_bytes: usize, new_bytes: usize) -> RawResult {
    let result = call.forward();
    if !spans_several_mappings(result, call) {
        return result;
    }
    let address = if call.flags & libc::MREMAP_FIXED != 0 {
        move_fixed_mappings(call, old_bytes, new_bytes).then_some(call.new)
    } else if new_bytes < old_bytes {
        return result;
    } else if grows_outside(call) && grow_in_place(call.old, old_bytes, new_bytes - old_bytes) {
        Some(call.old)
    } else if call.flags & libc::MREMAP_MAYMOVE != 0 {
        move_anywhere(call, old_bytes, new_bytes)
    } else {
        return NO_MEMORY;
    };
    let Some(address) = address else { return result };
    if !contains(address) {
        HAS_SPLIT_RANGES_OUTSIDE.store(true, SeqCst);
    }
    address.cast_signed()
}

/// Whether a call may grow a range in place. In the region that takes claimed addresses (see
/// [`grow`]).
fn grows_outside(call: MremapCall) -> bool {
    call.flags & libc::MREMAP_DONTUNMAP == 0 && !contains(call.old)
}

/// Moves mapping by mapping to an address that the kernel chooses.
fn move_anywhere(call: MremapCall, old_bytes: usize, new_bytes: usize) -> Option<usize> {
    // SAFETY: without MAP_FIXED the call replaces no mapping.
    let target = unsafe { raw::map_anonymous(0, new_bytes, libc::PROT_NONE, libc::MAP_NORESERVE) };
    if raw::failed(target) {
        return None;
    }
    let target = target.cast_unsigned();
    let keep = call.flags & libc::MREMAP_DONTUNMAP != 0;
    match move_mappings(call.old, old_bytes, target, new_bytes - old_bytes, keep) {
        Ok(()) => Some(target),
        Err(moved) => {
            // SAFETY: this call mapped the range; what had moved there has moved back.
            unsafe { raw::munmap(target + moved, new_bytes - moved) };
            None
        }
    }
}

/// Moves to an address that the program gives. As in the kernel, a part that shrinks away is
/// unmapped first.
fn move_fixed_mappings(call: MremapCall, old_bytes: usize, new_bytes: usize) -> bool {
    let keep = call.flags & libc::MREMAP_DONTUNMAP != 0;
    let moved = old_bytes.min(new_bytes);
    if moved < old_bytes && raw::failed(munmap(call.old + moved, old_bytes - moved)) {
        return false;
    }
    move_mappings(call.old, moved, call.new, new_bytes - moved, keep).is_ok()
}

/// Moves a mapping and keeps the old one. The new address is in the region if it has room.
fn move_keeping_old(call: MremapCall, bytes: usize) -> RawResult {
    if call.flags & libc::MREMAP_MAYMOVE == 0 || whole_pages(call.new_bytes) != Some(bytes) || bytes == 0 {
        return call.forward();
    }
    let Some(target) = placement::occupy(bytes) else { return remap_outside(call, bytes, bytes) };
    let fixed = MremapCall { flags: call.flags | libc::MREMAP_FIXED, new: target, ..call };
    let result = complete_move(fixed.forward(), call, target, bytes, bytes);
    if !raw::failed(result) {
        count_served(bytes);
    }
    result
}

/// Completes a move to reserved addresses (see [`placement::occupy`]): if the kernel refused
/// because the range spans several mappings, moves them one by one. Frees the addresses if that
/// fails too.
fn complete_move(result: RawResult, call: MremapCall, target: usize, bytes: usize, new_bytes: usize) -> RawResult {
    if !raw::failed(result) {
        return result;
    }
    let keep = call.flags & libc::MREMAP_DONTUNMAP != 0;
    let mut moved = 0;
    if spans_several_mappings(result, call) {
        match move_mappings(call.old, bytes, target, new_bytes - bytes, keep) {
            Ok(()) => return target.cast_signed(),
            Err(bytes) => moved = bytes,
        }
    }
    placement::release_target(target, new_bytes, moved);
    result
}

/// Whether the kernel refused a call because one mapping of the program is several in the kernel.
fn spans_several_mappings(result: RawResult, call: MremapCall) -> bool {
    result == -(libc::EFAULT as RawResult)
        && call.old_bytes > 0
        && (contains(call.old) || HAS_SPLIT_RANGES_OUTSIDE.load(SeqCst))
        && raw::is_mapped(call.old, call.old_bytes)
}

fn shrink(call: MremapCall, old_bytes: usize, new_bytes: usize) -> RawResult {
    if new_bytes == 0 || old_bytes == new_bytes && !has_hugetlb(call.old, old_bytes) {
        return call.forward();
    }
    if old_bytes == new_bytes {
        return call.old.cast_signed();
    }
    let result = munmap(call.old + new_bytes, old_bytes - new_bytes);
    if raw::failed(result) { result } else { call.old.cast_signed() }
}

/// Grows a mapping on ordinary pages.
fn grow(call: MremapCall, old_bytes: usize, new_bytes: usize) -> RawResult {
    let (end, more) = (call.old + old_bytes, new_bytes - old_bytes);
    if contains(end - 1) && contains(call.old + new_bytes - 1) && claim_after(end, more) {
        // SAFETY: the mapping is the program's; without MAYMOVE the kernel grows it only over free
        // addresses.
        let mut result = unsafe { raw::mremap(call.old, old_bytes, new_bytes, 0, 0) };
        if spans_several_mappings(result, call) && grow_in_place(call.old, old_bytes, more) {
            result = call.old.cast_signed();
        }
        if !raw::failed(result) {
            count_served(more);
            apply_page_kind_to_grown(call.old, old_bytes, new_bytes, old_bytes);
            placement::populate(end, more, READ_WRITE);
            return result;
        }
        release(end, more);
    }
    if call.flags & libc::MREMAP_MAYMOVE == 0 {
        return -(libc::ENOMEM as RawResult);
    }
    move_elsewhere(call, old_bytes, new_bytes)
}

/// Moves to newly claimed addresses; the kernel chooses them if the region is full.
fn move_elsewhere(call: MremapCall, old_bytes: usize, new_bytes: usize) -> RawResult {
    let Some(target) = placement::occupy(new_bytes) else {
        let result = remap_outside(call, old_bytes, new_bytes);
        if !raw::failed(result) {
            release(call.old, old_bytes);
        }
        return result;
    };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: `placement::occupy` occupied the target for this call, so the move replaces no
    // mapping of the program.
    let moved = unsafe { raw::mremap(call.old, old_bytes, new_bytes, flags, target) };
    let result = complete_move(moved, call, target, old_bytes, new_bytes);
    if raw::failed(result) {
        return result;
    }
    release(call.old, old_bytes);
    count_served(new_bytes - old_bytes);
    apply_page_kind_to_grown(target, old_bytes, new_bytes, 0);
    result
}

/// Requests the page kind for a mapping that has grown; its first `kept` bytes did not move. A
/// mapping that was a small request may have been advised small; a large one keeps its advice.
fn apply_page_kind_to_grown(address: usize, old_bytes: usize, new_bytes: usize, kept: usize) {
    if old_bytes < GRANULE && new_bytes >= GRANULE {
        apply_page_kind(address, new_bytes, READ_WRITE);
    } else {
        reapply_page_kind(address + kept, new_bytes - kept);
    }
    growth::collapse_completed(address, old_bytes, new_bytes);
}

/// Claims exactly the pages behind a mapping, all or none, and unmaps the slack among them.
fn claim_after(start: usize, bytes: usize) -> bool {
    for granule in granules(start, bytes) {
        let (first, count) = placement::pages_in(granule, start, bytes);
        if !claim_part(granule, first, count) {
            release(start, address_of(granule).max(start) - start);
            return false;
        }
    }
    true
}

fn claim_part(granule: usize, first: usize, count: usize) -> bool {
    let Some(pages) = TABLE.pages(granule) else { return false };
    if TABLE.state(granule) == GranuleState::Split {
        let claimed = bits::claim_run(&pages.used, first, count);
        if claimed {
            small::unmap_slack(granule, pages, first, count);
        }
        return claimed;
    }
    if TABLE.claim_at(GranuleState::Free, granule, 1).is_err() {
        return false;
    }
    if count < PAGES {
        TABLE.open_split(granule, pages, first, count, false);
    }
    true
}

fn all_huge(address: usize, bytes: usize) -> bool {
    contains(address)
        && address.is_multiple_of(GRANULE)
        && granules(address, bytes).all(|granule| settled_state(granule) == GranuleState::Huge)
}

/// Grows a mapping on hugetlb pages. `None` if that is not possible; then nothing has changed.
fn grow_huge(call: MremapCall, old_bytes: usize, new_bytes: usize) -> Option<RawResult> {
    let _guard = HugetlbMappingGuard::begin();
    let old = granules(call.old, old_bytes);
    if kind() != PageKind::Hugetlb2m || !mark_all_busy(&old, GranuleState::Huge) {
        return None;
    }
    // The end of the last page may belong to another mapping of the program: then the page cannot
    // move.
    let can_move = is_unused_from(old.end - 1, call.old + old_bytes);
    let first = if can_move { grow_marked(call, &old, new_bytes.div_ceil(GRANULE)) } else { None };
    if let Some(first) = first {
        record_hugetlb(first, old_bytes, new_bytes);
    }
    if first.is_none_or(|first| first == old.start) {
        TABLE.set_states(old, GranuleState::Huge);
    } else {
        old.for_each(|granule| TABLE.free(granule));
    }
    first.map(|first| address_of(first).cast_signed())
}

/// Whether the program uses nothing of a hugetlb granule from `end` on.
fn is_unused_from(granule: usize, end: usize) -> bool {
    let used = page_of(end - 1) + 1;
    TABLE.pages(granule).is_some_and(|pages| bits::all_set(&pages.spare, used, PAGES - used))
}

/// Grows busy granules to `wanted` granules, in place or elsewhere. Returns the first granule of
/// the new place.
fn grow_marked(call: MremapCall, old: &Range<usize>, wanted: usize) -> Option<usize> {
    let extra = wanted - old.len();
    if extra == 0 || TABLE.claim_at(GranuleState::Free, old.end, extra).is_ok() {
        return (extra == 0 || map_extra(old.end, extra, call.old)).then_some(old.start);
    }
    // A part of the reserve shares its hugetlb reservations with the rest and must not move: see
    // `placement::touch`.
    if call.flags & libc::MREMAP_MAYMOVE == 0 || reserve().contains(&old.start) {
        return None;
    }
    let first = TABLE.claim_free(wanted, 1)?;
    let target_granules = first..first + old.len();
    if !map_extra(target_granules.end, extra, call.old) {
        placement::free_granules(first, old.len());
        return None;
    }
    placement::touch(call.old, old.len() * GRANULE);
    let is_occupied =
        hugetlb::set_full(first, old.len(), GranuleState::Huge) && placement::occupy_granules(first, old.len());
    let (target, bytes) = (address_of(first), old.len() * GRANULE);
    match if is_occupied { move_mappings(call.old, bytes, target, 0, false) } else { Err(bytes) } {
        Ok(()) => return Some(first),
        // SAFETY: this call mapped the range; the first `moved` bytes moved back or were never
        // occupied.
        Err(moved) => unsafe { raw::munmap(target + moved, wanted * GRANULE - moved) },
    };
    placement::free_granules(first, wanted);
    None
}

/// Maps claimed granules that a mapping grows by, with the NUMA policy of the memory at
/// `policy_source`.
fn map_extra(first: usize, granules: usize, policy_source: usize) -> bool {
    let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    let result = raw::map_new(address_of(first), granules * GRANULE, READ_WRITE, flags);
    if !raw::failed(result) && hugetlb::set_full(first, granules, GranuleState::Huge) {
        numa_policy::copy_policy(policy_source, address_of(first), granules * GRANULE);
        placement::populate_huge(address_of(first), granules * GRANULE);
        return true;
    }
    placement::free_granules(first, granules);
    false
}

/// Marks the pages of a hugetlb mapping of `new_bytes` from granule `first` as the program's.
fn record_hugetlb(first: usize, old_bytes: usize, new_bytes: usize) {
    let end = address_of(first) + new_bytes;
    let old_last = first + (old_bytes - 1) / GRANULE;
    let last = granule_of(end - 1);
    for granule in old_last..last + 1 {
        hugetlb::spare_tail(granule, if granule == last { page_of(end - 1) + 1 } else { PAGES });
    }
    count_served(new_bytes - old_bytes);
}
