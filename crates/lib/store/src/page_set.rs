//! Sets and maps of pages, by their numbers.
//!
//! A set has a bit for each page up to its last one: adding one page costs nanoseconds, and the pages
//! come in order. The number of pages is bounded by the size of the file: 8 MiB for 256 GiB.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A set of pages.
#[derive(Debug, Default)]
pub(crate) struct PageSet(Vec<u64>);

impl PageSet {
    /// An empty set with room for the pages below `end`.
    pub(crate) fn new(end: u32) -> Self {
        Self(vec![0; end as usize / 64 + 1])
    }

    pub(crate) fn insert(&mut self, page: u32) {
        let word = page as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (page % 64);
    }

    pub(crate) fn contains(&self, page: u32) -> bool {
        self.0.get(page as usize / 64).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// The number of pages.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The pages, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(index as u32 * 64 + bit)
            })
        })
    }
}

/// Values by the number of their page.
pub(crate) type PageMap<T> = HashMap<u32, T, BuildHasherDefault<PageHasher>>;

/// Hashes a page number by one multiplication (Knuth, *The Art of Computer Programming*, volume 3, section
/// 6.4). The store itself chooses these numbers, so no program can make them collide on purpose.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageHasher(u64);

impl Hasher for PageHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        // 2^64 divided by the golden ratio.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    /// The lowest bits of a product depend on the lowest bits of the number only, the highest on all.
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_a_set_come_in_order() {
        let mut set = PageSet::default();
        for page in [700, 3, 64, 63, 3] {
            set.insert(page);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 63, 64, 700]);
        assert_eq!([2, 3, 700, 100_000].map(|page| set.contains(page)), [false, true, true, false]);
        assert_eq!((set.count(), PageSet::new(1000).count()), (4, 0));
    }

    #[test]
    fn numbers_with_a_stride_have_different_hashes_in_the_lowest_bits() {
        for stride in [1, 2, 64, 4096, 1 << 20] {
            let hash = |index: u32| {
                let mut hasher = PageHasher::default();
                hasher.write_u32(1000 + index * stride);
                hasher.finish() % 64
            };
            let mut found: Vec<_> = (0..64).map(hash).collect();
            found.sort_unstable();
            found.dedup();
            assert!(found.len() > 20, "stride {stride}: {}", found.len());
        }
    }
}
