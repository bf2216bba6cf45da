//! One configuration at work: the state of its TLBs, and the loop over a batch of accesses.
//!
//! ```text
//!   same page as the access before, on the same side?  → a hit of the first rank, and nothing moves
//!   else rank by rank: the array that holds this page size, if the rank has one
//!   else a walk
//! ```
//! The first rank of a side is its own, so nothing but this side's accesses takes that page out of it.
//! Asking an array puts the translation in (`touch`), so that a miss fills every rank on its way. Hits of the first rank
//! are not counted one by one: they are what is left of all accesses.

use super::counts::{Counts, Side};
use super::ranges::Ranges;
use super::walk::Walker;
use crate::access::Access;
use crate::configuration::{Configuration, Scheme};
use crate::lru::Table;
use crate::machine::{RANKS, Rank};
use crate::mosaic::spread;
use crate::page::PageSize;

/// How an array holds pages of one size.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Its number, or `NOWHERE`.
    array: u8,
    shift: u32,
    /// The page size that it is held under, from 1.
    tag: u8,
}

const NOWHERE: Slot = Slot { array: u8::MAX, shift: 0, tag: 1 };

/// How many accesses there are in a batch: loads and stores, then fetches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    accesses: [u64; 2],
    in_region: [u64; 2],
}

/// By rank and page size.
type Slots = [[Slot; 3]; RANKS];

/// A core with one configuration.
#[derive(Debug, Clone)]
pub(super) struct Translator {
    scheme: Scheme,
    /// The region's (larger) page size, and the chunks that have it: bits of a chunk, and the bound of its hash.
    region_size: PageSize,
    mosaic: Option<(u32, u64)>,
    other_size: PageSize,
    tables: Vec<Table>,
    /// Loads and stores, then fetches.
    slots: [Slots; 2],
    ranks: [usize; 2],
    /// What the first rank was asked for last; 0: nothing.
    last: [u64; 2],
    sides: [Side; 2],
    ranges: Option<Ranges>,
    walker: Walker,
}

impl Tally {
    pub(super) fn of(batch: &[Access]) -> Self {
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

    /// `times` of one access.
    pub(super) fn times(like: Access, times: u64) -> Self {
        let one = Self::of(&[like]);
        Self { accesses: one.accesses.map(|count| count * times), in_region: one.in_region.map(|count| count * times) }
    }
}

impl Slot {
    #[inline]
    fn page(self, location: u64) -> u64 {
        location >> self.shift
    }

    /// Page number and size; never 0.
    #[inline]
    fn key(self, location: u64) -> u64 {
        self.page(location) << 2 | u64::from(self.tag)
    }
}

impl Translator {
    /// `configuration` has been checked.
    pub(super) fn new(configuration: &Configuration) -> Self {
        let machine = &configuration.machine;
        let (region_size, mosaic) = configuration.region_pages.compiled();
        let mut core = Self {
            scheme: configuration.scheme,
            region_size,
            mosaic,
            other_size: configuration.other_pages,
            tables: Vec::new(),
            slots: [[[NOWHERE; 3]; RANKS]; 2],
            ranks: [machine.data.len(), machine.instruction_ranks().len()],
            last: [0; 2],
            sides: [Side::default(); 2],
            ranges: None,
            walker: Walker::new(&machine.walk_caches, configuration.nested),
        };
        if let Scheme::RangeTlb { entries } = configuration.scheme {
            core.ranges = Some(Ranges::new(entries));
        }
        for (number, rank) in machine.data.iter().enumerate() {
            core.slots[0][number] = core.build(rank, configuration.nested);
        }
        for (number, rank) in machine.instruction.iter().enumerate() {
            core.slots[1][number] = core.build(rank, configuration.nested);
        }
        if machine.shared_last {
            core.slots[1][core.ranks[1] - 1] = core.slots[0][core.ranks[0] - 1];
        }
        core
    }

    /// The tables of a rank, and where in them a page of each size goes. A page that the host has in smaller ones is
    /// held as one of those.
    fn build(&mut self, rank: &Rank, host: Option<PageSize>) -> [Slot; 3] {
        let first = self.tables.len();
        self.tables.extend(rank.arrays.iter().map(|array| Table::new(array.entries, array.set_ways())));
        PageSize::ALL.map(|size| {
            let size = host.map_or(size, |host| size.min(host));
            let held = rank.arrays.iter().zip(first..).find_map(|(array, number)| Some((number, array.holds(size)?)));
            let Some((number, held)) = held else { return NOWHERE };
            Slot { array: u8::try_from(number).unwrap_or(u8::MAX), shift: held.shift(), tag: held as u8 + 1 }
        })
    }

    /// Runs a batch, of which `tally` says what is in it; puts the places of the accesses that walked into `walked`.
    pub(super) fn run(&mut self, batch: &[Access], tally: &Tally, mut walked: Option<&mut Vec<u32>>) {
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
                walked.iter_mut().for_each(|walked| walked.push(at));
            }
        }
    }

    /// Counts what needs no translating to be known.
    pub(super) fn count(&mut self, tally: &Tally) {
        for (side, (all, in_region)) in self.sides.iter_mut().zip(tally.accesses.iter().zip(tally.in_region)) {
            side.accesses += all;
            match self.scheme {
                Scheme::NoTranslation => side.untranslated += all,
                Scheme::DirectSegment => side.in_segment += in_region,
                Scheme::Paged | Scheme::RangeTlb { .. } => {}
            }
        }
    }

    /// Translates by TLBs and page table. Was there a walk?
    #[inline]
    fn translate(&mut self, access: Access) -> bool {
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
    fn size_of(&self, access: Access) -> PageSize {
        if !access.is_in_region() {
            return self.other_size;
        }
        match self.mosaic {
            Some((shift, bound)) if spread(access.address() >> shift) >> 11 >= bound => PageSize::Small4k,
            _ => self.region_size,
        }
    }

    #[inline]
    fn look_up(&mut self, side: usize, size: PageSize, access: Access) -> bool {
        let location = access.location();
        for rank in 0..self.ranks[side] {
            let slot = self.slots[side][rank][size.index()];
            let table = self.tables.get_mut(usize::from(slot.array));
            if table.is_some_and(|table| table.touch(slot.page(location), slot.key(location))) {
                self.sides[side].hits[rank] += 1;
                return false;
            }
            if let Some(ranges) = &mut self.ranges
                && rank == 0
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
    fn walk(&mut self, side: usize, size: PageSize, access: Access) {
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

    /// Forgets all translations, not the counts.
    pub(super) fn flush(&mut self) {
        self.tables.iter_mut().for_each(Table::clear);
        self.ranges.iter_mut().for_each(Ranges::clear);
        self.walker.clear();
        self.last = [0; 2];
    }

    /// What was counted. Hits of the first rank are what is left.
    pub(super) fn counts(&self) -> Counts {
        let [data, instruction] = self.sides.map(|mut side| {
            let elsewhere = side.hits[1..].iter().sum::<u64>() + side.range_hits + side.walks;
            side.hits[0] = side.accesses - side.in_segment - side.untranslated - elsewhere;
            side
        });
        Counts { data, instruction }
    }

    pub(super) fn set_counts(&mut self, counts: Counts) {
        self.sides = [counts.data, counts.instruction];
    }
}
