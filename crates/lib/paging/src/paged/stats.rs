//! Counts of paged memory.

use std::fmt;

/// The counts of a [`Paged`](crate::Paged). Prints itself, one line for each field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagedStats {
    /// Bytes of addresses.
    pub bytes: u64,
    /// Resident bytes.
    pub resident: u64,
    /// The largest value of `resident` so far.
    pub resident_peak: u64,
    /// The bound in bytes.
    pub resident_limit: u64,
    /// Pages that left memory.
    pub evicted: u64,
    /// Pages among them that contained zeros only and are stored nowhere.
    pub evicted_zero: u64,
    /// Faults that were served.
    pub faults: u64,
    /// Faults among them at pages that were stored nowhere: first accesses, or pages of zeros.
    pub first_accesses: u64,
    /// Attempts to move a page that failed: it was locked or pinned.
    pub unmovable: u64,
    /// Attempts to store a page that no store took.
    pub refused: u64,
    /// Faults at pages that no store returned with their contents.
    pub lost: u64,
    /// Whether system calls can access pages that are not resident. Otherwise they fail with
    /// `EFAULT`.
    pub has_kernel_faults: bool,
    /// The stores, hottest first.
    pub stores: Vec<StoreStats>,
}

/// The counts of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Its name.
    pub name: &'static str,
    /// Bytes that the stored pages take.
    pub bytes: u64,
    /// Pages that came back from it.
    pub loaded: u64,
    /// Time to bring them back, in nanoseconds.
    pub load_ns: u64,
}

impl fmt::Display for PagedStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "bytes: {} bytes", self.bytes)?;
        writeln!(f, "resident: {} bytes", self.resident)?;
        writeln!(f, "resident_peak: {} bytes", self.resident_peak)?;
        writeln!(f, "resident_limit: {} bytes", self.resident_limit)?;
        writeln!(f, "evicted: {} pages", self.evicted)?;
        writeln!(f, "evicted_zero: {} pages", self.evicted_zero)?;
        writeln!(f, "faults: {}", self.faults)?;
        writeln!(f, "first_accesses: {} faults", self.first_accesses)?;
        writeln!(f, "unmovable: {} attempts", self.unmovable)?;
        writeln!(f, "refused: {} attempts", self.refused)?;
        writeln!(f, "lost: {} faults", self.lost)?;
        writeln!(f, "has_kernel_faults: {}", self.has_kernel_faults)?;
        self.stores.iter().enumerate().try_for_each(|(index, store)| writeln!(f, "stores[{index}]: {store}"))
    }
}

impl fmt::Display for StoreStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, bytes, loaded, load_ns } = self;
        write!(f, "{name}, {bytes} bytes, {loaded} pages came back in {load_ns} ns")
    }
}
