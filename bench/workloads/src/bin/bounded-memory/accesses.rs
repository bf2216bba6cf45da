//! The pages that a thread accesses.
//!
//! | pattern | page |
//! |---|---|
//! | random | each with the same probability |
//! | zipf | the page of rank i with a probability proportional to 1 / i^0.99; ranks are spread over the memory |
//! | sequential | each after the one before it; threads start at equal distances |
//!
//! Source of the zipfian generator: Gray and others, *Quickly Generating Billion-Record Synthetic
//! Databases* (1994), as in YCSB. A draw costs one `powf`.

use clap::ValueEnum;
use fieldstone_workloads::random::SplitMix64;

const SEED: u64 = 0x626f_756e_6465_6421;
const EXPONENT: f64 = 0.99;

/// Which pages are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Pattern {
    Random,
    Zipf,
    Sequential,
}

/// An access to a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Access {
    pub(super) page: usize,
    /// Decides what the access does.
    pub(super) draw: u64,
}

/// The accesses of a thread, without an end.
pub(super) struct Accesses {
    random: SplitMix64,
    pages: usize,
    pages_of: Pages,
}

enum Pages {
    Random,
    Zipf(Zipf),
    Sequential { next: usize },
}

impl Accesses {
    /// The accesses of one of `threads` threads to `pages` pages.
    pub(super) fn new(pattern: Pattern, pages: usize, thread: u64, threads: u64) -> Self {
        let pages_of = match pattern {
            Pattern::Random => Pages::Random,
            Pattern::Zipf => Pages::Zipf(Zipf::new(pages)),
            #[expect(clippy::cast_possible_truncation, reason = "there are at most 64 threads")]
            Pattern::Sequential => Pages::Sequential { next: pages / threads as usize * thread as usize },
        };
        Self { random: SplitMix64::new(SEED ^ thread << 32), pages, pages_of }
    }
}

impl Iterator for Accesses {
    type Item = Access;

    #[inline]
    fn next(&mut self) -> Option<Access> {
        let page = match &mut self.pages_of {
            Pages::Random => self.random.below(self.pages),
            Pages::Zipf(zipf) => zipf.page(self.random.draw()),
            Pages::Sequential { next } => {
                let page = *next;
                *next = (page + 1) % self.pages;
                page
            }
        };
        Some(Access { page, draw: self.random.draw() })
    }
}

struct Zipf {
    pages: usize,
    /// Distance of the pages of two ranks; it has no common divisor with the number of pages.
    stride: usize,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(pages: usize) -> Self {
        let zeta = |count: usize| (1..=count).map(|rank| (rank as f64).powf(-EXPONENT)).sum::<f64>();
        let all = zeta(pages);
        let eta = (1.0 - (2.0 / pages as f64).powf(1.0 - EXPONENT)) / (1.0 - zeta(2) / all);
        // The golden ratio spreads consecutive ranks.
        let stride = (pages * 5 / 8 + 1..).find(|&stride| common_divisor(stride, pages) == 1).unwrap_or(1);
        Self { pages, stride, zeta: all, eta }
    }

    /// The page of a draw.
    #[inline]
    fn page(&self, draw: u64) -> usize {
        self.rank(draw) * self.stride % self.pages
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank is below the number of pages")]
    fn rank(&self, draw: u64) -> usize {
        let unit = (draw >> 11) as f64 / (1_u64 << 53) as f64;
        let place = unit * self.zeta;
        let rank = if place < 1.0 {
            0
        } else if place < 1.0 + 0.5_f64.powf(EXPONENT) {
            1
        } else {
            (self.pages as f64 * (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - EXPONENT))) as usize
        };
        rank.min(self.pages - 1)
    }
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accesses of each page, most first.
    fn counts(pattern: Pattern, pages: usize, accesses: usize) -> Vec<u32> {
        let mut counts = vec![0; pages];
        for access in Accesses::new(pattern, pages, 0, 1).take(accesses) {
            counts[access.page] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn each_pattern_has_its_distribution() {
        assert!(counts(Pattern::Sequential, 100, 1000).iter().all(|&count| count == 10));
        assert!(counts(Pattern::Random, 100, 100_000).iter().all(|&count| (800..1200).contains(&count)));
        let zipf = counts(Pattern::Zipf, 1000, 1_000_000);
        let harmonic: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-EXPONENT)).sum();
        for rank in [1_usize, 2, 10, 100] {
            let expected = 1e6 * (rank as f64).powf(-EXPONENT) / harmonic;
            let found = f64::from(zipf[rank - 1]);
            assert!((0.8..1.2).contains(&(found / expected)), "rank {rank}: {found}, expected {expected}");
        }
    }

    #[test]
    fn ranks_have_different_pages_even_in_small_memories() {
        for pages in [1, 2, 3, 8, 100, 131_072] {
            let zipf = Zipf::new(pages);
            let mut of_ranks: Vec<_> = (0..pages).map(|rank| rank * zipf.stride % pages).collect();
            of_ranks.sort_unstable();
            assert!(of_ranks.iter().copied().eq(0..pages), "{pages}");
            assert!((0..1000_u64).all(|draw| zipf.page(draw << 54) < pages), "{pages}");
        }
    }

    #[test]
    fn threads_draw_differently_and_scan_from_different_pages() {
        let first = |pattern, thread| Accesses::new(pattern, 64, thread, 2).next().unwrap();
        assert_ne!(first(Pattern::Random, 0), first(Pattern::Random, 1));
        assert_eq!((first(Pattern::Sequential, 0).page, first(Pattern::Sequential, 1).page), (0, 32));
    }
}
