//! Statistics of a pool, counted on demand.

use super::Pool;
use crate::frames::CHUNK_BYTES;

/// What a pool holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes taken from the frames.
    pub held_bytes: usize,
    /// Of these, bytes in allocated blocks.
    pub used_bytes: usize,
    /// Bytes in chunks that [`Pool::release_free`] would release.
    pub releasable_bytes: usize,
}

impl Pool {
    /// Counts what the pool holds. Reads each chunk's record; the result is exact only while no
    /// other thread allocates.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let mut stats = PoolStats::default();
        for number in 0..self.0.table.count() {
            let chunk = self.0.table.chunk(number);
            if chunk.base().is_none() {
                continue;
            }
            let free = chunk.free_blocks() as usize * self.block_bytes();
            stats.held_bytes += CHUNK_BYTES;
            stats.used_bytes += CHUNK_BYTES - free;
            stats.releasable_bytes += if free == CHUNK_BYTES { CHUNK_BYTES } else { 0 };
        }
        stats
    }
}
