//! Large values: each in adjacent pages, written once and before the commit that refers to it.
//!
//! ```text
//! entry of a leaf ─→ first page, bytes, check ─→ pages │ the value and nothing else │
//! ```
//! An extent does not go through the log, and never changes. So its pages must not be written by anyone
//! else as long as somebody may read it:
//! - a removed extent is in use until its transaction has committed, and *held* until no snapshot is older,
//!   as are the pages of removed nodes;
//! - a new extent takes no page that the log contains: recovery would overwrite it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Mutex;

use xxhash_rust::xxh3::xxh3_64;

use crate::frames::MOST_PAGES;
use crate::lock::lock;
use crate::page::{PAGE, set_u32, set_u64, u32_at, u64_at};
use crate::space::GROUP;

/// The largest value: it fits into a group of pages beside their map.
pub(crate) const LARGEST_VALUE: usize = (GROUP as usize - 1) * PAGE;

/// Where a large value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first page.
    pub(crate) start: u32,
    /// Bytes of the value.
    pub(crate) bytes: u64,
    /// Of the value. The page with this reference has a check of its own, so this one needs no seed.
    check: u64,
}

impl Extent {
    /// Bytes of a reference in a leaf.
    pub(crate) const REFERENCE: usize = 20;

    /// The extent of these contents at a page.
    pub(crate) fn new(start: u32, contents: &[u8]) -> Self {
        Self { start, bytes: contents.len() as u64, check: xxh3_64(contents) }
    }

    /// The bytes of a reference to it.
    pub(crate) fn encode(self) -> [u8; Self::REFERENCE] {
        let mut bytes = [0; Self::REFERENCE];
        set_u32(&mut bytes, 0, self.start);
        set_u64(&mut bytes, 4, self.bytes);
        set_u64(&mut bytes, 12, self.check);
        bytes
    }

    /// The extent of a reference.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self { start: u32_at(bytes, 0), bytes: u64_at(bytes, 4), check: u64_at(bytes, 12) }
    }

    /// Its pages.
    pub(crate) fn pages(self) -> Range<u32> {
        self.start..self.start.saturating_add(self.bytes.div_ceil(PAGE as u64) as u32)
    }

    /// Where it begins in the file.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.start) * PAGE as u64
    }

    /// Whether a store can have it.
    pub(crate) fn is_possible(self) -> bool {
        self.start < MOST_PAGES && self.bytes <= LARGEST_VALUE as u64
    }

    /// Whether these are its contents.
    pub(crate) fn has(self, contents: &[u8]) -> bool {
        contents.len() as u64 == self.bytes && xxh3_64(contents) == self.check
    }
}

/// The large values in memory.
#[derive(Debug)]
pub(crate) struct Extents {
    loaded: Mutex<Loaded>,
    /// Bytes above which some are evicted.
    bound: usize,
}

/// The first page of an evicted large value, and its contents.
pub(crate) type Evicted = (u32, Box<[u8]>);

/// The contents of a large value.
#[derive(Debug)]
struct Loan {
    contents: Box<[u8]>,
    /// Whether a reader may have them.
    is_lent: bool,
}

#[derive(Debug, Default)]
struct Loaded {
    /// By their first pages.
    contents: HashMap<u32, Loan>,
    /// First pages, those that are in memory the longest first; also of some that are gone.
    order: VecDeque<u32>,
    bytes: usize,
}

impl Loaded {
    fn remove(&mut self, start: u32) -> Option<Loan> {
        let removed = self.contents.remove(&start);
        self.bytes -= removed.as_ref().map_or(0, |loan| loan.contents.len());
        removed
    }

    /// Evicts the value that is in memory the longest, if there is one. Returns its contents with its first page if
    /// they were lent; others are dropped.
    fn evict(&mut self) -> Option<Option<Evicted>> {
        let oldest = self.order.pop_front()?;
        Some(self.remove(oldest).filter(|loan| loan.is_lent).map(|loan| (oldest, loan.contents)))
    }
}

impl Extents {
    pub(crate) fn new(bound: usize) -> Self {
        Self { loaded: Mutex::default(), bound }
    }

    /// Lends the contents of an extent that is in memory.
    pub(crate) fn lend(&self, start: u32) -> Option<*const [u8]> {
        let mut loaded = lock(&self.loaded);
        let loan = loaded.contents.get_mut(&start)?;
        loan.is_lent = true;
        Some(&raw const *loan.contents)
    }

    /// Keeps the contents of an extent that is in the file. Returns those that no longer fit into the memory and that
    /// readers may still use, with their first pages.
    pub(crate) fn insert(&self, start: u32, contents: Box<[u8]>) -> Vec<Evicted> {
        self.add(start, Loan { contents, is_lent: false })
    }

    /// As [`Extents::insert`], and lends the contents: where they are.
    pub(crate) fn insert_lent(&self, start: u32, contents: Box<[u8]>) -> (*const [u8], Vec<Evicted>) {
        let place = &raw const *contents;
        (place, self.add(start, Loan { contents, is_lent: true }))
    }

    fn add(&self, start: u32, loan: Loan) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        let mut loaded = lock(&self.loaded);
        loaded.bytes += loan.contents.len();
        while loaded.bytes > self.bound
            && let Some(oldest) = loaded.evict()
        {
            evicted.extend(oldest);
        }
        loaded.contents.insert(start, loan);
        loaded.order.push_back(start);
        evicted
    }

    /// Drops the contents of an extent that no reader can reach any more.
    pub(crate) fn remove(&self, start: u32) {
        let mut loaded = lock(&self.loaded);
        if loaded.remove(start).is_some() {
            loaded.order.retain(|other| *other != start);
        }
    }
}

/// Pages that were removed, and that a snapshot may still read.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// By their first pages: the page behind each, and the commit that has removed it.
    ranges: BTreeMap<u32, (u32, u64)>,
    /// The first of these commits.
    oldest: u64,
}

impl Held {
    /// Adds pages that a commit has removed.
    pub(crate) fn add(&mut self, pages: Range<u32>, removed_by: u64) {
        if self.ranges.is_empty() {
            self.oldest = removed_by;
        }
        self.ranges.insert(pages.start, (pages.end, removed_by));
    }

    /// The page behind all of them.
    pub(crate) fn end(&self) -> u32 {
        self.ranges.last_key_value().map_or(0, |(_, &(end, _))| end)
    }

    /// Whether a page is part of one.
    pub(crate) fn contains(&self, page: u32) -> bool {
        self.ranges.range(..=page).next_back().is_some_and(|(_, &(end, _))| page < end)
    }

    /// Releases the pages that only snapshots before version `oldest` can read, and calls `released` with the first
    /// page of each range. Returns whether there were such.
    pub(crate) fn release(&mut self, oldest: u64, mut released: impl FnMut(u32)) -> bool {
        if self.ranges.is_empty() || oldest < self.oldest {
            return false;
        }
        self.ranges.retain(|&start, &mut (_, removed_by)| {
            let is_held = removed_by > oldest;
            if !is_held {
                released(start);
            }
            is_held
        });
        self.oldest = self.ranges.values().map(|&(_, removed_by)| removed_by).min().unwrap_or(0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_read_as_it_was_written() {
        let contents = vec![7; 2 * PAGE + 1];
        let extent = Extent::new(100, &contents);
        assert_eq!(Extent::decode(&extent.encode()), extent);
        assert_eq!((extent.pages(), extent.is_possible()), (100..103, true));
        assert!(extent.has(&contents) && !extent.has(&contents[1..]) && !extent.has(&vec![8; contents.len()]));
        assert!(!Extent { bytes: 1 << 60, ..extent }.is_possible());
    }

    #[test]
    fn extents_are_held_until_no_snapshot_is_older() {
        let (extents, mut held) = (Extents::new(1 << 20), Held::default());
        for (start, removed_by) in [(10, 5), (20, 6)] {
            extents.insert(start, vec![0; 2 * PAGE].into());
            held.add(start..start + 2, removed_by);
        }
        held.release(4, |start| extents.remove(start));
        assert_eq!(
            [9, 10, 11, 12, 20, 21, 22].map(|page| held.contains(page)),
            [false, true, true, false, true, true, false]
        );
        held.release(5, |start| extents.remove(start));
        assert!(!held.contains(10) && held.contains(20) && extents.lend(10).is_none() && extents.lend(20).is_some());
        held.release(6, |start| extents.remove(start));
        assert!(!held.contains(20) && extents.lend(20).is_none());
    }

    #[test]
    fn the_extents_that_are_in_memory_the_longest_are_evicted() {
        let extents = Extents::new(10_000);
        let evicted = [1, 2, 3, 4].map(|start| extents.insert_lent(start, vec![start as u8; 4000].into()).1);
        let first = evicted.map(|evicted| evicted.first().map(|(start, contents)| (*start, contents[0])));
        assert_eq!(first, [None, None, Some((1, 1)), Some((2, 2))]);
        extents.remove(3);
        assert_eq!([1, 2, 3, 4].map(|start| extents.lend(start).is_some()), [false, false, false, true]);
        // Larger than the bound: it is alone.
        assert_eq!(extents.insert(5, vec![5; 20_000].into()).len(), 1);
        assert!(extents.lend(5).is_some());
    }

    #[test]
    fn evicted_contents_stay_only_if_they_were_lent() {
        let extents = Extents::new(10_000);
        let insert = |start: u32| extents.insert(start, vec![start as u8; 4000].into());
        assert!([1, 2].iter().all(|&start| insert(start).is_empty()) && extents.lend(2).is_some());
        assert_eq!(insert(3), []);
        assert_eq!(insert(4), [(2, vec![2; 4000].into())]);
    }
}
