//! What a huge page is worth on this machine, told before the cells that depend on it.
//!
//! Dependent reads of one line in each 4 KiB of 32 MiB: the data fit in the caches, and the pages do not fit in a TLB of small ones. On a
//! machine that maps huge pages as such they take a half or less of the time that they take on small pages. A virtual machine whose host
//! backs it with small pages splits them in the TLB, and the two are alike; nothing that a guest does changes that.

use std::hint::black_box;

use fieldstone_blocks::PageKind;
use fieldstone_peers::{chase, cycle, vector};

use crate::duel::cpu_seconds;

const BYTES: usize = 32 << 20;
const PAGE_WORDS: usize = 512;
const LINE_WORDS: usize = 8;
const STEPS: u64 = 1 << 22;
const ROUNDS: usize = 7;

/// Time on huge pages by time on small ones: the median of some pairs.
pub(crate) fn huge_by_small() -> f64 {
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

/// A cycle through one line of each page, the line another one from page to page.
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
