//! Hashes of the pages of the last save, to find pages that changed unnoticed.

use xxhash_rust::xxh3::xxh3_64;

use crate::format::PAGE;
use crate::memory_words::is_zero;

/// A hash of each page of each region; 0 for a page of zeros.
#[derive(Debug)]
pub(crate) struct PageHashes(Vec<Vec<u64>>);

impl PageHashes {
    /// Regions of zeros, of these sizes in pages.
    pub(crate) fn new(pages: impl IntoIterator<Item = usize>) -> Self {
        Self(pages.into_iter().map(|pages| vec![0; pages]).collect())
    }

    /// Keeps the hashes of whole pages.
    pub(crate) fn set(&mut self, region: usize, first: usize, contents: &[u8]) {
        for (hash, page) in self.0[region][first..].iter_mut().zip(contents.chunks(PAGE)) {
            *hash = hash_of(page);
        }
    }

    /// Whether a page has other contents.
    pub(crate) fn differs(&self, region: usize, page: usize, contents: &[u8]) -> bool {
        self.0[region][page] != hash_of(contents)
    }
}

fn hash_of(page: &[u8]) -> u64 {
    if is_zero(page) { 0 } else { xxh3_64(page) | 1 }
}
