//! What the program means by `mremap`: a mapping that grows stays in the region, in its place if it can.

#![allow(unsafe_code, reason = "moves the program's own mappings as it asks")]

use core::ops::Range;

use fieldstone_wire::{PageKind, PlacementReason};

use crate::bits::{self, PAGES};
use crate::calls::{NO_MEMORY, munmap, whole_pages};
use crate::demote::{Mapping, make_ordinary};
use crate::huge::{self, at_rest, has_hugetlb, hold_all};
use crate::pieces::{extend, move_all};
use crate::place::{self, READ_WRITE, adopt, granules, release, settle, settle_anew};
use crate::raw::{self, Raw};
use crate::state::{TABLE, address_of, contains, count_served, granule_of, kind, page_of, reserve, touches};
use crate::table::{GRANULE, PAGE, State};
use crate::{grown, policy, small};

/// A call of `mremap`, as the program made it.
#[derive(Clone, Copy)]
pub(crate) struct Move {
    pub(crate) old: usize,
    pub(crate) old_bytes: usize,
    pub(crate) new_bytes: usize,
    pub(crate) flags: i32,
    pub(crate) new: usize,
}

impl Move {
    /// Makes the call as the program made it.
    fn pass(&self) -> Raw {
        // SAFETY: the program asked for exactly this.
        unsafe { raw::mremap(self.old, self.old_bytes, self.new_bytes, self.flags, self.new) }
    }
}

/// `mremap(2)`.
pub(crate) fn mremap(call: Move) -> Raw {
    let (Some(old_bytes), Some(new_bytes)) = (whole_pages(call.old_bytes), whole_pages(call.new_bytes)) else {
        return call.pass();
    };
    let names_region = call.flags & libc::MREMAP_FIXED != 0 && touches(call.new, new_bytes);
    if !touches(call.old, old_bytes) && !names_region {
        return call.pass();
    }
    if call.flags & !libc::MREMAP_MAYMOVE != 0 || old_bytes == 0 || !call.old.is_multiple_of(PAGE) {
        return place_named(call, old_bytes, new_bytes);
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

/// The program names the new address, or keeps the old mapping too.
fn place_named(call: Move, old_bytes: usize, new_bytes: usize) -> Raw {
    let (fixed, keep) = (call.flags & libc::MREMAP_FIXED != 0, call.flags & libc::MREMAP_DONTUNMAP != 0);
    let ordinary = make_ordinary(call.old, old_bytes, PlacementReason::DemotedByCall)
        && (!fixed || make_ordinary(call.new, new_bytes, PlacementReason::DemotedByCall));
    if !ordinary {
        return NO_MEMORY;
    }
    if keep && !fixed {
        return keep_and_move(call, old_bytes);
    }
    let mut result = call.pass();
    if fixed && is_in_pieces(result, call) && move_pieces(call, old_bytes, new_bytes, keep) {
        result = call.new.cast_signed();
    }
    if raw::failed(result) {
        return result;
    }
    if !keep && old_bytes > 0 && result.cast_unsigned() != call.old {
        release(call.old, old_bytes);
    }
    adopt(result.cast_unsigned(), new_bytes);
    result
}

/// To an address that the program names; what is to go is unmapped first, as the kernel does it.
fn move_pieces(call: Move, old_bytes: usize, new_bytes: usize, keep: bool) -> bool {
    let moved = old_bytes.min(new_bytes);
    if moved < old_bytes && raw::failed(munmap(call.old + moved, old_bytes - moved)) {
        return false;
    }
    move_all(call.old, moved, call.new, new_bytes - moved, keep).is_ok()
}

/// The new address is ours to choose: in the region, where it has room.
fn keep_and_move(call: Move, bytes: usize) -> Raw {
    if call.flags & libc::MREMAP_MAYMOVE == 0 || whole_pages(call.new_bytes) != Some(bytes) || bytes == 0 {
        return call.pass();
    }
    let Some(target) = place::hold(bytes) else { return call.pass() };
    let fixed = Move { flags: call.flags | libc::MREMAP_FIXED, new: target, ..call };
    let result = move_to_held(fixed.pass(), call, target, bytes, bytes);
    if !raw::failed(result) {
        count_served(bytes);
    }
    result
}

/// After a move to addresses that are held (see [`place::hold`]), where the kernel refused it as several mappings: piece by
/// piece. Ends the hold where that fails too.
fn move_to_held(result: Raw, call: Move, target: usize, bytes: usize, new_bytes: usize) -> Raw {
    if !raw::failed(result) {
        return result;
    }
    let keep = call.flags & libc::MREMAP_DONTUNMAP != 0;
    let mut moved = 0;
    if is_in_pieces(result, call) {
        match move_all(call.old, bytes, target, new_bytes - bytes, keep) {
            Ok(()) => return target.cast_signed(),
            Err(bytes) => moved = bytes,
        }
    }
    place::end_hold(target, new_bytes, moved);
    result
}

/// Whether the kernel refused a call because it sees several mappings where the program has one.
fn is_in_pieces(result: Raw, call: Move) -> bool {
    result == -(libc::EFAULT as Raw) && contains(call.old)
}

fn shrink(call: Move, old_bytes: usize, new_bytes: usize) -> Raw {
    if new_bytes == 0 || old_bytes == new_bytes && !has_hugetlb(call.old, old_bytes) {
        return call.pass();
    }
    if old_bytes == new_bytes {
        return call.old.cast_signed();
    }
    let result = munmap(call.old + new_bytes, old_bytes - new_bytes);
    if raw::failed(result) { result } else { call.old.cast_signed() }
}

/// Grows a mapping on ordinary pages.
fn grow(call: Move, old_bytes: usize, new_bytes: usize) -> Raw {
    let (end, more) = (call.old + old_bytes, new_bytes - old_bytes);
    if contains(end - 1) && contains(call.old + new_bytes - 1) && claim_after(end, more) {
        // SAFETY: the program's own mapping grows; the kernel refuses it where another lies behind.
        let mut result = unsafe { raw::mremap(call.old, old_bytes, new_bytes, 0, 0) };
        if is_in_pieces(result, call) && extend(call.old, old_bytes, more) {
            result = call.old.cast_signed();
        }
        if !raw::failed(result) {
            count_served(more);
            settle_grown(call.old, old_bytes, new_bytes, old_bytes);
            place::populate(end, more, READ_WRITE);
            return result;
        }
        release(end, more);
    }
    if call.flags & libc::MREMAP_MAYMOVE == 0 {
        return -(libc::ENOMEM as Raw);
    }
    move_to_new(call, old_bytes, new_bytes)
}

/// Moves to freshly claimed addresses; the kernel chooses where the region is full.
fn move_to_new(call: Move, old_bytes: usize, new_bytes: usize) -> Raw {
    let Some(target) = place::hold(new_bytes) else {
        let result = call.pass();
        if !raw::failed(result) {
            release(call.old, old_bytes);
        }
        return result;
    };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the target is held by a mapping of this call; the program's takes its place.
    let moved = unsafe { raw::mremap(call.old, old_bytes, new_bytes, flags, target) };
    let result = move_to_held(moved, call, target, old_bytes, new_bytes);
    if raw::failed(result) {
        return result;
    }
    release(call.old, old_bytes);
    count_served(new_bytes - old_bytes);
    settle_grown(target, old_bytes, new_bytes, 0);
    result
}

/// Asks for the pages of a mapping that has grown, of which the first `kept` bytes lie where they lay. What was a small request
/// may have been advised small; what was large keeps the advice that it had.
fn settle_grown(address: usize, old_bytes: usize, new_bytes: usize, kept: usize) {
    if old_bytes < GRANULE && new_bytes >= GRANULE {
        settle(address, new_bytes, READ_WRITE);
    } else {
        settle_anew(address + kept, new_bytes - kept);
    }
    grown::complete(address, old_bytes, new_bytes);
}

/// Claims exactly the pages behind a mapping, all or none, and unmaps the slack among them.
fn claim_after(start: usize, bytes: usize) -> bool {
    for granule in granules(start, bytes) {
        let (first, count) = place::part(granule, start, bytes);
        if !claim_part(granule, first, count) {
            release(start, address_of(granule).max(start) - start);
            return false;
        }
    }
    true
}

fn claim_part(granule: usize, first: usize, count: usize) -> bool {
    let Some(pages) = TABLE.pages(granule) else { return false };
    if TABLE.state(granule) == State::Split {
        let claimed = bits::claim_run(&pages.used, first, count);
        if claimed {
            small::unmap_slack(granule, pages, first, count);
        }
        return claimed;
    }
    if TABLE.claim_at(State::Free, granule, 1).is_err() {
        return false;
    }
    if count < PAGES {
        TABLE.open(granule, pages, first, count, false);
    }
    true
}

fn all_huge(address: usize, bytes: usize) -> bool {
    contains(address)
        && address.is_multiple_of(GRANULE)
        && granules(address, bytes).all(|granule| at_rest(granule) == State::Huge)
}

/// Grows a mapping on hugetlb pages; `None` where they cannot be had, and then nothing has changed.
fn grow_huge(call: Move, old_bytes: usize, new_bytes: usize) -> Option<Raw> {
    let _mapping = Mapping::begin();
    let old = granules(call.old, old_bytes);
    if kind() != PageKind::Hugetlb2m || !hold_all(&old, State::Huge) {
        return None;
    }
    // The end of the last page may be the program's too, and stay where it is: then the page cannot be taken.
    let ends = ends_at(old.end - 1, call.old + old_bytes);
    let first = if ends { grow_held(call, &old, new_bytes.div_ceil(GRANULE)) } else { None };
    if let Some(first) = first {
        finish(first, old_bytes, new_bytes);
    }
    if first.is_none_or(|first| first == old.start) {
        TABLE.let_go(old, State::Huge);
    } else {
        old.for_each(|granule| TABLE.free(granule));
    }
    first.map(|first| address_of(first).cast_signed())
}

/// Whether the program has nothing of a hugetlb granule from `end` on.
fn ends_at(granule: usize, end: usize) -> bool {
    let used = page_of(end - 1) + 1;
    TABLE.pages(granule).is_some_and(|pages| bits::all_set(&pages.spare, used, PAGES - used))
}

/// Grows held granules to `wanted`, in their place or elsewhere; the first granule of the new place.
fn grow_held(call: Move, old: &Range<usize>, wanted: usize) -> Option<usize> {
    let extra = wanted - old.len();
    if extra == 0 || TABLE.claim_at(State::Free, old.end, extra).is_ok() {
        return (extra == 0 || map_extra(old.end, extra, call.old)).then_some(old.start);
    }
    // A part of the reserve shares its reservations with the rest of it, and must not move: see `place::touch`.
    if call.flags & libc::MREMAP_MAYMOVE == 0 || reserve().contains(&old.start) {
        return None;
    }
    let first = TABLE.claim_free(wanted, 1)?;
    let back = first..first + old.len();
    if !map_extra(back.end, extra, call.old) {
        place::give_back(first, old.len());
        return None;
    }
    place::touch(call.old, old.len() * GRANULE);
    let held = huge::own(first, old.len(), State::Huge) && place::hold_granules(first, old.len());
    let (target, bytes) = (address_of(first), old.len() * GRANULE);
    match if held { move_all(call.old, bytes, target, 0, false) } else { Err(bytes) } {
        Ok(()) => return Some(first),
        // SAFETY: mapped by this call, but for the first bytes, which have moved back or were never held.
        Err(moved) => unsafe { raw::munmap(target + moved, wanted * GRANULE - moved) },
    };
    place::give_back(first, wanted);
    None
}

/// Maps claimed granules that a mapping grows by: on nodes as the memory at `like`, which has the mapping's policy.
fn map_extra(first: usize, granules: usize, like: usize) -> bool {
    let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    let result = raw::map_new(address_of(first), granules * GRANULE, READ_WRITE, flags);
    if !raw::failed(result) && huge::own(first, granules, State::Huge) {
        policy::copy(like, address_of(first), granules * GRANULE);
        place::populate_huge(address_of(first), granules * GRANULE);
        return true;
    }
    place::give_back(first, granules);
    false
}

/// Gives the program the pages of a hugetlb mapping that now has `new_bytes` from granule `first`.
fn finish(first: usize, old_bytes: usize, new_bytes: usize) {
    let end = address_of(first) + new_bytes;
    let old_last = first + (old_bytes - 1) / GRANULE;
    let last = granule_of(end - 1);
    for granule in old_last..last + 1 {
        huge::spare_tail(granule, if granule == last { page_of(end - 1) + 1 } else { PAGES });
    }
    count_served(new_bytes - old_bytes);
}
