//! The simulation of one configuration: its TLBs, and the loop over a batch of accesses.
//!
//! ```text
//!   same page as the previous access on the same side?  → a hit of the first level, which changes nothing
//!   else level by level: the array for this page size, if the level has one
//!   else a walk
//! ```
//! The first level of a side is private, so only this side's accesses can evict that page. A lookup
//! inserts the translation (`touch`), so a miss fills every level on its way. Hits of the first
//! level are not counted singly: they are the remaining accesses.

use super::counts::{Counts, SideCounts};
use super::range_tlb::RangeTlb;
use super::walk::PageWalker;
use crate::access::PlacedAccess;
use crate::configuration::{Configuration, Scheme};
use crate::lru::LruTable;
use crate::mmu::{TLB_LEVELS, TlbLevel};
use crate::mosaic::spread;
use crate::page::PageSize;

/// How a level holds pages of one size.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The array's number, or that of `NOWHERE`.
    array: u8,
    shift: u32,
    /// The page size that it is held under, from 1.
    tag: u8,
}

const NOWHERE: Slot = Slot { array: u8::MAX, shift: 0, tag: 1 };

/// The number of accesses in a batch: loads and stores, then fetches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BatchTotals {
    accesses: [u64; 2],
    in_region: [u64; 2],
}

/// By level and page size.
type Slots = [[Slot; 3]; TLB_LEVELS];

/// A core that simulates one configuration.
#[derive(Debug, Clone)]
pub(super) struct Translator {
    scheme: Scheme,
    /// The region's (larger) page size, and the chunks that have it: bits of a chunk, and the
    /// threshold of its hash.
    region_size: PageSize,
    mosaic: Option<(u32, u64)>,
    other_size: PageSize,
    tables: Vec<LruTable>,
    /// Loads and stores, then fetches.
    slots: [Slots; 2],
    levels: [usize; 2],
    /// The key last looked up in the first level; 0: none.
    last: [u64; 2],
    sides: [SideCounts; 2],
    ranges: Option<RangeTlb>,
    walker: PageWalker,
}

impl BatchTotals {
    pub(super) fn of(batch: &[PlacedAccess]) -> Self {
        let mut tally = Self::default();
        for access in batch {
            let (fetch, in_region) = (u64::from(access.is_fetch()), u64::from(access.is_in_region()));
            tally.accesses[1] += fetch;
            tally.in_region[0] += in_region & !fetch;
            tally.in_region[1] += in_region & fetch;
        }
        tally.accesses[0] = batch.len() as u64 - tally.accesses[1];
        tally
    }

    /// The totals of `times` accesses like `like`.
    pub(super) fn times(like: PlacedAccess, times: u64) -> Self {
        let one = Self::of(&[like]);
        Self { accesses: one.accesses.map(|count| count * times), in_region: one.in_region.map(|count| count * times) }
    }
}

impl Slot {
    #[inline]
    fn page(self, location: u64) -> u64 {
        location >> self.shift
    }

    /// Page number and size, never 0.
    #[inline]
    fn key(self, location: u64) -> u64 {
        self.page(location) << 2 | u64::from(self.tag)
    }
}

impl Translator {
    /// Creates a core. `configuration` has been checked.
    pub(super) fn new(configuration: &Configuration) -> Self {
        let machine = &configuration.machine;
        let (region_size, mosaic) = configuration.region_pages.with_threshold();
        let mut core = Self {
            scheme: configuration.scheme,
            region_size,
            mosaic,
            other_size: configuration.other_pages,
            tables: Vec::new(),
            slots: [[[NOWHERE; 3]; TLB_LEVELS]; 2],
            levels: [machine.data.len(), machine.instruction_levels().len()],
            last: [0; 2],
            sides: [SideCounts::default(); 2],
            ranges: None,
            walker: PageWalker::new(&machine.walk_caches, configuration.nested),
        };
        if let Scheme::RangeTlb { entries } = configuration.scheme {
            core.ranges = Some(RangeTlb::new(entries));
        }
        for (number, level) in machine.data.iter().enumerate() {
            core.slots[0][number] = core.build(level, configuration.nested);
        }
        for (number, level) in machine.instruction.iter().enumerate() {
            core.slots[1][number] = core.build(level, configuration.nested);
        }
        if machine.shared_last {
            core.slots[1][core.levels[1] - 1] = core.slots[0][core.levels[0] - 1];
        }
        core
    }

    /// Adds the tables of a level, and returns where each page size goes. A page that the host
    /// splits into smaller ones is held as one of those.
    fn build(&mut self, level: &TlbLevel, host: Option<PageSize>) -> [Slot; 3] {
        let first = self.tables.len();
        self.tables.extend(level.arrays.iter().map(|array| LruTable::new(array.entries, array.set_ways())));
        PageSize::ALL.map(|size| {
            let size = host.map_or(size, |host| size.min(host));
            let held = level.arrays.iter().zip(first..).find_map(|(array, number)| Some((number, array.holds(size)?)));
            let Some((number, held)) = held else { return NOWHERE };
            Slot { array: u8::try_from(number).unwrap_or(u8::MAX), shift: held.shift(), tag: held as u8 + 1 }
        })
    }

    /// Runs a batch with the totals `tally`. Appends the indices of accesses that walked to
    /// `walked`.
    pub(super) fn run(&mut self, batch: &[PlacedAccess], tally: &BatchTotals, mut walk_indices: Option<&mut Vec<u32>>) {
        self.count(tally);
        if self.scheme == Scheme::NoTranslation {
            return;
        }
        let segment = self.scheme == Scheme::DirectSegment;
        for (access, at) in batch.iter().zip(0..) {
            if segment && access.is_in_region() {
                continue;
            }
            if self.translate(*access) {
                walk_indices.iter_mut().for_each(|indices| indices.push(at));
            }
        }
    }

    /// Counts accesses that need no translation.
    pub(super) fn count(&mut self, tally: &BatchTotals) {
        for (side, (all, in_region)) in self.sides.iter_mut().zip(tally.accesses.iter().zip(tally.in_region)) {
            side.accesses += all;
            match self.scheme {
                Scheme::NoTranslation => side.untranslated += all,
                Scheme::DirectSegment => side.in_segment += in_region,
                Scheme::Paged | Scheme::RangeTlb { .. } => {}
            }
        }
    }

    /// Translates by TLBs and page table. Returns whether there was a walk.
    #[inline]
    fn translate(&mut self, access: PlacedAccess) -> bool {
        let side = usize::from(access.is_fetch());
        let size = self.size_of(access);
        let key = self.slots[side][0][size.index()].key(access.location());
        if key == self.last[side] {
            return false;
        }
        self.last[side] = key;
        self.look_up(side, size, access)
    }

    #[inline]
    fn size_of(&self, access: PlacedAccess) -> PageSize {
        if !access.is_in_region() {
            return self.other_size;
        }
        match self.mosaic {
            Some((shift, bound)) if spread(access.address() >> shift) >> 11 >= bound => PageSize::Small4k,
            _ => self.region_size,
        }
    }

    #[inline]
    fn look_up(&mut self, side: usize, size: PageSize, access: PlacedAccess) -> bool {
        let location = access.location();
        for level in 0..self.levels[side] {
            let slot = self.slots[side][level][size.index()];
            let table = self.tables.get_mut(usize::from(slot.array));
            if table.is_some_and(|table| table.touch(slot.page(location), slot.key(location))) {
                self.sides[side].hits[level] += 1;
                return false;
            }
            if let Some(ranges) = &mut self.ranges
                && level == 0
                && access.is_in_region()
                && ranges.touch(access.address())
            {
                self.sides[side].range_hits += 1;
                return false;
            }
        }
        self.walk(side, size, access);
        true
    }

    #[inline]
    fn walk(&mut self, side: usize, size: PageSize, access: PlacedAccess) {
        let cost = self.walker.walk(access.location(), size);
        let side = &mut self.sides[side];
        side.walks += 1;
        side.walks_by_size[size.index()] += 1;
        side.walks_in_region += u64::from(access.is_in_region());
        side.walk_memory_references += cost.references;
        side.walks_pte_line_missed += u64::from(cost.line_missed);
    }

    pub(super) fn set_ranges(&mut self, starts: &[u64]) {
        if let Some(ranges) = &mut self.ranges {
            ranges.set(starts);
        }
    }

    /// Clears all translations, but not the counts.
    pub(super) fn flush(&mut self) {
        self.tables.iter_mut().for_each(LruTable::clear);
        self.ranges.iter_mut().for_each(RangeTlb::clear);
        self.walker.clear();
        self.last = [0; 2];
    }

    /// The counts. Hits of the first level are the remaining accesses.
    pub(super) fn counts(&self) -> Counts {
        let [data, instruction] = self.sides.map(|mut side| {
            let others = side.hits[1..].iter().sum::<u64>() + side.range_hits + side.walks;
            side.hits[0] = side.accesses - side.in_segment - side.untranslated - others;
            side
        });
        Counts { data, instruction }
    }

    pub(super) fn set_counts(&mut self, counts: Counts) {
        self.sides = [counts.data, counts.instruction];
    }
}
