//! Pools: no block is given twice and none is lost, with many threads, with frames that fail, while memory is given back.

#![allow(unsafe_code, reason = "writes to raw blocks and gives them back")]
#![expect(clippy::unwrap_used, reason = "a test")]

mod faults;
mod frames;
mod runs;
mod threads;

use std::ptr::NonNull;

use fieldstone_blocks::Pool;

/// A block that bears its holder's mark at its ends, so that a second holder shows.
struct Marked<'a> {
    pool: &'a Pool,
    block: NonNull<u8>,
    bytes: usize,
    mark: u64,
}

impl<'a> Marked<'a> {
    fn new(pool: &'a Pool, mark: u64) -> Option<Self> {
        let block = pool.alloc().ok()?;
        Some(Self::of(pool, block, pool.block_bytes(), mark))
    }

    fn of(pool: &'a Pool, block: NonNull<u8>, bytes: usize, mark: u64) -> Self {
        let marked = Self { pool, block, bytes, mark };
        // SAFETY: the block is ours, and its ends are aligned words within it.
        marked.ends().iter().for_each(|&end| unsafe { end.write(mark) });
        marked
    }

    fn ends(&self) -> [*mut u64; 2] {
        let start = self.block.as_ptr();
        [start.cast(), start.wrapping_add(self.bytes - 8).cast()]
    }

    fn check(&self) {
        // SAFETY: as in `of`.
        assert!(self.ends().iter().all(|&end| unsafe { end.read() } == self.mark), "somebody else wrote to the block");
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        self.check();
        // SAFETY: the blocks are ours and are not used any more.
        unsafe { self.pool.free_run(self.block, self.bytes / self.pool.block_bytes()).unwrap() };
    }
}

/// A cheap random number, from a state that is not 0.
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 11).unwrap()
}
