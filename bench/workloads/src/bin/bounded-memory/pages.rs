//! The contents of a page, an access, and the check of all pages.
//!
//! ```text
//! page     16 groups of 32 words: 18 random words, 14 words with the same byte    lz4: about 1.7 to 1
//! counter  one word per page, at a place that differs from page to page
//! ```
//! A write adds a number to the counter, a read compares another word with its known value. Addition
//! commutes, so the counters do not depend on the order of the threads. The check repeats the
//! accesses on an array of counters.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fieldstone_workloads::{
    Error,
    fill::fill,
    random::{mix, scale},
    verdict::expect_equal,
};

use super::accesses::Access;

pub(super) const PAGE: usize = 4096;
const WORDS: usize = PAGE / size_of::<u64>();
/// Words of a group, and the random ones among them.
const GROUP: usize = 32;
const RANDOM: usize = 18;
/// The other words.
const REPEATED: u64 = 0x2020_2020_2020_2020;

/// A page of the memory.
#[repr(C, align(4096))]
pub(super) struct Page([AtomicU64; WORDS]);

/// The initial value of a word.
fn initial(page: usize, word: usize) -> u64 {
    if word % GROUP < RANDOM { mix((page * WORDS + word) as u64) } else { REPEATED }
}

/// The place of the counter.
fn counter(page: usize) -> usize {
    scale(mix(!page as u64), WORDS)
}

impl Page {
    pub(super) fn filled(number: usize) -> Self {
        Self(std::array::from_fn(|word| AtomicU64::new(initial(number, word))))
    }

    pub(super) fn fill(&self, number: usize) {
        for (place, word) in self.0.iter().enumerate() {
            word.store(initial(number, place), Relaxed);
        }
    }
}

/// The share of operations that write.
#[derive(Clone, Copy)]
pub(super) struct Writes(u64);

impl Writes {
    pub(super) fn percent(percent: u64) -> Self {
        Self(percent)
    }

    fn includes(self, access: Access) -> bool {
        access.draw % 100 < self.0
    }
}

/// Writes to a page, or reads from it. Returns the number of wrong words: 0 or 1.
#[inline]
pub(super) fn access(pages: &[Page], access: Access, writes: Writes) -> u64 {
    let (page, counter) = (&pages[access.page], counter(access.page));
    if writes.includes(access) {
        page.0[counter].fetch_add(access.draw, Relaxed);
        return 0;
    }
    // Any word but the counter.
    let word = (counter + 1 + scale(access.draw, WORDS - 1)) % WORDS;
    u64::from(page.0[word].load(Relaxed) != initial(access.page, word))
}

/// Checks each word of each page after these accesses. Returns a checksum of the counters.
///
/// # Errors
/// [`Error::Wrong`] with the first wrong word; [`Error::Memory`].
pub(super) fn check(pages: &[Page], accesses: impl Iterator<Item = Access>, writes: Writes) -> Result<u64, Error> {
    let mut counters = fill(pages.len(), |page| initial(page, counter(page)))?;
    for access in accesses.filter(|&access| writes.includes(access)) {
        counters[access.page] = counters[access.page].wrapping_add(access.draw);
    }
    for (number, page) in pages.iter().enumerate() {
        let counter = counter(number);
        for (place, word) in page.0.iter().enumerate() {
            let expected = if place == counter { counters[number] } else { initial(number, place) };
            let found = word.load(Relaxed);
            if found != expected {
                expect_equal(&format!("word {place} of page {number}"), &found, &expected)?;
            }
        }
    }
    Ok(counters.iter().fold(0, |sum, &counter| mix(sum ^ counter)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write of 7 to each page, and a read.
    fn accesses() -> impl Iterator<Item = Access> {
        (0..3).flat_map(|page| [Access { page, draw: 7 }, Access { page, draw: 99 }])
    }

    #[test]
    fn a_lost_write_and_a_changed_word_are_found() {
        let writes = Writes::percent(50);
        let written = || {
            let pages: Vec<Page> = (0..3).map(Page::filled).collect();
            assert_eq!(accesses().map(|one| access(&pages, one, writes)).sum::<u64>(), 0);
            pages
        };
        assert!(check(&written(), accesses(), writes).is_ok());
        assert!(check(&written(), accesses().skip(1), writes).is_err(), "one write more than expected");
        for word in [0, 31, 511] {
            let pages = written();
            pages[1].0[word].fetch_xor(1 << 40, Relaxed);
            assert!(check(&pages, accesses(), writes).is_err(), "word {word}");
        }
        let pages = written();
        for word in &pages[2].0 {
            word.fetch_xor(1, Relaxed);
        }
        assert_eq!(accesses().map(|one| access(&pages, one, writes)).sum::<u64>(), 1, "a wrong word is read");
    }

    #[test]
    fn a_page_compresses_as_described() {
        let bytes = |page| (0..WORDS).flat_map(|word| initial(page, word).to_le_bytes()).collect::<Vec<_>>();
        let compressed = lz4_flex::block::compress_into(&bytes(5), &mut [0; 2 * PAGE]).unwrap();
        let ratio = PAGE as f64 / compressed as f64;
        assert!((1.65..1.75).contains(&ratio), "{ratio}");
    }
}
