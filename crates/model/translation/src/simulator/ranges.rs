//! Range TLBs: an entry translates a piece of the region of any length (Karakostas et al., *Redundant Memory
//! Mappings*).

use crate::lru::Table;

/// The range TLB of a core, and the ranges there are.
#[derive(Debug, Clone)]
pub(super) struct Ranges {
    table: Table,
    /// Offsets at which ranges begin, in order. What is before the first one is a range too.
    starts: Vec<u64>,
}

impl Ranges {
    pub(super) fn new(entries: u32) -> Self {
        Self { table: Table::full(entries), starts: Vec::new() }
    }

    /// Other ranges: nothing that was held holds any longer.
    pub(super) fn set(&mut self, starts: &[u64]) {
        self.starts = starts.to_vec();
        self.starts.sort_unstable();
        self.table.clear();
    }

    /// Was the range of `offset` held? It is now.
    #[inline]
    pub(super) fn touch(&mut self, offset: u64) -> bool {
        let number = self.starts.partition_point(|&start| start <= offset) as u64;
        self.table.touch(number, number + 1)
    }

    pub(super) fn clear(&mut self) {
        self.table.clear();
    }
}
