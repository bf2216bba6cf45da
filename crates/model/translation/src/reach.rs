//! Misses an access against the number of TLB entries: what would a TLB of any size do for this program?
//!
//! A fully associative TLB with least recently used replacement misses where the *stack distance* of an access, the
//! number of different pages since the last access to its page, reaches its entries (Mattson et al., 1970). One pass
//! therefore answers for all sizes. As long as a program has few pages, all are looked at, and the answers are exact.
//! Whenever more than `MOST_PAGES` would be, every second one is looked at no longer, as its hash says, and the distances
//! of the others count double from then on, as do the accesses (SHARDS with a fixed size, Waldspurger et al., FAST 2015).
//!
//! ```text
//!   pages of the program    all  ──── more than 8192 ───→  half  ──── still more ───→  a quarter  ...
//!   an access stands for    1                              2                           4
//! ```
//! What the sampled accesses stand for is not quite all accesses: where a much used page is in the sample, or is not, it is
//! far from it. The difference is laid to the accesses of the shortest distance, which such pages have (SHARDS-adj): misses
//! are told of all accesses. That page can still spoil small sizes. So, where we differ, these are told by stretches of the
//! run, one sixteenth of it, in which all pages are looked at.

mod stack;

use serde::{Deserialize, Serialize};

use crate::access::Access;
use crate::mosaic::spread;
use crate::page::PageSize;
use stack::Stack;

/// Pages that are looked at at most: what is kept of them stays in a core's second cache.
const MOST_PAGES: u16 = 8192;
/// The largest TLB that is told: 2^20 entries.
const MOST_SHIFT: u32 = 20;
/// The smallest: 2^4 entries.
const LEAST_SHIFT: u32 = 4;
/// The largest that is told by stretches, where pages are sampled: 2^8 entries.
const NEAR_SHIFT: u32 = 8;
/// Accesses from the start of one stretch to the start of the next.
const PERIOD: u64 = 1 << 16;
/// The first accesses of a stretch, which only bring the pages into order.
const WARM_UP: u64 = 1 << 10;
/// Those that count.
const COUNTED: u64 = 1 << 12;

/// Miss rate of one TLB size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReachPoint {
    /// Entries of the TLB.
    pub entries: u64,
    /// Misses an access, the first access to each page included.
    pub misses_an_access: f64,
}

/// Stack distances of a sample of the pages.
#[derive(Debug, Clone)]
pub struct Reach {
    page: PageSize,
    /// One page of 2^`sparse_shift` is looked at.
    sparse_shift: u32,
    stack: Stack,
    accesses: u64,
    /// What sampled accesses stand for, by the smallest power of two of entries that would hit; the last: none.
    hits_from: [u64; MOST_SHIFT as usize + 2],
    near: Near,
}

/// All pages, for a part of the time.
#[derive(Debug, Clone)]
struct Near {
    stack: Stack,
    /// What those that were counted stand for.
    accesses: u64,
    /// Hits among them, by the smallest power of two of entries.
    hits_from: [u64; NEAR_SHIFT as usize + 1],
}

impl Reach {
    /// Nothing seen yet, of pages of `page` bytes.
    #[must_use]
    pub fn new(page: PageSize) -> Self {
        Self {
            page,
            sparse_shift: 0,
            stack: new_stack(0),
            accesses: 0,
            hits_from: [0; MOST_SHIFT as usize + 2],
            near: Near {
                stack: Stack::new(1 << NEAR_SHIFT, 1 << LEAST_SHIFT),
                accesses: 0,
                hits_from: [0; NEAR_SHIFT as usize + 1],
            },
        }
    }

    /// Takes loads and stores; leaves fetches out.
    pub fn run(&mut self, batch: &[Access]) {
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

    /// Misses an access of TLBs of 16 to 1 Mi entries, by powers of two; without those above 256 that are below the inverse
    /// of the share of pages that is looked at. Empty without accesses.
    #[must_use]
    pub fn points(&self) -> Vec<ReachPoint> {
        if self.accesses == 0 {
            return Vec::new();
        }
        let told = |shift: &u32| *shift <= NEAR_SHIFT || *shift >= self.sparse_shift;
        let mut most = 1.0_f64;
        let point = |shift| {
            // More entries miss no more, whatever a sample says.
            most = most.min(self.misses_an_access(shift));
            ReachPoint { entries: 1_u64 << shift, misses_an_access: most }
        };
        (LEAST_SHIFT..=MOST_SHIFT).filter(told).map(point).collect()
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

    /// Different pages that were accessed; about, where they are many.
    #[must_use]
    pub fn pages(&self) -> u64 {
        (self.stack.len() as u64) << self.sparse_shift
    }

    /// An access to a page of the sample.
    #[inline]
    fn touch(&mut self, page: u64, hash: u64) {
        // A TLB that holds as many pages as the zone ends with hits.
        let zone = self.stack.touch(page, hash);
        let shift = zone.map_or(MOST_SHIFT + 1, |zone| LEAST_SHIFT.max(self.sparse_shift) + u32::from(zone));
        self.hits_from[shift.min(MOST_SHIFT + 1) as usize] += 1 << self.sparse_shift;
        if self.stack.is_full() {
            self.thin_out();
        }
    }

    /// Looks at half of the pages from now on.
    #[cold]
    fn thin_out(&mut self) {
        let pages = self.stack.oldest_first();
        if self.sparse_shift == 0 {
            // Up to now all was counted.
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

impl Near {
    /// An access of a stretch, to a page that was in this zone; it stands for those between the stretches too.
    #[inline]
    fn count(&mut self, zone: Option<u8>) {
        self.accesses += PERIOD / COUNTED;
        let shift = zone.map_or(usize::MAX, |zone| LEAST_SHIFT as usize + usize::from(zone));
        if let Some(hits) = self.hits_from.get_mut(shift) {
            *hits += PERIOD / COUNTED;
        }
    }
}

/// A stack whose first zone ends with the smallest TLB that is told; and room for the page that is one too many.
fn new_stack(sparse_shift: u32) -> Stack {
    Stack::new(MOST_PAGES + 1, 1 << LEAST_SHIFT.saturating_sub(sparse_shift))
}

#[cfg(test)]
mod tests {
    use super::{PageSize, Reach};
    use crate::access::Access;
    use crate::lru::Table;
    use crate::mosaic::spread;

    fn pages(numbers: impl Iterator<Item = u64>) -> Vec<Access> {
        numbers.map(|page| Access::in_region(page << 12 | 8)).collect()
    }

    #[test]
    fn round_and_round_misses_until_all_pages_fit() {
        let mut reach = Reach::new(PageSize::Small4k);
        reach.run(&pages((0..10).flat_map(|_| 0..64)));
        let points = reach.points();
        // 64 pages, ten times: 16 and 32 entries never hit; 64 miss the first round only, a tenth.
        let rates: Vec<(u64, f64)> = points.iter().map(|point| (point.entries, point.misses_an_access)).collect();
        assert_eq!(rates[..3], [(16, 1.0), (32, 1.0), (64, 0.1)]);
        assert_eq!((rates.last(), reach.pages()), (Some(&(1 << 20, 0.1)), 64));
    }

    #[test]
    fn all_pages_looked_at_are_a_table_of_that_size() {
        let trace = pages((0..60_000).map(|step| spread(step) % (40 + step / 16)));
        let mut reach = Reach::new(PageSize::Small4k);
        reach.run(&trace);
        for point in reach.points().iter().take(7) {
            let mut table = Table::full(u32::try_from(point.entries).unwrap());
            let misses = trace.iter().filter(|access| !table.touch(0, (access.address() >> 12) + 1)).count();
            assert_eq!(point.misses_an_access, misses as f64 / trace.len() as f64, "{} entries", point.entries);
        }
    }

    #[test]
    fn many_pages_are_counted_about() {
        let mut reach = Reach::new(PageSize::Small4k);
        reach.run(&pages((0..400_000).map(|step| spread(step) % 300_000)));
        let different = 300_000.0 * (1.0 - (-4.0_f64 / 3.0).exp());
        let found = reach.pages() as f64 / different;
        assert!((0.95..1.05).contains(&found), "{found} of them");
    }

    #[test]
    fn sizes_between_the_stretches_and_the_sample_are_not_told() {
        let mut reach = Reach::new(PageSize::Small4k);
        reach.run(&pages(0..3 << 20));
        let entries: Vec<u64> = reach.points().iter().map(|point| point.entries).collect();
        assert_eq!(entries[3..7], [128, 256, 512, 1024], "one page of 512 is looked at");
    }

    #[test]
    fn nothing_tells_nothing_and_fetches_are_left_out() {
        let mut reach = Reach::new(PageSize::Large2m);
        reach.run(&[Access::outside(0).fetch()]);
        assert!(reach.points().is_empty());
    }
}
