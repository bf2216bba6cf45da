//! Pools: no block is allocated twice or lost, with many threads, with frames that fail, while
//! memory is released.

#![allow(unsafe_code, reason = "writes to and frees raw blocks")]
#![expect(clippy::unwrap_used, reason = "a test")]

mod faults;
mod frames;
mod runs;
mod threads;

use std::ptr::NonNull;

use fieldstone_blocks::Pool;

/// A block with a mark at both ends, which detects a second holder.
struct MarkedBlock<'a> {
    pool: &'a Pool,
    block: NonNull<u8>,
    bytes: usize,
    mark: u64,
}

impl<'a> MarkedBlock<'a> {
    fn new(pool: &'a Pool, mark: u64) -> Option<Self> {
        let block = pool.alloc().ok()?;
        Some(Self::of(pool, block, pool.block_bytes(), mark))
    }

    fn of(pool: &'a Pool, block: NonNull<u8>, bytes: usize, mark: u64) -> Self {
        let marked = Self { pool, block, bytes, mark };
        // SAFETY: the block is held here, and its ends are aligned words within it.
        marked.ends().iter().for_each(|&end| unsafe { end.write(mark) });
        marked
    }

    fn ends(&self) -> [*mut u64; 2] {
        let start = self.block.as_ptr();
        [start.cast(), start.wrapping_add(self.bytes - 8).cast()]
    }

    fn check(&self) {
        // SAFETY: the block is held here, and `of` has written its end words.
        assert!(self.ends().iter().all(|&end| unsafe { end.read() } == self.mark), "another holder wrote to the block");
    }
}

impl Drop for MarkedBlock<'_> {
    fn drop(&mut self) {
        self.check();
        // SAFETY: the blocks are held here and not used any more.
        unsafe { self.pool.free_run(self.block, self.bytes / self.pool.block_bytes()).unwrap() };
    }
}

/// A pseudo-random number by xorshift; the state is not 0.
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 11).unwrap()
}
