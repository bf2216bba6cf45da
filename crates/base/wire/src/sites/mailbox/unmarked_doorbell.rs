//! Other architectures: the store to a doorbell. No tracing plugin runs there, so it has no mark.

use core::sync::atomic::{AtomicU64, Ordering::Release};

/// Stores `value`.
pub(super) fn store(doorbell: &AtomicU64, value: u64) {
    doorbell.store(value, Release);
}
