//! Lanes: the chunk that a thread allocates from. Separate chunks avoid contention and give each
//! thread adjacent blocks.
//!
//! A thread keeps one of 16 lanes for its life. Threads that share a lane share its chunk, which is
//! slower but correct.

use crate::sync::{AtomicU32, Ordering};

#[cfg(not(loom))]
pub(crate) const LANES: usize = 16;
#[cfg(loom)]
pub(crate) const LANES: usize = 2;

/// The chunk of a lane, on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct PoolLane {
    /// The chunk's number + 1, or 0.
    chunk: AtomicU32,
}

impl PoolLane {
    pub(crate) fn new() -> Self {
        Self { chunk: AtomicU32::new(0) }
    }

    pub(crate) fn chunk(&self) -> Option<u32> {
        self.chunk.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Replaces the chunk and returns the previous one. Threads may share the lane, so each
    /// releases the chunk that it replaced.
    pub(crate) fn enter(&self, chunk: u32) -> Option<u32> {
        self.chunk.swap(chunk + 1, Ordering::Relaxed).checked_sub(1)
    }
}

/// The lane of this thread.
#[cfg(all(feature = "std", not(loom)))]
pub(crate) fn current() -> usize {
    use core::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static LANE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LANES;
    }
    // A thread whose thread-local values are destroyed uses lane 0.
    LANE.try_with(|&lane| lane).unwrap_or(0)
}

#[cfg(loom)]
pub(crate) fn current() -> usize {
    use core::sync::atomic::AtomicUsize;
    // loom's `lazy_static` starts each explored execution from 0.
    loom::lazy_static! {
        static ref NEXT: AtomicUsize = AtomicUsize::new(0);
    }
    loom::thread_local! {
        static LANE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LANES;
    }
    LANE.with(|&lane| lane)
}

#[cfg(not(any(feature = "std", loom)))]
pub(crate) fn current() -> usize {
    0
}
