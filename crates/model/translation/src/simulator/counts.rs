//! The counts of a simulation.

use serde::{Deserialize, Serialize};

use crate::mmu::TLB_LEVELS;
use crate::page::PageSize;

/// Counts of one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Loads and stores.
    pub data: SideCounts,
    /// Instruction fetches.
    pub instruction: SideCounts,
}

/// Counts of loads and stores, or of instruction fetches. Each access counts in one of `hits`,
/// `in_segment`, `range_hits`, `untranslated` and `walks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SideCounts {
    /// All accesses.
    pub accesses: u64,
    /// TLB hits, by level.
    pub hits: [u64; TLB_LEVELS],
    /// Translated by the direct segment.
    pub in_segment: u64,
    /// Misses in the first level that hit a range TLB.
    pub range_hits: u64,
    /// Accesses without translation, in configurations without any.
    pub untranslated: u64,
    /// Misses everywhere: page walks.
    pub walks: u64,
    /// Of `walks`, those for pages of 4 KiB, 2 MiB, 1 GiB.
    pub walks_by_size: [u64; 3],
    /// Of `walks`, those in the primary region.
    pub walks_in_region: u64,
    /// Page table entries read by the walks, the host's too.
    pub walk_memory_references: u64,
    /// Of `walks`, those whose last entry's cache line was not recently used.
    pub walks_pte_line_missed: u64,
}

impl SideCounts {
    /// Walks outside the primary region.
    #[must_use]
    pub const fn walks_outside(&self) -> u64 {
        self.walks - self.walks_in_region
    }

    /// Walks for pages of one size.
    #[must_use]
    pub const fn walks_for(&self, size: PageSize) -> u64 {
        self.walks_by_size[size.index()]
    }

    /// Walks per access; 0 without accesses.
    #[must_use]
    pub fn walk_rate(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { self.walks as f64 / self.accesses as f64 }
    }

    /// The share of walks in the primary region, which a direct segment would remove; 0 without
    /// walks.
    #[must_use]
    pub fn share_in_region(&self) -> f64 {
        if self.walks == 0 { 0.0 } else { self.walks_in_region as f64 / self.walks as f64 }
    }
}

impl SideCounts {
    /// Combines each count with the other's.
    fn with(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            accesses: of(self.accesses, other.accesses),
            hits: std::array::from_fn(|level| of(self.hits[level], other.hits[level])),
            in_segment: of(self.in_segment, other.in_segment),
            range_hits: of(self.range_hits, other.range_hits),
            untranslated: of(self.untranslated, other.untranslated),
            walks: of(self.walks, other.walks),
            walks_by_size: std::array::from_fn(|size| of(self.walks_by_size[size], other.walks_by_size[size])),
            walks_in_region: of(self.walks_in_region, other.walks_in_region),
            walk_memory_references: of(self.walk_memory_references, other.walk_memory_references),
            walks_pte_line_missed: of(self.walks_pte_line_missed, other.walks_pte_line_missed),
        }
    }
}

impl Counts {
    /// The counts since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, u64::wrapping_sub)
    }

    /// All counts multiplied by `factor`, rounded.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are far below 2^53")]
        self.with(self, |count, _| (count as f64 * factor).round() as u64)
    }

    fn with(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self { data: self.data.with(&other.data, &of), instruction: self.instruction.with(&other.instruction, &of) }
    }
}

impl std::ops::AddAssign<&SideCounts> for SideCounts {
    fn add_assign(&mut self, other: &SideCounts) {
        *self = self.with(other, u64::wrapping_add);
    }
}

impl std::ops::AddAssign<&Counts> for Counts {
    /// Adds the counts of another thread or burst.
    fn add_assign(&mut self, other: &Counts) {
        self.data += &other.data;
        self.instruction += &other.instruction;
    }
}
