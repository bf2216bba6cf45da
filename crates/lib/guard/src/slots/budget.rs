//! The memory limit: bytes in use, checked before each use.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes in use, and their limit.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl Budget {
    pub(crate) const fn new(limit: usize, used: usize) -> Self {
        Self { limit, used: AtomicUsize::new(used), peak: AtomicUsize::new(used) }
    }

    /// Adds bytes; false if that would pass the limit.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let update = |used: usize| used.checked_add(bytes).filter(|&used| used <= self.limit);
        let Ok(before) = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update) else { return false };
        if before + bytes > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        }
        true
    }

    /// Subtracts bytes that were added.
    pub(crate) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) const fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }
}
