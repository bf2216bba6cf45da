//! Mappings of a process, and free addresses in it: for page copies within reach of a displacement,
//! and for code within reach of a jump.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;

use crate::error::{Error, Result};

/// Reach of a 32-bit displacement, less the size of an instruction and an operand.
const REACH: u64 = (1 << 31) - (1 << 21);
/// Lowest address that the kernel lets users map.
const LOWEST: u64 = 1 << 16;
/// Bytes left free behind the heap for its growth.
const HEAP_GROWTH: u64 = 1 << 30;
/// End of user addresses.
const HIGHEST: u64 = (1 << 47) - (1 << 12);

/// A mapping of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsEntry {
    /// Its addresses.
    pub range: Range<u64>,
    /// Permissions, such as `rw-p`.
    pub permissions: String,
    /// Whether a file backs it; a `memfd` is a file.
    pub is_file: bool,
    /// Device and inode of the file, as in the table.
    pub inode: String,
    /// The file, or `[heap]`, `[stack]`, `[vdso]`; empty for anonymous memory.
    pub name: String,
}

impl MapsEntry {
    /// Whether it is private, readable, writable and not executable.
    #[must_use]
    pub fn is_private_data(&self) -> bool {
        self.permissions.starts_with("rw-p")
    }

    /// Whether it is code of a file and not writable here, so that it does not change while it is
    /// mapped.
    #[must_use]
    pub fn is_lasting_code(&self) -> bool {
        self.permissions == "r-xp" && self.is_file && !self.name.starts_with("/memfd:")
    }

    /// Whether writes to this mapping change the file of `other`.
    #[must_use]
    pub fn writes_file_of(&self, other: &Self) -> bool {
        let is_shared = self.permissions.contains('w') && self.permissions.ends_with('s');
        is_shared && self.is_file && self.inode == other.inode
    }

    /// Its addresses, and those that a heap may grow into.
    fn claimed(&self) -> Range<u64> {
        let growth = if self.name == "[heap]" { HEAP_GROWTH } else { 0 };
        self.range.start..self.range.end.saturating_add(growth)
    }
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
pub fn mappings(pid: u32) -> Result<Vec<MapsEntry>> {
    let failed = |source| Error::Process { pid, operation: "read the mappings of", source };
    let text = fs::read(format!("/proc/{pid}/maps")).map_err(failed)?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(mapping).collect())
}

fn mapping(line: &str) -> Option<MapsEntry> {
    let mut words = line.split_ascii_whitespace();
    words.next();
    let permissions = words.next()?.to_owned();
    let (device, inode) = (words.nth(1)?, words.next()?);
    Some(MapsEntry {
        range: addresses(line)?,
        permissions,
        is_file: inode != "0",
        inode: format!("{device} {inode}"),
        name: words.collect::<Vec<_>>().join(" "),
    })
}

/// The nearest free range of `bytes` bytes, in whole pages, that is within reach of all of `near`.
/// Returns its start.
#[must_use]
pub fn free_near(mappings: &[MapsEntry], near: &Range<u64>, bytes: u64) -> Option<u64> {
    let allowed = near.end.saturating_sub(REACH).max(LOWEST)..(near.start + REACH).min(HIGHEST);
    let ends = mappings.iter().map(|mapping| mapping.claimed().end);
    let starts = mappings.iter().map(|mapping| mapping.range.start);
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
    mappings: &[MapsEntry],
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
        match mappings.iter().map(MapsEntry::claimed).find(in_the_way) {
            Some(taken) => from = taken.end + PAGE,
            None => return Some(at),
        }
    }
}

const PAGE: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(ranges: &[Range<u64>]) -> Vec<MapsEntry> {
        let one = |range: &Range<u64>| MapsEntry {
            range: range.clone(),
            permissions: "rw-p".into(),
            is_file: false,
            inode: String::new(),
            name: String::new(),
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

    #[test]
    fn a_line_of_the_table_is_understood() {
        let line = "7f0000000000-7f0000001000 rw-p 00002000 08:01 1234    /a file with spaces";
        let expected = MapsEntry {
            range: 0x7f00_0000_0000..0x7f00_0000_1000,
            permissions: "rw-p".into(),
            is_file: true,
            inode: "08:01 1234".into(),
            name: "/a file with spaces".into(),
        };
        assert_eq!(mapping(line), Some(expected));
        assert!(!mapping("7f0000000000-7f0000001000 rw-p 00000000 00:00 0").unwrap().is_file);
        let is_lasting = |line| mapping(line).unwrap().is_lasting_code();
        assert!(is_lasting("7f0000000000-7f0000001000 r-xp 00002000 08:01 1234 /a/library"));
        assert!(!is_lasting("7f0000000000-7f0000001000 rwxp 00002000 08:01 1234 /a/library"), "it can be written");
        assert!(!is_lasting("7f0000000000-7f0000001000 r-xp 00000000 00:00 0"), "made by the program");
        assert!(
            !is_lasting("7f0000000000-7f0000001000 r-xp 00000000 00:01 9 /memfd:code (deleted)"),
            "written elsewhere"
        );
        assert!(mappings(std::process::id()).unwrap().iter().any(|mapping| mapping.name == "[vdso]"));
        let code = mapping(line).unwrap();
        for (line, writes) in [
            ("7f0000002000-7f0000003000 rw-s 00002000 08:01 1234 /a file with spaces", true),
            ("7f0000002000-7f0000003000 rw-p 00002000 08:01 1234 /a file with spaces", false),
            ("7f0000002000-7f0000003000 r--s 00002000 08:01 1234 /a file with spaces", false),
            ("7f0000002000-7f0000003000 rw-s 00002000 08:02 1234 /another", false),
        ] {
            assert_eq!(mapping(line).unwrap().writes_file_of(&code), writes, "{line}");
        }
    }
}
