//! The pages that back the pool's memory, from the kernel's tables.

use core::ops::Range;

use fieldstone_sys::pagemap;
use fieldstone_sys::smaps;

use super::Pool;
use crate::frames::CHUNK_BYTES;

/// The pages that back a pool, as the kernel reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolPlacement {
    /// Resident bytes.
    pub resident_bytes: u64,
    /// Of the resident bytes, those in transparent huge pages.
    pub huge_bytes: u64,
    /// Of the resident bytes, those in hugetlb pages.
    pub hugetlb_bytes: u64,
    /// Pairs of folio size and bytes in such folios, smallest size first. `None` where this user
    /// cannot read page frames (root can).
    pub folios: Option<Vec<(u64, u64)>>,
}

impl Pool {
    /// Reports the pages that back the pool. Reads the process's mappings, which takes
    /// milliseconds.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn placement(&self) -> fieldstone_sys::Result<PoolPlacement> {
        let ranges = self.ranges();
        let pid = std::process::id();
        let mut found = PoolPlacement::default();
        for mapping in smaps::read(pid)? {
            let ours: u64 = ranges.iter().map(|range| overlap(range, &mapping.range())).sum();
            if ours == 0 {
                continue;
            }
            // A mapping that overlaps the pool counts in full: chunks have mappings of their own.
            found.resident_bytes += mapping.present_bytes();
            found.huge_bytes += mapping.anon_huge_bytes;
            found.hugetlb_bytes += mapping.present_bytes() - mapping.resident_bytes;
        }
        if let pagemap::Placement::Exact(frames) = pagemap::read(pid, &ranges)? {
            found.folios = Some(frames.folios.iter().map(|folio| (folio.folio_bytes, folio.bytes)).collect());
        }
        Ok(found)
    }

    /// The address ranges of the chunks, with adjacent ones joined.
    fn ranges(&self) -> Vec<Range<u64>> {
        let bases = (0..self.0.table.count()).filter_map(|number| self.0.table.chunk(number).base());
        let mut starts: Vec<u64> = bases.map(|base| base.addr().get() as u64).collect();
        starts.sort_unstable();
        let mut ranges = Vec::<Range<u64>>::new();
        for start in starts {
            let end = start + CHUNK_BYTES as u64;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        ranges
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}
