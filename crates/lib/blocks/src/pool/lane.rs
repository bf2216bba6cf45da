//! Lanes: which chunk a thread takes its blocks from, so that threads keep out of each other's way and each gets neighbours.
//!
//! A thread keeps one of 16 lanes for its life; threads that share one share its chunk, which is slower and no less right.

use crate::sync::{AtomicU32, Ordering};

#[cfg(not(loom))]
pub(crate) const LANES: usize = 16;
#[cfg(loom)]
pub(crate) const LANES: usize = 2;

/// A lane's chunk, on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Lane {
    /// The chunk's number + 1, or 0.
    chunk: AtomicU32,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Self { chunk: AtomicU32::new(0) }
    }

    pub(crate) fn chunk(&self) -> Option<u32> {
        self.chunk.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Goes to another chunk; the one that it left. Threads may share the lane, so that each leaves what the one before entered.
    pub(crate) fn enter(&self, chunk: u32) -> Option<u32> {
        self.chunk.swap(chunk + 1, Ordering::Relaxed).checked_sub(1)
    }
}

/// The lane of this thread.
#[cfg(all(feature = "std", not(loom)))]
pub(crate) fn mine() -> usize {
    use core::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LANES;
    }
    // A thread that is ending has no lane of its own any more.
    MINE.try_with(|&lane| lane).unwrap_or(0)
}

#[cfg(loom)]
pub(crate) fn mine() -> usize {
    use core::sync::atomic::AtomicUsize;
    // One of loom's, so that each of its runs begins anew.
    loom::lazy_static! {
        static ref NEXT: AtomicUsize = AtomicUsize::new(0);
    }
    loom::thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LANES;
    }
    MINE.with(|&lane| lane)
}

#[cfg(not(any(feature = "std", loom)))]
pub(crate) fn mine() -> usize {
    0
}
