//! Reads memory that other threads may write at the same time.

#![allow(unsafe_code, reason = "reads memory by its address")]

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_pages::Memory;

/// Copies whole pages, given in bytes from the start, word by word. A word that is written meanwhile is
/// old or new.
pub(crate) fn copy(memory: &Memory, range: Range<usize>, into: &mut [u8]) {
    debug_assert!(range.end <= memory.bytes() && range.len() == into.len());
    // SAFETY: the range is inside the memory, which is readable and aligned to pages. All accesses here
    // are atomic; a thread that writes other than by atomics races with them as it would with a device.
    #[allow(clippy::cast_ptr_alignment, reason = "a memory begins at a page, and pages are whole words")]
    let words =
        unsafe { std::slice::from_raw_parts(memory.as_ptr().add(range.start).cast::<AtomicU64>(), range.len() / 8) };
    for (bytes, word) in into.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.load(Relaxed).to_le_bytes();
    }
}

/// Whether all bytes are 0.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.as_chunks::<8>().0.iter().all(|word| *word == [0; 8])
}
