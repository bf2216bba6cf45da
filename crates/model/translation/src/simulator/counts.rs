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

impl Side {
    /// Each number made of this one's and the other's.
    fn with(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            accesses: of(self.accesses, other.accesses),
            hits: std::array::from_fn(|rank| of(self.hits[rank], other.hits[rank])),
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
    /// What was counted since these counts were `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, u64::wrapping_sub)
    }

    /// The counts of so many times what was counted, rounded.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are far below 2^53")]
        self.with(self, |count, _| (count as f64 * factor).round() as u64)
    }

    fn with(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self { data: self.data.with(&other.data, &of), instruction: self.instruction.with(&other.instruction, &of) }
    }
}

impl std::ops::AddAssign<&Side> for Side {
    fn add_assign(&mut self, other: &Side) {
        *self = self.with(other, u64::wrapping_add);
    }
}

impl std::ops::AddAssign<&Counts> for Counts {
    /// Counts of another thread, or another burst.
    fn add_assign(&mut self, other: &Counts) {
        self.data += &other.data;
        self.instruction += &other.instruction;
    }
}
