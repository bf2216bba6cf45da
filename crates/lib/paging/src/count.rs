//! Changes of counters.

use core::sync::atomic::{AtomicU64, Ordering};

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

/// Subtracts from a counter, down to zero.
pub(crate) fn subtract(counter: &AtomicU64, by: usize) {
    let by = by as u64;
    let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |value| Some(value.saturating_sub(by)));
}

/// The value of a counter of pages.
pub(crate) fn value(counter: &AtomicU64) -> usize {
    counter.load(Ordering::Relaxed) as usize
}
