//! The record of one chunk: which blocks are free, and how many holders a block has.
//!
//! ```text
//! free     a bit a block, set while it is free; the lowest is taken first
//! shares   a count per block of holders beyond the first; allocated at the first share
//! owner    the lane that takes blocks here, so that each lane gets adjacent blocks
//! ```
//! A compare-exchange clears the bit before a block is handed out, and a fetch-or sets it when the
//! block is freed. That instruction also detects a double free. Release and acquire on the bit
//! order the block's contents.

#![allow(unsafe_code, reason = "allocates and frees its table of counts")]

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::ptr::{NonNull, null_mut};

use crate::error::{Error, Result};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Words of free bits: 4 KiB blocks need all of them.
#[cfg(not(loom))]
pub(crate) const WORDS: usize = 8;
#[cfg(loom)]
pub(crate) const WORDS: usize = 1;

/// The owner of a chunk that no lane owns.
pub(crate) const NO_OWNER: u32 = 0;

#[derive(Debug)]
pub(crate) struct ChunkRecord {
    /// The chunk's first byte; null while the record has no chunk.
    base: AtomicPtr<u8>,
    free: [AtomicU64; WORDS],
    shares: AtomicPtr<AtomicU32>,
    owner: AtomicU32,
}

impl ChunkRecord {
    #[cfg(any(loom, test))]
    pub(crate) fn vacant() -> Self {
        Self {
            base: AtomicPtr::new(null_mut()),
            free: core::array::from_fn(|_| AtomicU64::new(0)),
            shares: AtomicPtr::new(null_mut()),
            owner: AtomicU32::new(NO_OWNER),
        }
    }

    /// The chunk's first byte; `None` while the record has no chunk.
    pub(crate) fn base(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.base.load(Ordering::Acquire))
    }

    /// Assigns a chunk, all of whose blocks are in use.
    pub(crate) fn occupy(&self, base: NonNull<u8>) {
        self.base.store(base.as_ptr(), Ordering::Release);
    }

    /// Removes the chunk. The caller holds all its blocks.
    pub(crate) fn vacate(&self, blocks: u32) {
        self.drop_shares(blocks);
        self.base.store(null_mut(), Ordering::Release);
    }

    /// Makes `lane` the owner, if there is none.
    pub(crate) fn claim(&self, lane: u32) -> bool {
        self.owner.compare_exchange(NO_OWNER, lane, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn disown(&self, lane: u32) {
        let _ = self.owner.compare_exchange(lane, NO_OWNER, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Takes the lowest free block. Returns its index.
    pub(crate) fn take_lowest(&self) -> Option<u32> {
        for (word, bits) in (0_u32..).zip(&self.free) {
            let mut seen = bits.load(Ordering::Relaxed);
            while seen != 0 {
                let left = seen & (seen - 1);
                match bits.compare_exchange_weak(seen, left, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Some(word * 64 + seen.trailing_zeros()),
                    Err(now) => seen = now,
                }
            }
        }
        None
    }

    /// Takes `count` adjacent blocks, all or none. Returns the first index.
    pub(crate) fn take_run(&self, count: u32, blocks: u32) -> Option<u32> {
        let mut first = 0;
        while first + count <= blocks {
            // Continue after the last block that is in use.
            match (first..first + count).rev().find(|&block| !self.is_free(block)) {
                Some(taken) => first = taken + 1,
                None if self.take_exactly(first, count) => return Some(first),
                None => first += 1,
            }
        }
        None
    }

    /// Takes blocks `first` to `first + count`, all or none.
    pub(super) fn take_exactly(&self, first: u32, count: u32) -> bool {
        let mut at = first;
        while at < first + count {
            let (word, mask) = mask(at, first + count);
            if !self.take_mask(word, mask) {
                self.put_back(first, at - first);
                return false;
            }
            at += mask.count_ones();
        }
        true
    }

    fn take_mask(&self, word: usize, mask: u64) -> bool {
        let mut seen = self.free[word].load(Ordering::Relaxed);
        while seen & mask == mask {
            match self.free[word].compare_exchange_weak(seen, seen & !mask, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Takes all blocks, if all are free.
    pub(crate) fn take_all(&self, blocks: u32) -> bool {
        self.take_exactly(0, blocks)
    }

    /// Frees blocks that were in use.
    pub(crate) fn put_back(&self, first: u32, count: u32) {
        let mut at = first;
        while at < first + count {
            let (word, mask) = mask(at, first + count);
            self.free[word].fetch_or(mask, Ordering::SeqCst);
            at += mask.count_ones();
        }
    }

    /// Frees one block. Returns whether it was in use.
    pub(crate) fn free(&self, block: u32) -> bool {
        let (word, mask) = mask(block, block + 1);
        self.free[word].fetch_or(mask, Ordering::SeqCst) & mask == 0
    }

    pub(crate) fn is_free(&self, block: u32) -> bool {
        let (word, mask) = mask(block, block + 1);
        self.free[word].load(Ordering::Relaxed) & mask != 0
    }

    pub(crate) fn has_free(&self) -> bool {
        self.free.iter().any(|word| word.load(Ordering::SeqCst) != 0)
    }

    pub(crate) fn free_blocks(&self) -> u32 {
        self.free.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Adds a holder to a block that is in use.
    pub(crate) fn share(&self, block: u32, blocks: u32) -> Result<()> {
        let counts = match NonNull::new(self.shares.load(Ordering::Acquire)) {
            Some(counts) => counts,
            None => self.make_shares(blocks)?,
        };
        // SAFETY: the table has a count for each of the chunk's blocks, and is freed only when no
        // block is in use.
        let count = unsafe { counts.add(block as usize).as_ref() };
        // Far below overflow: a holder that is leaked with `mem::forget` is never removed.
        if count.fetch_add(1, Ordering::Relaxed) > u32::MAX / 2 {
            count.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::CapacityOverflow { elements: (u32::MAX / 2) as usize });
        }
        Ok(())
    }

    /// Removes a holder. Returns true, and changes nothing, if the caller is the only one.
    pub(crate) fn unshare(&self, block: u32) -> bool {
        let Some(counts) = NonNull::new(self.shares.load(Ordering::Acquire)) else { return true };
        // SAFETY: the table has a count for each of the chunk's blocks, and is freed only when no
        // block is in use.
        let count = unsafe { counts.add(block as usize).as_ref() };
        // A count of 0 cannot rise: only a holder can share, and the caller is the only one.
        let mut seen = count.load(Ordering::Acquire);
        while seen > 0 {
            match count.compare_exchange_weak(seen, seen - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return false,
                Err(now) => seen = now,
            }
        }
        true
    }

    /// Whether a block has more than one holder.
    pub(crate) fn is_shared(&self, block: u32) -> bool {
        let counts = NonNull::new(self.shares.load(Ordering::Acquire));
        // SAFETY: the table has a count for each of the chunk's blocks, and is freed only when no
        // block is in use.
        counts.is_some_and(|counts| unsafe { counts.add(block as usize).as_ref() }.load(Ordering::Acquire) > 0)
    }

    fn make_shares(&self, blocks: u32) -> Result<NonNull<AtomicU32>> {
        let layout = shares_layout(blocks);
        #[expect(clippy::cast_ptr_alignment, reason = "the layout is that of an array of counts")]
        // SAFETY: the layout is not of size zero, and zeroed memory is valid counts.
        let made = unsafe { alloc_zeroed(layout) }.cast::<AtomicU32>();
        let made = NonNull::new(made).ok_or(Error::Table { bytes: layout.size() })?;
        #[cfg(loom)]
        for block in 0..blocks as usize {
            // SAFETY: loom's counts are objects that need `new`; the table has space for each.
            unsafe { made.add(block).write(AtomicU32::new(0)) };
        }
        let put = self.shares.compare_exchange(null_mut(), made.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
        put.map(|_| made).or_else(|there| {
            // SAFETY: `made` was not published, so no other thread has it.
            unsafe { dealloc(made.as_ptr().cast(), layout) };
            NonNull::new(there).ok_or(Error::Table { bytes: layout.size() })
        })
    }

    pub(crate) fn drop_shares(&self, blocks: u32) {
        let counts = self.shares.swap(null_mut(), Ordering::AcqRel);
        if !counts.is_null() {
            // SAFETY: the table was allocated with this layout, and no other thread holds a block
            // of the chunk.
            unsafe { dealloc(counts.cast(), shares_layout(blocks)) };
        }
    }
}

/// The word index of block `at`, and the bits of blocks `at..end` in that word.
fn mask(at: u32, end: u32) -> (usize, u64) {
    let count = (end - at).min(64 - at % 64);
    ((at / 64) as usize, (u64::MAX >> (64 - count)) << (at % 64))
}

fn shares_layout(blocks: u32) -> Layout {
    Layout::array::<AtomicU32>(blocks as usize).unwrap_or(Layout::new::<AtomicU32>())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_block_is_taken_first_and_freed_once() {
        let chunk = ChunkRecord::vacant();
        chunk.put_back(0, 512);
        assert_eq!((chunk.take_lowest(), chunk.take_lowest()), (Some(0), Some(1)));
        assert!(chunk.free(0) && !chunk.free(0), "a double free is detected");
        assert_eq!(chunk.take_lowest(), Some(0));
        assert_eq!(chunk.take_run(100, 512), Some(2), "across word boundaries");
        assert_eq!((chunk.free_blocks(), chunk.take_run(411, 512)), (410, None));
        assert_eq!(chunk.take_run(410, 512), Some(102));
        assert!(!chunk.has_free());
        chunk.put_back(60, 10);
        assert_eq!((chunk.free_blocks(), chunk.take_run(10, 512)), (10, Some(60)));
    }

    #[test]
    fn the_last_holder_owns_the_block() {
        let chunk = ChunkRecord::vacant();
        assert!(chunk.unshare(3), "never shared");
        chunk.share(3, 32).unwrap();
        chunk.share(3, 32).unwrap();
        assert!(chunk.is_shared(3) && !chunk.is_shared(4));
        assert!(!chunk.unshare(3) && !chunk.unshare(3) && chunk.unshare(3));
        assert!(!chunk.is_shared(3));
        chunk.drop_shares(32);
    }
}
