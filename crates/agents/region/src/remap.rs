//! What the program means by `mremap`: a mapping that grows stays in the region, in its place if it can.

#![allow(unsafe_code, reason = "moves the program's own mappings as it asks")]

use fieldstone_wire::Outside;

use crate::bits::{self, PAGES};
use crate::calls::{has_hugetlb, munmap, whole_pages};
use crate::demote::make_ordinary;
use crate::pieces::{extend, move_all};
use crate::place::{self, READ_WRITE, adopt, granules, own_huge, release, retire, settle};
use crate::raw::{self, Raw};
use crate::state::{TABLE, address_of, contains, count_served, granule_of, idle_state, map_chunk, page_of, touches};
use crate::table::{GRANULE, PAGE, State};

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
    make_ordinary(call.old, old_bytes, Outside::DemotedByCall);
    grow(call, old_bytes, new_bytes)
}

/// The program names the new address, or keeps the old mapping too.
fn place_named(call: Move, old_bytes: usize, new_bytes: usize) -> Raw {
    make_ordinary(call.old, old_bytes, Outside::DemotedByCall);
    if call.flags & libc::MREMAP_FIXED != 0 {
        make_ordinary(call.new, new_bytes, Outside::DemotedByCall);
    }
    let mut result = call.pass();
    if is_in_pieces(result, call) && call.flags & libc::MREMAP_FIXED != 0 && old_bytes == new_bytes {
        result = if move_all(call.old, old_bytes, call.new) { call.new.cast_signed() } else { result };
    }
    if raw::failed(result) {
        return result;
    }
    if call.flags & libc::MREMAP_DONTUNMAP == 0 && old_bytes > 0 && result.cast_unsigned() != call.old {
        release(call.old, old_bytes);
    }
    adopt(result.cast_unsigned(), new_bytes);
    result
}

/// Whether the kernel refused a move because it sees several mappings where the program has one.
fn is_in_pieces(result: Raw, call: Move) -> bool {
    result == -(libc::EFAULT as Raw) && contains(call.old) && call.flags & libc::MREMAP_DONTUNMAP == 0
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
        // SAFETY: the claimed addresses hold nothing or slack of ours.
        unsafe { raw::munmap(end, more) };
        // SAFETY: the program's own mapping grows where nothing lies.
        let mut result = unsafe { raw::mremap(call.old, old_bytes, new_bytes, 0, 0) };
        if is_in_pieces(result, call) && extend(end, more) {
            result = call.old.cast_signed();
        }
        if !raw::failed(result) {
            count_served(more);
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
    let Some(target) = place::claim(new_bytes) else {
        let result = call.pass();
        if !raw::failed(result) {
            release(call.old, old_bytes);
        }
        return result;
    };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the target was given to this call; the program's mapping takes its place.
    let mut result = unsafe { raw::mremap(call.old, old_bytes, new_bytes, flags, target) };
    if is_in_pieces(result, call)
        && move_all(call.old, old_bytes, target)
        && extend(target + old_bytes, new_bytes - old_bytes)
    {
        result = target.cast_signed();
    }
    if raw::failed(result) {
        release(target, new_bytes);
        return result;
    }
    release(call.old, old_bytes);
    count_served(new_bytes - old_bytes);
    if new_bytes >= GRANULE {
        settle(target, new_bytes, READ_WRITE);
    }
    result
}

/// Claims exactly the pages behind a mapping; all or none.
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
    let Some(pages) = TABLE.pages(granule, map_chunk) else { return false };
    if TABLE.state(granule) == State::Split {
        let claimed = bits::claim_run(&pages.used, first, count);
        if claimed {
            bits::clear(&pages.fresh, first, count);
        }
        return claimed;
    }
    if idle_state(granule) != State::Free || TABLE.claim_at(State::Free, granule, 1).is_err() {
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
        && granules(address, bytes).all(|granule| TABLE.state(granule) == State::Huge)
}

/// Grows a mapping on hugetlb pages; `None` where they cannot be had, and then nothing has changed.
fn grow_huge(call: Move, old_bytes: usize, new_bytes: usize) -> Option<Raw> {
    let old = granules(call.old, old_bytes);
    let wanted = new_bytes.div_ceil(GRANULE);
    let extra = wanted - old.len();
    if extra == 0 || TABLE.claim_at(State::Free, old.end, extra).is_ok() {
        if extra == 0 || map_extra(old.end, extra) {
            return Some(finish(old.start, old_bytes, new_bytes));
        }
        return None;
    }
    if call.flags & libc::MREMAP_MAYMOVE == 0 {
        return None;
    }
    let first = TABLE.claim_free(wanted, 1)?;
    if !map_extra(first + old.len(), extra) {
        (first..first + old.len()).for_each(|granule| TABLE.free(granule, State::Free));
        return None;
    }
    if !move_all(call.old, old.len() * GRANULE, address_of(first)) {
        (first..first + wanted).for_each(|granule| {
            // SAFETY: claimed by this call, and every page that had moved there has moved back.
            unsafe { raw::munmap(address_of(granule), GRANULE) };
            TABLE.free(granule, State::Free);
        });
        return None;
    }
    let owned = own_huge(first, old.len(), State::Huge);
    debug_assert!(owned, "the bits of claimed granules exist: their neighbours' were mapped");
    old.for_each(retire);
    Some(finish(first, old_bytes, new_bytes))
}

fn map_extra(first: usize, granules: usize) -> bool {
    let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: NOREPLACE never takes the place of a mapping.
    let result = unsafe { raw::map_anonymous(address_of(first), granules * GRANULE, READ_WRITE, flags) };
    if !raw::failed(result) && own_huge(first, granules, State::Huge) {
        return true;
    }
    (first..first + granules).for_each(|granule| TABLE.free(granule, State::Free));
    false
}

/// Sets the used bits of a hugetlb mapping that now has `new_bytes` from granule `first`.
fn finish(first: usize, old_bytes: usize, new_bytes: usize) -> Raw {
    let address = address_of(first);
    let end = address + new_bytes;
    for granule in granules(address + old_bytes - 1, new_bytes - old_bytes + 1) {
        if let Some(pages) = TABLE.pages(granule, map_chunk) {
            let used = if granule == granule_of(end - 1) { page_of(end - 1) + 1 } else { PAGES };
            bits::set(&pages.used, 0, used);
            bits::clear(&pages.used, used, PAGES - used);
        }
    }
    count_served(new_bytes - old_bytes);
    address.cast_signed()
}
