//! Misses an access against the number of TLB entries: what would a TLB of any size do for this program?
//!
//! A fully associative TLB with least recently used replacement misses where the *stack distance* of an access, the
//! number of different pages since the last access to its page, reaches its entries (Mattson et al., 1970). One pass
//! therefore answers for all sizes. Only pages whose hash says so are looked at, a fixed share of all, and their
//! distances are scaled up (SHARDS, Waldspurger et al., FAST 2015): memory and time shrink by that share.
//!
//! ```text
//!   times    1  2  3  4  5  6        each page stands at the time of its last access, and counts as one there;
//!   pages    .  a  .  c  b  .        the distance of an access to a is the sum behind its place: c, b: 2
//! ```
//! Where we differ: the sampled accesses are compared with all sampled accesses, not with the expected number of them,
//! so a page that is much hotter than others cannot push the rate above 1. Sizes below the inverse of the share are
//! not told.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::access::Access;
use crate::lru::index;
use crate::mosaic::spread;
use crate::page::PageSize;

/// The largest TLB that is told: 2^20 entries.
const MOST_SHIFT: u32 = 20;
/// The smallest: 2^4 entries.
const LEAST_SHIFT: u32 = 4;

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
    /// When each page was accessed last, from 1.
    last: HashMap<u64, usize>,
    /// Ones at those times.
    ones: Sums,
    now: usize,
    sampled: u64,
    /// Sampled accesses by the smallest power of two of entries that would hit; the last: none.
    hits_from: [u64; MOST_SHIFT as usize + 2],
    newest: Option<u64>,
}

/// Sums over a row of numbers that change (a Fenwick tree).
#[derive(Debug, Clone)]
struct Sums {
    tree: Vec<i64>,
}

impl Sums {
    fn new(length: usize) -> Self {
        Self { tree: vec![0; length + 1] }
    }

    /// Adds `by` at `place`, from 1.
    fn add(&mut self, mut place: usize, by: i64) {
        while place < self.tree.len() {
            self.tree[place] += by;
            place += place & place.wrapping_neg();
        }
    }

    /// The sum of places 1 to `place`.
    fn up_to(&self, mut place: usize) -> i64 {
        let mut sum = 0;
        while place > 0 {
            sum += self.tree[place];
            place -= place & place.wrapping_neg();
        }
        sum
    }
}

impl Reach {
    /// Looks at pages of `page` bytes, one of 16 of them.
    #[must_use]
    pub fn new(page: PageSize) -> Self {
        Self::sampled(page, 4)
    }

    /// Looks at one page of 2^`sparse_shift`; 0 looks at all, and is exact at powers of two.
    #[must_use]
    pub fn sampled(page: PageSize, sparse_shift: u32) -> Self {
        Self {
            page,
            sparse_shift: sparse_shift.min(LEAST_SHIFT + 12),
            last: HashMap::new(),
            ones: Sums::new(1024),
            now: 0,
            sampled: 0,
            hits_from: [0; MOST_SHIFT as usize + 2],
            newest: None,
        }
    }

    /// Takes loads and stores; leaves fetches out.
    pub fn run(&mut self, batch: &[Access]) {
        let mask = (1_u64 << self.sparse_shift) - 1;
        for access in batch {
            let page = access.location() >> self.page.shift();
            if spread(page) & mask == 0 && !access.is_fetch() {
                self.touch(page);
            }
        }
    }

    /// Misses an access of TLBs of 16 to 1 Mi entries, by powers of two. Empty without accesses.
    #[must_use]
    pub fn points(&self) -> Vec<ReachPoint> {
        if self.sampled == 0 {
            return Vec::new();
        }
        let misses_of = |shift: u32| -> u64 { self.hits_from[shift as usize + 1..].iter().sum() };
        let point = |shift| ReachPoint {
            entries: 1_u64 << shift,
            misses_an_access: misses_of(shift) as f64 / self.sampled as f64,
        };
        (LEAST_SHIFT.max(self.sparse_shift)..=MOST_SHIFT).map(point).collect()
    }

    /// Different pages that were accessed, about.
    #[must_use]
    pub fn pages(&self) -> u64 {
        (self.last.len() as u64) << self.sparse_shift
    }

    /// An access to a page of the sample.
    fn touch(&mut self, page: u64) {
        self.sampled += 1;
        if self.newest == Some(page) {
            self.hits_from[0] += 1;
            return;
        }
        self.newest = Some(page);
        if self.now + 1 >= self.ones.tree.len() {
            self.renumber();
        }
        self.now += 1;
        let before = self.last.insert(page, self.now);
        self.hits_from[before.map_or(index(u64::from(MOST_SHIFT) + 1), |time| self.hit_shift(time))] += 1;
        if let Some(time) = before {
            self.ones.add(time, -1);
        }
        self.ones.add(self.now, 1);
    }

    /// The smallest power of two of entries that holds what was accessed at `time` and all since.
    fn hit_shift(&self, time: usize) -> usize {
        let since = self.ones.up_to(self.now) - self.ones.up_to(time);
        let distance = since.unsigned_abs() << self.sparse_shift;
        // A TLB of E entries holds it if E > distance.
        index(u64::from((u64::BITS - distance.leading_zeros()).min(MOST_SHIFT + 1)))
    }

    /// Times are used up: numbers the pages anew in their order, with room for as many accesses again.
    fn renumber(&mut self) {
        let mut order: Vec<(usize, u64)> = self.last.iter().map(|(&page, &time)| (time, page)).collect();
        order.sort_unstable();
        self.ones = Sums::new((order.len() * 2).max(1024));
        for (time, &(_, page)) in (1..).zip(&order) {
            self.last.insert(page, time);
            self.ones.add(time, 1);
        }
        self.now = order.len();
    }
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
        let mut reach = Reach::sampled(PageSize::Small4k, 0);
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
        let mut reach = Reach::sampled(PageSize::Small4k, 0);
        reach.run(&trace);
        for point in reach.points().iter().take(7) {
            let mut table = Table::full(u32::try_from(point.entries).unwrap());
            let misses = trace.iter().filter(|access| !table.touch(0, (access.address() >> 12) + 1)).count();
            assert_eq!(point.misses_an_access, misses as f64 / trace.len() as f64, "{} entries", point.entries);
        }
    }

    #[test]
    fn a_sample_is_near_the_whole() {
        let trace = pages((0..400_000).map(|step| spread(step) % 20_000));
        let (mut all, mut some) = (Reach::sampled(PageSize::Small4k, 0), Reach::new(PageSize::Small4k));
        all.run(&trace);
        some.run(&trace);
        for (all, some) in all.points().iter().zip(some.points()).filter(|(all, _)| all.entries >= 1024) {
            let error = (all.misses_an_access - some.misses_an_access).abs();
            assert!(error < 0.03, "{} entries: off by {error}", all.entries);
        }
        assert!(some.pages().abs_diff(20_000) < 2_000, "{}", some.pages());
    }

    #[test]
    fn nothing_tells_nothing_and_fetches_are_left_out() {
        let mut reach = Reach::new(PageSize::Large2m);
        reach.run(&[Access::outside(0).fetch()]);
        assert!(reach.points().is_empty());
    }
}
