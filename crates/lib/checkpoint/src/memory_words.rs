//! Reads memory that other threads may write at the same time.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_pages::Memory;

/// Copies whole pages, given in bytes from the start, word by word. A word that is written meanwhile is
/// old or new.
pub(crate) fn copy(memory: &Memory, range: Range<usize>, into: &mut [u8]) {
    debug_assert!(range.end <= memory.bytes() && range.len() == into.len());
    for (bytes, word) in into.as_chunks_mut::<8>().0.iter_mut().zip(&memory.words()[range.start / 8..]) {
        *bytes = word.load(Relaxed).to_le_bytes();
    }
}

/// Whether all bytes are 0.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.as_chunks::<8>().0.iter().all(|word| *word == [0; 8])
}
