//! Mappings of a process, and free addresses in it: for page copies within reach of a displacement,
//! and for code within reach of a jump.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;

use fieldstone_sys::smaps::{self, Mapping};

use crate::error::{Error, Result};

/// Reach of a 32-bit displacement, less the size of an instruction and an operand.
const REACH: u64 = (1 << 31) - (1 << 21);
/// Lowest address that the kernel lets users map.
const LOWEST: u64 = 1 << 16;
/// Bytes left free behind the heap for its growth.
const HEAP_GROWTH: u64 = 1 << 30;
/// End of user addresses.
const HIGHEST: u64 = (1 << 47) - (1 << 12);

/// The addresses of a mapping, and those that a heap may grow into.
fn claimed(mapping: &Mapping) -> Range<u64> {
    let growth = if mapping.name == "[heap]" { HEAP_GROWTH } else { 0 };
    mapping.start..mapping.end.saturating_add(growth)
}

/// A property of the memory at `address` that its copies would lose, as an error text. `None` if
/// there is none.
pub(crate) fn peculiarity(pid: u32, address: u64) -> Option<&'static str> {
    let lines = BufReader::new(fs::File::open(format!("/proc/{pid}/smaps")).ok()?).lines().map_while(io::Result::ok);
    // Reading stops there: the kernel counts pages for each line it prints.
    let has_it = |line: &String| addresses(line).is_some_and(|range| range.contains(&address));
    let own = lines.skip_while(|line| !has_it(line)).skip(1).take_while(|line| addresses(line).is_none());
    own.into_iter().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let has = |flag| value.split_ascii_whitespace().any(|one| one == flag);
        match name {
            "ProtectionKey" if value.trim() != "0" => Some("it has a protection key"),
            "VmFlags" if has("wf") || has("dc") => Some("children are not to have it (MADV_WIPEONFORK, MADV_DONTFORK)"),
            _ => None,
        }
    })
}

/// The addresses at the start of a line of the kernel's tables.
fn addresses(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

/// The mappings of process `pid`, by address.
///
/// # Errors
/// [`Error::Process`] if the table cannot be read.
pub fn mappings(pid: u32) -> Result<Vec<Mapping>> {
    let failed = |source| Error::Process { pid, operation: "read the mappings of", source };
    smaps::read_addresses(pid).map_err(failed)
}

/// The nearest free range of `bytes` bytes, in whole pages, that is within reach of all of `near`.
/// Returns its start.
#[must_use]
pub fn free_near(mappings: &[Mapping], near: &Range<u64>, bytes: u64) -> Option<u64> {
    let allowed = near.end.saturating_sub(REACH).max(LOWEST)..(near.start + REACH).min(HIGHEST);
    let ends = mappings.iter().map(|mapping| claimed(mapping).end);
    let starts = mappings.iter().map(|mapping| mapping.start);
    let gaps = std::iter::once(LOWEST).chain(ends).zip(starts.chain([HIGHEST]));
    let fits = |(from, to): (u64, u64)| {
        // A page stays free on each side, so that an overrun of a neighbour still faults.
        let (from, to) = (from.max(allowed.start) + PAGE, to.min(allowed.end).saturating_sub(PAGE));
        let above = from >= near.end;
        (to.checked_sub(from)? >= bytes).then_some(if above { from } else { to - bytes })
    };
    gaps.filter_map(fits).min_by_key(|&at| at.abs_diff(near.start))
}

/// The first address from `next` in `within` with `bytes` free bytes. The pages around them are
/// free, and one more page on each side. `next` maps an address to the first usable one from there.
#[must_use]
pub fn free_at(
    mappings: &[Mapping],
    within: &Range<u64>,
    bytes: u64,
    next: impl Fn(u64) -> Option<u64>,
) -> Option<u64> {
    let end = within.end.min(HIGHEST).saturating_sub(bytes + 2 * PAGE);
    let mut from = within.start.max(LOWEST);
    loop {
        let at = next(from).filter(|&at| at < end)?;
        let pages = at / PAGE * PAGE - PAGE..(at + bytes).next_multiple_of(PAGE) + PAGE;
        let in_the_way = |mapping: &Range<u64>| mapping.start < pages.end && pages.start < mapping.end;
        match mappings.iter().map(claimed).find(in_the_way) {
            Some(taken) => from = taken.end + PAGE,
            None => return Some(at),
        }
    }
}

const PAGE: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(ranges: &[Range<u64>]) -> Vec<Mapping> {
        let one = |range: &Range<u64>| {
            let mut mapping = Mapping::default();
            (mapping.start, mapping.end) = (range.start, range.end);
            mapping
        };
        ranges.iter().map(one).collect()
    }

    #[test]
    fn the_nearest_gap_that_is_large_enough_is_taken() {
        let base = 0x7f00_0000_0000;
        let page = |number: u64| base + number * PAGE;
        let mappings = mapped(&[page(0)..page(10), page(13)..page(20), page(40)..page(50)]);
        // The gap of three pages keeps one free on each side.
        assert_eq!(free_near(&mappings, &(page(5)..page(6)), PAGE), Some(page(11)));
        assert_eq!(free_near(&mappings, &(page(15)..page(16)), 2 * PAGE), Some(page(21)));
        assert_eq!(free_near(&mappings, &(page(44)..page(45)), 2 * PAGE), Some(page(37)), "the end of the gap below");
    }

    #[test]
    fn what_cannot_be_reached_is_no_room() {
        let base = 0x7f00_0000_0000;
        let all = mapped(std::slice::from_ref(&(base - (1 << 31)..base + (1 << 31))));
        assert_eq!(free_near(&all, &(base..base + PAGE), PAGE), None);
        let most = mapped(std::slice::from_ref(&(base - (1 << 30)..base + (1 << 31))));
        let found = free_near(&most, &(base..base + PAGE), PAGE).unwrap();
        assert!(base - found < 1 << 31 && found < base - (1 << 30), "{found:#x}");
    }

    #[test]
    fn a_heap_has_room_to_grow() {
        let base = 0x5500_0000_0000;
        let mut mappings = mapped(&[base..base + PAGE, base + 10 * PAGE..base + 20 * PAGE]);
        let near = base + 19 * PAGE..base + 20 * PAGE;
        assert_eq!(free_near(&mappings, &near, PAGE), Some(base + 21 * PAGE));
        mappings[1].name = "[heap]".to_owned();
        assert_eq!(free_near(&mappings, &near, PAGE), Some(base + 8 * PAGE), "below it");
    }

    #[test]
    fn of_the_addresses_that_will_do_the_first_free_one_is_taken() {
        let base = 0x7f00_0000_0000;
        let mappings = mapped(&[base + 2 * PAGE..base + 9 * PAGE, base + 16 * PAGE..base + 17 * PAGE]);
        // Usable addresses end in 0x123.
        let next = |from: u64| Some((from.saturating_sub(0x123)).next_multiple_of(PAGE) + 0x123);
        let found = |from: u64, bytes| free_at(&mappings, &(base + from * PAGE..base + 40 * PAGE), bytes, next);
        assert_eq!(found(0, 8), Some(base + 0x123), "a page is free on each side");
        assert_eq!(found(1, 8), Some(base + 10 * PAGE + 0x123));
        assert_eq!(found(1, 5 * PAGE), Some(base + 18 * PAGE + 0x123), "the gap between is too small");
        assert_eq!(found(35, 5 * PAGE), None, "too near the end");
        assert_eq!(free_at(&mappings, &(base..base + PAGE), 8, |_| None), None);
    }
}
