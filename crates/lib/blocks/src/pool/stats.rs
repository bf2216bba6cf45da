//! What a pool holds, counted when it is asked for.

use super::Pool;
use crate::frames::CHUNK_BYTES;

/// What a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes that the frames gave.
    pub held_bytes: usize,
    /// Of these, bytes in blocks that are handed out.
    pub used_bytes: usize,
    /// Bytes in chunks that [`Pool::release_free`] would give back.
    pub releasable_bytes: usize,
}

impl Pool {
    /// What the pool holds. Costs a look at each chunk; other threads go on meanwhile, so that it is exact only at rest.
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
