//! Counts of guarded slots.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The counts of a [`Slots`](crate::Slots). Prints itself, one line for each field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotStats {
    /// Live objects.
    pub live: usize,
    /// Freed objects that are inaccessible.
    pub quarantined: usize,
    /// Allocations so far.
    pub allocated: usize,
    /// Requests so far that returned no object: the memory limit or the address range was used up,
    /// or the object was too large.
    pub refused: usize,
    /// Objects so far that could not be made inaccessible at their free, because the kernel refused
    /// it. Their slots are not used again.
    pub unprotected: usize,
    /// Bytes that count in the memory limit now.
    pub memory: usize,
    /// The largest value of `memory` so far.
    pub memory_peak: usize,
    /// The memory limit in bytes.
    pub memory_limit: usize,
    /// Bytes of address space.
    pub reserved: usize,
    /// Different stacks in the table.
    pub stacks: usize,
    /// Whether guards are markers in the page table. Otherwise each guard is a mapping, and the
    /// number of live objects is limited to 8,192.
    pub has_markers: bool,
}

impl fmt::Display for SlotStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "live: {} objects", self.live)?;
        writeln!(f, "quarantined: {} objects", self.quarantined)?;
        writeln!(f, "allocated: {} objects", self.allocated)?;
        writeln!(f, "refused: {} requests", self.refused)?;
        writeln!(f, "unprotected: {} objects", self.unprotected)?;
        writeln!(f, "memory: {} bytes", self.memory)?;
        writeln!(f, "memory_peak: {} bytes", self.memory_peak)?;
        writeln!(f, "memory_limit: {} bytes", self.memory_limit)?;
        writeln!(f, "reserved: {} bytes", self.reserved)?;
        writeln!(f, "stacks: {}", self.stacks)?;
        writeln!(f, "has_markers: {}", self.has_markers)
    }
}

/// Counters that any thread changes.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) live: Counter,
    pub(crate) quarantined: Counter,
    pub(crate) allocated: Counter,
    pub(crate) refused: Counter,
    pub(crate) unprotected: Counter,
}

/// A counter without order in relation to other memory.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicUsize);

impl Counter {
    /// Adds 1; returns the count before.
    pub(crate) fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn subtract(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
