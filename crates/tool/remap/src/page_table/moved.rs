//! Moved pages: where the bytes of each page are, and a view of memory as the program expects it.
//!
//! ```text
//!   P              missing: a thread that accesses it waits and is redirected
//!   P + home       all bytes; those covered by a rule are unused here     one run of free pages,
//!   P + home + 1   bytes of the first owner, at their offset in the page  within reach of a
//!   P + home + 2   bytes of the second owner                              32-bit displacement
//! ```
//! `P + home` is the home copy, the pages behind it are the views.
//!
//! Source: Taylor's thesis, figure 5.1 (underlay and isolated data). One difference: each view has
//! a page of its own, and bytes keep their offset in a line. So a redirect only changes the
//! displacement of an instruction.

use std::collections::BTreeMap;
use std::ops::Range;

use fieldstone_rewrite::page::LINE_BYTES;
use fieldstone_rewrite::{PagePiece, RemapRule, RemappedPage};
use fieldstone_sys::process::ProcessMemory;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// The same as a length.
pub(crate) const PAGE: usize = 4096;

/// A request to give ranges of a page cache lines of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Address of the page.
    pub page: u64,
    /// For each owner, ranges of addresses in the page.
    pub owners: Vec<Vec<Range<u64>>>,
    /// Whether the ranges of an owner are packed into as few lines as possible. This helps programs
    /// whose data in use does not fit in a cache.
    pub consolidated: bool,
    /// Ranges of addresses in the page whose accesses are all reported. Each access is redirected
    /// singly, which takes some 10 µs.
    pub watched: Vec<Range<u64>>,
}

/// A page whose bytes are in a home copy and in views.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedPage {
    /// The rules by which its accesses are redirected.
    pub page: RemappedPage,
    /// Memory of the home copy and of the views.
    #[serde(rename = "room")]
    pub memory: Range<u64>,
    /// Ranges of addresses whose accesses are all reported.
    pub watched: Vec<Range<u64>>,
}

impl MovedPage {
    /// Whether an access to these bytes is reported.
    pub(crate) fn is_watched(&self, address: u64, bytes: u32) -> bool {
        let end = address.saturating_add(bytes.into());
        self.watched.iter().any(|range| range.start < end && address < range.end)
    }

    /// The part of `piece` around `address` that is not watched. A clone may access it without
    /// reports.
    pub(crate) fn unwatched(&self, piece: PagePiece, address: u64) -> RemapRule {
        let below = self.watched.iter().map(|range| range.end).filter(|&end| end <= address);
        let above = self.watched.iter().map(|range| range.start).filter(|&start| start > address);
        let start = below.fold(piece.bytes.start, u64::max);
        let end = above.fold(piece.bytes.end, u64::min);
        RemapRule { bytes: start..end, delta: piece.delta }
    }

    /// The program's address for the byte at `address`, which is in [`Self::memory`].
    pub(crate) fn program_address(&self, address: u64) -> u64 {
        let before = |delta: i64| address.wrapping_add_signed(delta.wrapping_neg());
        let rules = self.page.rules.iter().map(|rule| (before(rule.delta), rule));
        let by_rule =
            rules.filter(|(original, rule)| rule.bytes.contains(original)).map(|(original, _)| original).next();
        by_rule.unwrap_or(self.page.start + address % PAGE_BYTES)
    }

    /// Writes the page's bytes to its home copy and its views.
    ///
    /// # Errors
    /// As [`ProcessMemory::write`].
    pub(crate) fn write_copies(&self, memory: &ProcessMemory, contents: &[u8; PAGE]) -> Result<()> {
        let start = self.page.start;
        memory.write(start.wrapping_add_signed(self.page.home), contents)?;
        for rule in &self.page.rules {
            let own = &contents[offset(start, rule.bytes.start)..offset(start, rule.bytes.end)];
            memory.write(rule.bytes.start.wrapping_add_signed(rule.delta), own)?;
        }
        Ok(())
    }

    /// The page as the program expects it, read from the memory of the process or of a child.
    ///
    /// # Errors
    /// As [`ProcessMemory::read_exact`].
    pub(crate) fn composed(&self, memory: &ProcessMemory) -> Result<[u8; PAGE]> {
        let page = &self.page;
        let mut contents = [0; PAGE];
        memory.read_exact(page.start.wrapping_add_signed(page.home), &mut contents)?;
        for rule in &page.rules {
            let own = &mut contents[offset(page.start, rule.bytes.start)..offset(page.start, rule.bytes.end)];
            memory.read_exact(rule.bytes.start.wrapping_add_signed(rule.delta), own)?;
        }
        Ok(contents)
    }
}

/// The moved pages of a process, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct PageMap(BTreeMap<u64, MovedPage>);

impl PageMap {
    /// Whether no page is moved.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of moved pages.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The moved page at this address, if there is one.
    pub(crate) fn get(&self, page: u64) -> Option<&MovedPage> {
        self.0.get(&page)
    }

    /// Whether the page at this address is moved.
    pub(crate) fn contains(&self, page: u64) -> bool {
        self.0.contains_key(&page)
    }

    /// Whether an address is in a moved page.
    pub(crate) fn contains_address(&self, address: u64) -> bool {
        self.contains(page_with(address))
    }

    /// Adds a page.
    pub(crate) fn insert(&mut self, moved: MovedPage) {
        self.0.insert(moved.page.start, moved);
    }

    /// Removes a page.
    pub(crate) fn remove(&mut self, page: u64) {
        self.0.remove(&page);
    }

    /// Keeps those pages for whose addresses `is_kept` is true.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(u64) -> bool) {
        self.0.retain(|&page, _| is_kept(page));
    }

    /// Removes all pages.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Addresses of the pages.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }

    /// Addresses of the pages in a range.
    pub(crate) fn addresses_in(&self, range: &Range<usize>) -> Vec<u64> {
        self.0.range(range.start as u64..range.end as u64).map(|(&page, _)| page).collect()
    }

    /// The pages.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &MovedPage> {
        self.0.values()
    }
}

/// The memory of a process as the program expects it: moved pages appear at their own addresses.
#[derive(Clone, Copy, Debug)]
pub struct ProgramView<'a> {
    memory: &'a ProcessMemory,
    pages: &'a PageMap,
}

impl<'a> ProgramView<'a> {
    pub(crate) const fn new(memory: &'a ProcessMemory, pages: &'a PageMap) -> Self {
        Self { memory, pages }
    }
}

impl fieldstone_rewrite::ReadableMemory for ProgramView<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let mut got = 0;
        while got < into.len() {
            let at = address.wrapping_add(got as u64);
            let offset = usize::try_from(at % PAGE_BYTES).unwrap_or(0);
            let rest = &mut into[got..];
            let bytes = rest.len().min(PAGE - offset);
            let rest = &mut rest[..bytes];
            let now = match self.pages.get(page_with(at)) {
                Some(moved) => moved.composed(self.memory).map_or(0, |contents| {
                    rest.copy_from_slice(&contents[offset..offset + bytes]);
                    bytes
                }),
                None => self.memory.read(at, rest),
            };
            got += now;
            if now < bytes {
                break;
            }
        }
        got
    }
}

/// Address of the page that contains an address.
#[must_use]
pub const fn page_with(address: u64) -> u64 {
    address & !(PAGE_BYTES - 1)
}

/// A page as a range for userfaultfd.
pub(crate) fn page_range(page: u64) -> Range<usize> {
    let start = usize::try_from(page).unwrap_or(0);
    start..start + PAGE
}

fn offset(start: u64, address: u64) -> usize {
    usize::try_from(address - start).unwrap_or(PAGE)
}

/// An error about a page.
pub(crate) fn page_error(page: u64, why: &str) -> Error {
    Error::Page { page, why: why.to_owned() }
}

/// The rules for a request whose copies begin at `start`: the home copy first, then a view per
/// owner.
///
/// # Errors
/// [`Error::Page`] if the ranges overlap or leave the page.
pub(crate) fn plan(request: &PageRequest, start: u64) -> Result<RemappedPage> {
    let mut rules = Vec::new();
    for (ranges, number) in request.owners.iter().zip(1..) {
        let delta = (start + number * PAGE_BYTES).wrapping_sub(request.page).cast_signed();
        let shifts = if request.consolidated { consolidating_shifts(ranges) } else { vec![0; ranges.len()] };
        let rule = |(bytes, shift): (&Range<u64>, i64)| RemapRule { bytes: bytes.clone(), delta: delta + shift };
        rules.extend(ranges.iter().zip(shifts).map(rule));
    }
    let home = start.wrapping_sub(request.page).cast_signed();
    RemappedPage::new(request.page, home, rules).map_err(|error| page_error(request.page, &error.to_string()))
}

/// For each range, the distance to the first line that has the range's bytes free. A range that
/// crosses a line boundary stays.
///
/// Source: the thesis, section 7.1 (consolidation). The thesis leaves open how to find data that is
/// used together; here it is the data of one owner.
fn consolidating_shifts(ranges: &[Range<u64>]) -> Vec<i64> {
    let line = |address: u64| address / LINE_BYTES;
    let stays = |range: &Range<u64>| line(range.start) != line(range.end - 1);
    // For each line of the view, the bytes that are taken.
    let mut taken = [0_u64; (PAGE_BYTES / LINE_BYTES) as usize];
    let place = |address: u64| usize::try_from(address % PAGE_BYTES / LINE_BYTES).unwrap_or(0);
    let bits = |range: &Range<u64>| range.clone().fold(0, |bits, address| bits | 1_u64 << (address % LINE_BYTES));
    for range in ranges.iter().filter(|range| stays(range)) {
        range.clone().for_each(|address| taken[place(address)] |= 1 << (address % LINE_BYTES));
    }
    let mut shift = |range: &Range<u64>| {
        if stays(range) {
            return 0;
        }
        let (own, bits) = (place(range.start), bits(range));
        let Some(free) = taken.iter().position(|taken| taken & bits == 0) else { return 0 };
        taken[free] |= bits;
        (free as u64).wrapping_sub(own as u64).wrapping_mul(LINE_BYTES).cast_signed()
    };
    ranges.iter().map(&mut shift).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_an_owner_are_packed_into_few_lines() {
        let ranges = [0x1008..0x1010, 0x1050..0x1058, 0x1088..0x1090, 0x1ff0..0x1ff8, 0x1130..0x1148];
        let shifts = consolidating_shifts(&ranges);
        let moved: Vec<u64> =
            ranges.iter().zip(&shifts).map(|(range, shift)| range.start.wrapping_add_signed(*shift)).collect();
        // The third range has the first one's place in its line; the last range crosses a line
        // boundary.
        assert_eq!(moved, [0x1008, 0x1010, 0x1048, 0x1030, 0x1130]);
    }

    #[test]
    fn a_consolidated_page_has_each_byte_once() {
        let owner = |lines: Range<u64>| {
            lines.map(|line| 0x1000 + line * 64 + line % 8 * 8..0x1008 + line * 64 + line % 8 * 8).collect::<Vec<_>>()
        };
        let request = PageRequest {
            page: 0x1000,
            owners: vec![owner(0..20), owner(20..40)],
            consolidated: true,
            watched: Vec::new(),
        };
        let page = plan(&request, 0x10_0000).unwrap();
        let places: std::collections::BTreeSet<u64> = page
            .rules
            .iter()
            .flat_map(|rule| rule.bytes.clone().map(|at| at.wrapping_add_signed(rule.delta)))
            .collect();
        assert_eq!(places.len(), 40 * 8, "each byte has a place of its own");
        let lines: std::collections::BTreeSet<u64> = places.iter().map(|at| at / 64).collect();
        assert_eq!(lines.len(), 6, "20 words need three lines for each owner");
        assert!(lines.iter().all(|line| (0x10_1000 / 64..0x10_3000 / 64).contains(line)));
    }
}
