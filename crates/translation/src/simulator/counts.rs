//! What a simulation counts.

use serde::{Deserialize, Serialize};

use crate::machine::RANKS;
use crate::page::PageSize;

/// Of one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Loads and stores.
    pub data: Side,
    /// Instruction fetches.
    pub instruction: Side,
}

/// Loads and stores, or instruction fetches. Each access is counted in one of `hits`, `in_segment`, `range_hits`,
/// `untranslated` and `walks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Side {
    /// All accesses.
    pub accesses: u64,
    /// Found in a TLB, by rank.
    pub hits: [u64; RANKS],
    /// Translated by the direct segment.
    pub in_segment: u64,
    /// Missed in the first rank, found in a range TLB.
    pub range_hits: u64,
    /// Not translated, as nothing is.
    pub untranslated: u64,
    /// Found nowhere: the page table was walked.
    pub walks: u64,
    /// Of `walks`, those for pages of 4 KiB, 2 MiB, 1 GiB.
    pub walks_by_size: [u64; 3],
    /// Of `walks`, those in the primary region.
    pub walks_in_region: u64,
    /// Page table entries read by the walks, the host's too.
    pub walk_memory_references: u64,
    /// Of `walks`, those whose last entry was not in a line used lately.
    pub walks_pte_line_missed: u64,
}

impl Side {
    /// Walks outside of the primary region.
    #[must_use]
    pub const fn walks_outside(&self) -> u64 {
        self.walks - self.walks_in_region
    }

    /// Walks for pages of one size.
    #[must_use]
    pub const fn walks_for(&self, size: PageSize) -> u64 {
        self.walks_by_size[size.index()]
    }

    /// Walks an access; 0 without accesses.
    #[must_use]
    pub fn walk_rate(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { self.walks as f64 / self.accesses as f64 }
    }

    /// Share of the walks that are in the primary region: what a direct segment over it would take away.
    #[must_use]
    pub fn share_in_region(&self) -> f64 {
        if self.walks == 0 { 0.0 } else { self.walks_in_region as f64 / self.walks as f64 }
    }
}

impl std::ops::AddAssign<&Side> for Side {
    fn add_assign(&mut self, other: &Side) {
        self.accesses += other.accesses;
        self.in_segment += other.in_segment;
        self.range_hits += other.range_hits;
        self.untranslated += other.untranslated;
        self.walks += other.walks;
        self.walks_in_region += other.walks_in_region;
        self.walk_memory_references += other.walk_memory_references;
        self.walks_pte_line_missed += other.walks_pte_line_missed;
        for (sum, more) in self.hits.iter_mut().zip(other.hits) {
            *sum += more;
        }
        for (sum, more) in self.walks_by_size.iter_mut().zip(other.walks_by_size) {
            *sum += more;
        }
    }
}

impl std::ops::AddAssign<&Counts> for Counts {
    /// Counts of another thread, or another burst.
    fn add_assign(&mut self, other: &Counts) {
        self.data += &other.data;
        self.instruction += &other.instruction;
    }
}
