//! Range TLBs: an entry translates a range of the region of any length (Karakostas et al.,
//! *Redundant Memory Mappings*).

use crate::lru::LruTable;

/// The range TLB of a core, with the ranges.
#[derive(Debug, Clone)]
pub(super) struct RangeTlb {
    table: LruTable,
    /// Offsets at which ranges begin, in order. The offsets before the first one are a range, too.
    starts: Vec<u64>,
}

impl RangeTlb {
    pub(super) fn new(entries: u32) -> Self {
        Self { table: LruTable::full(entries), starts: Vec::new() }
    }

    /// Sets the ranges and clears the TLB.
    pub(super) fn set(&mut self, starts: &[u64]) {
        self.starts = starts.to_vec();
        self.starts.sort_unstable();
        self.table.clear();
    }

    /// Returns whether the TLB holds the range of `offset`, and makes it the most recent.
    #[inline]
    pub(super) fn touch(&mut self, offset: u64) -> bool {
        let number = self.starts.partition_point(|&start| start <= offset) as u64;
        self.table.touch(number, number + 1)
    }

    pub(super) fn clear(&mut self) {
        self.table.clear();
    }
}
