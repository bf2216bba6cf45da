//! Measures whether huge pages are faster on this machine, as context for the cells that depend on
//! it.
//!
//! Dependent reads of one line per 4 KiB page of 32 MiB: the lines fit in the caches, but the pages
//! exceed the reach of a TLB for small pages. With real huge pages, the reads take half the time or
//! less. A virtual machine whose host uses small pages splits huge pages in the TLB, so both times
//! are equal; the guest cannot change that.

use std::hint::black_box;

use fieldstone_blocks::PageKind;
use fieldstone_peers::{chase, cycle, vector};

use crate::kernel_comparison::cpu_seconds;

const BYTES: usize = 32 << 20;
const PAGE_WORDS: usize = 512;
const LINE_WORDS: usize = 8;
const STEPS: u64 = 1 << 22;
const ROUNDS: usize = 7;

/// The time on huge pages relative to small ones: the median of [`ROUNDS`] pairs.
pub(crate) fn huge_to_small() -> f64 {
    let [small, huge] = [PageKind::Small4k, PageKind::Thp].map(chain);
    let time = |chain: &[u64]| {
        cpu_seconds(|| {
            black_box(chase(black_box(chain), STEPS));
        })
    };
    let mut ratios: Vec<f64> = (0..ROUNDS).map(|_| time(&huge) / time(&small)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ROUNDS / 2]
}

/// A cycle through one line per page, with a different line offset from page to page.
fn chain(kind: PageKind) -> Vec<u64> {
    let words = BYTES / size_of::<u64>();
    let mut chain = vector::with_capacity(words, kind);
    chain.resize(words, 0);
    let place = |page: usize| page * PAGE_WORDS + page * LINE_WORDS % PAGE_WORDS;
    for (page, next) in cycle(words / PAGE_WORDS, 1).into_iter().enumerate() {
        let next = usize::try_from(next).expect("a page's number was made from a usize");
        chain[place(page)] = place(next) as u64;
    }
    chain
}
