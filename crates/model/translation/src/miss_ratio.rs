//! The miss ratio as a function of the TLB size: what would a TLB of any size do for this program?
//!
//! A fully associative LRU TLB misses if the *stack distance* of an access reaches its number of
//! entries (Mattson et al., 1970). The stack distance is the number of different pages since the
//! last access to the page. So one pass gives all sizes. For a program with few pages, all are
//! tracked, and the result is exact. Whenever more than `MAX_PAGES` would be tracked, the sample
//! drops half of the pages by their hash. Distances and accesses of the others then count double
//! (SHARDS with a fixed size, Waldspurger et al., FAST 2015).
//!
//! ```text
//!   tracked pages           all  ──── more than 8192 ───→  half  ──── more again ───→  a quarter  ...
//!   an access represents    1                              2                           4
//! ```
//! The sampled accesses do not represent exactly all accesses, in particular if one page is used
//! very often. The difference is assigned to the shortest distance, which such pages have
//! (SHARDS-adj). Such a page still distorts small sizes. So, unlike SHARDS, these are measured in
//! intervals, one sixteenth of the run, that track all pages.

mod stack;

use serde::{Deserialize, Serialize};

use crate::access::PlacedAccess;
use crate::mosaic::spread;
use crate::page::PageSize;
use stack::LruStack;

/// The most pages tracked: their records fit in a core's second-level cache.
const MAX_PAGES: u16 = 8192;
/// The log2 of the largest TLB size: 2^20 entries.
const MAX_SHIFT: u32 = 20;
/// The log2 of the smallest: 2^4 entries.
const MIN_SHIFT: u32 = 4;
/// The log2 of the largest size measured in intervals when pages are sampled: 2^8 entries.
const NEAR_SHIFT: u32 = 8;
/// Accesses from the start of one interval to the start of the next.
const PERIOD: u64 = 1 << 16;
/// The first accesses of an interval, which only establish the LRU order.
const WARM_UP: u64 = 1 << 10;
/// The accesses of an interval that count.
const COUNTED: u64 = 1 << 12;

/// The miss ratio of one TLB size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MissRatioPoint {
    /// Entries of the TLB.
    pub entries: u64,
    /// Misses per access, including the first access to each page.
    pub misses_an_access: f64,
}

/// Stack distances of a sample of the pages.
#[derive(Debug, Clone)]
pub struct MissRatioCurve {
    page: PageSize,
    /// One of 2^`sparse_shift` pages is tracked.
    sparse_shift: u32,
    stack: LruStack,
    accesses: u64,
    /// Accesses represented, by the log2 of the smallest size that hits; the last: none does.
    hits_from: [u64; MAX_SHIFT as usize + 2],
    near: IntervalDistances,
}

/// Distances over all pages, measured in intervals.
#[derive(Debug, Clone)]
struct IntervalDistances {
    stack: LruStack,
    /// Accesses represented by the counted ones.
    accesses: u64,
    /// Hits among them, by the log2 of the smallest size that hits.
    hits_from: [u64; NEAR_SHIFT as usize + 1],
}

impl MissRatioCurve {
    /// An empty curve for pages of size `page`.
    #[must_use]
    pub fn new(page: PageSize) -> Self {
        Self {
            page,
            sparse_shift: 0,
            stack: new_stack(0),
            accesses: 0,
            hits_from: [0; MAX_SHIFT as usize + 2],
            near: IntervalDistances {
                stack: LruStack::new(1 << NEAR_SHIFT, 1 << MIN_SHIFT),
                accesses: 0,
                hits_from: [0; NEAR_SHIFT as usize + 1],
            },
        }
    }

    /// Adds loads and stores; ignores fetches.
    pub fn run(&mut self, batch: &[PlacedAccess]) {
        for access in batch.iter().filter(|access| !access.is_fetch()) {
            self.accesses += 1;
            let page = access.location() >> self.page.shift();
            let hash = spread(page);
            if hash & ((1 << self.sparse_shift) - 1) == 0 {
                self.touch(page, hash);
            }
            let time = self.accesses % PERIOD;
            if time < WARM_UP + COUNTED && self.sparse_shift > 0 {
                let zone = self.near.stack.touch(page, hash);
                if time >= WARM_UP {
                    self.near.count(zone);
                }
            }
        }
    }

    /// The miss ratios of TLBs of 16 to 1 Mi entries, by powers of two. Omits sizes above 256 that
    /// are too small for the sample. Empty without accesses.
    #[must_use]
    pub fn points(&self) -> Vec<MissRatioPoint> {
        if self.accesses == 0 {
            return Vec::new();
        }
        let is_measured = |shift: &u32| *shift <= NEAR_SHIFT || *shift >= self.sparse_shift;
        let mut most = 1.0_f64;
        let point = |shift| {
            // A larger TLB does not miss more, whatever the sample gives.
            most = most.min(self.misses_an_access(shift));
            MissRatioPoint { entries: 1_u64 << shift, misses_an_access: most }
        };
        (MIN_SHIFT..=MAX_SHIFT).filter(is_measured).map(point).collect()
    }

    fn misses_an_access(&self, shift: u32) -> f64 {
        if shift <= NEAR_SHIFT && self.sparse_shift > 0 {
            let hits: u64 = self.near.hits_from[..=shift as usize].iter().sum();
            (self.near.accesses - hits) as f64 / self.near.accesses as f64
        } else {
            let misses: u64 = self.hits_from[shift as usize + 1..].iter().sum();
            misses as f64 / self.accesses as f64
        }
    }

    /// The number of different pages accessed; approximate if pages are sampled.
    #[must_use]
    pub fn pages(&self) -> u64 {
        (self.stack.len() as u64) << self.sparse_shift
    }

    /// Adds an access to a tracked page.
    #[inline]
    fn touch(&mut self, page: u64, hash: u64) {
        // A TLB hits if it holds as many pages as lie before the end of the zone.
        let zone = self.stack.touch(page, hash);
        let shift = zone.map_or(MAX_SHIFT + 1, |zone| MIN_SHIFT.max(self.sparse_shift) + u32::from(zone));
        self.hits_from[shift.min(MAX_SHIFT + 1) as usize] += 1 << self.sparse_shift;
        if self.stack.is_full() {
            self.thin_out();
        }
    }

    /// Drops half of the tracked pages.
    #[cold]
    fn thin_out(&mut self) {
        let pages = self.stack.oldest_first();
        if self.sparse_shift == 0 {
            // Until now all pages were tracked.
            self.near.accesses = self.accesses;
            self.near.hits_from.copy_from_slice(&self.hits_from[..=NEAR_SHIFT as usize]);
            for &page in &pages {
                self.near.stack.touch(page, spread(page));
            }
        }
        while self.stack.is_full() {
            self.sparse_shift += 1;
            self.stack = new_stack(self.sparse_shift);
            let mask = (1 << self.sparse_shift) - 1;
            for &page in pages.iter().filter(|&&page| spread(page) & mask == 0) {
                self.stack.touch(page, spread(page));
            }
        }
    }
}

impl IntervalDistances {
    /// Counts an access of an interval, to a page in this zone; it also represents accesses between
    /// the intervals.
    #[inline]
    fn count(&mut self, zone: Option<u8>) {
        self.accesses += PERIOD / COUNTED;
        let shift = zone.map_or(usize::MAX, |zone| MIN_SHIFT as usize + usize::from(zone));
        if let Some(hits) = self.hits_from.get_mut(shift) {
            *hits += PERIOD / COUNTED;
        }
    }
}

/// A stack whose first zone ends at the smallest TLB size, with space for one page more than is
/// tracked.
fn new_stack(sparse_shift: u32) -> LruStack {
    LruStack::new(MAX_PAGES + 1, 1 << MIN_SHIFT.saturating_sub(sparse_shift))
}

#[cfg(test)]
mod tests {
    use super::{MissRatioCurve, PageSize};
    use crate::access::PlacedAccess;
    use crate::lru::LruTable;
    use crate::mosaic::spread;

    fn pages(numbers: impl Iterator<Item = u64>) -> Vec<PlacedAccess> {
        numbers.map(|page| PlacedAccess::in_region(page << 12 | 8)).collect()
    }

    #[test]
    fn cyclic_accesses_miss_until_all_pages_fit() {
        let mut reach = MissRatioCurve::new(PageSize::Small4k);
        reach.run(&pages((0..10).flat_map(|_| 0..64)));
        let points = reach.points();
        // 64 pages, ten times: 16 and 32 entries never hit; 64 miss the first round only, a tenth.
        let rates: Vec<(u64, f64)> = points.iter().map(|point| (point.entries, point.misses_an_access)).collect();
        assert_eq!(rates[..3], [(16, 1.0), (32, 1.0), (64, 0.1)]);
        assert_eq!((rates.last(), reach.pages()), (Some(&(1 << 20, 0.1)), 64));
    }

    #[test]
    fn with_all_pages_tracked_the_curve_is_exact() {
        let trace = pages((0..60_000).map(|step| spread(step) % (40 + step / 16)));
        let mut reach = MissRatioCurve::new(PageSize::Small4k);
        reach.run(&trace);
        for point in reach.points().iter().take(7) {
            let mut table = LruTable::full(u32::try_from(point.entries).unwrap());
            let misses = trace.iter().filter(|access| !table.touch(0, (access.address() >> 12) + 1)).count();
            assert_eq!(point.misses_an_access, misses as f64 / trace.len() as f64, "{} entries", point.entries);
        }
    }

    #[test]
    fn many_pages_are_counted_approximately() {
        let mut reach = MissRatioCurve::new(PageSize::Small4k);
        reach.run(&pages((0..400_000).map(|step| spread(step) % 300_000)));
        let different = 300_000.0 * (1.0 - (-4.0_f64 / 3.0).exp());
        let found = reach.pages() as f64 / different;
        assert!((0.95..1.05).contains(&found), "{found} of them");
    }

    #[test]
    fn sizes_too_small_for_the_sample_are_omitted() {
        let mut reach = MissRatioCurve::new(PageSize::Small4k);
        reach.run(&pages(0..3 << 20));
        let entries: Vec<u64> = reach.points().iter().map(|point| point.entries).collect();
        assert_eq!(entries[3..7], [128, 256, 512, 1024], "one page of 512 is tracked");
    }

    #[test]
    fn fetches_are_ignored_and_no_access_gives_no_points() {
        let mut reach = MissRatioCurve::new(PageSize::Large2m);
        reach.run(&[PlacedAccess::outside(0).fetch()]);
        assert!(reach.points().is_empty());
    }
}
