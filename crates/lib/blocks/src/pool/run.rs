//! Runs of adjacent blocks, for large objects of a heap and for stacks. Trees of blocks need none.
//!
//! A run of up to a chunk is within one chunk. A larger one takes whole adjacent chunks from the
//! frames, which may refuse. A run can also grow downwards, as a stack does: it begins with the
//! last block of a chunk and takes the block below while that is free.

#![allow(unsafe_code, reason = "frees raw memory")]

use core::ptr::NonNull;

use super::{Pool, chunk};
use crate::error::{Error, Result};
use crate::frames::CHUNK_BYTES;

impl Pool {
    /// Allocates `count` adjacent blocks.
    ///
    /// # Errors
    /// [`Error::NoRun`] when memory is fragmented or the frames supply single chunks; else as
    /// [`Pool::alloc`].
    pub fn alloc_run(&self, count: usize) -> Result<NonNull<u8>> {
        match u32::try_from(count) {
            Ok(0) => Err(Error::NoRun { blocks: 0 }),
            Ok(1) => self.alloc(),
            Ok(count) if count <= self.chunk_blocks() => self.run_in_chunk(count),
            _ => self.run_of_chunks(count),
        }
    }

    /// Frees a whole run.
    ///
    /// # Errors
    /// As [`Pool::free`], for the first block that fails; the blocks before it are free.
    ///
    /// # Safety
    /// The run came from [`Pool::alloc_run`] with this count, and nothing uses it any more.
    pub unsafe fn free_run(&self, start: NonNull<u8>, count: usize) -> Result<()> {
        for block in 0..count {
            // SAFETY: the block is within the run, which the caller no longer uses.
            unsafe { self.free(start.add(block * self.block_bytes()))? };
        }
        Ok(())
    }

    /// Allocates the last block of an otherwise free chunk, so that a run can grow downwards from
    /// there. Without such a chunk, allocates any block.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub fn alloc_last(&self) -> Result<NonNull<u8>> {
        let blocks = self.chunk_blocks();
        let take = |number| {
            let chunk = self.0.table.chunk(number);
            (chunk.free_blocks() == blocks && chunk.take_exactly(blocks - 1, 1))
                .then(|| self.block_at(chunk, blocks - 1))
        };
        if let Some(block) = self.0.table.with_free().find_map(take) {
            return Ok(block);
        }
        match self.0.growth.with(|growth| self.grow(growth)) {
            Ok(number) => {
                let chunk = self.0.table.chunk(number);
                chunk.put_back(0, blocks - 1);
                self.0.table.mark_free(number);
                Ok(self.block_at(chunk, blocks - 1))
            }
            Err(error) => self.steal().ok_or(error),
        }
    }

    /// Allocates the block at this address if it is a free block of the pool. Returns whether it
    /// was.
    pub fn alloc_at(&self, block: NonNull<u8>) -> bool {
        self.find(block).is_ok_and(|(number, index)| self.0.table.chunk(number).take_exactly(index, 1))
    }

    fn run_in_chunk(&self, count: u32) -> Result<NonNull<u8>> {
        let blocks = self.chunk_blocks();
        let found = self.0.table.with_free().find_map(|number| {
            let chunk = self.0.table.chunk(number);
            let first = chunk.take_run(count, blocks);
            // A failed attempt holds blocks for a moment, when another thread may mark the chunk
            // full.
            self.0.table.mark_free(number);
            first.map(|first| self.block_at(chunk, first))
        });
        if let Some(start) = found {
            return Ok(start);
        }
        let number = self.0.growth.with(|growth| self.grow(growth))?;
        let chunk = self.0.table.chunk(number);
        chunk.put_back(count, blocks - count);
        self.0.table.mark_free(number);
        Ok(self.block_at(chunk, 0))
    }

    fn run_of_chunks(&self, count: usize) -> Result<NonNull<u8>> {
        let bytes = count.checked_mul(self.block_bytes()).ok_or(Error::CapacityOverflow { elements: count })?;
        let chunks = bytes.div_ceil(CHUNK_BYTES);
        let (start, last) = self.free_chunks(chunks).map_or_else(|| self.new_chunks(chunks), Ok)?;
        // Free the blocks of the last chunk beyond the run.
        let per_chunk = self.chunk_blocks();
        let rest = u32::try_from(chunks * per_chunk as usize - count).unwrap_or(0);
        self.0.table.chunk(last).put_back(per_chunk - rest, rest);
        self.0.table.mark_free(last);
        Ok(start)
    }

    /// Takes adjacent free chunks. Returns the first one's start and the last one's number.
    fn free_chunks(&self, chunks: usize) -> Option<(NonNull<u8>, u32)> {
        let blocks = self.chunk_blocks();
        let take = |number| self.0.table.chunk(number).take_all(blocks).then_some(number);
        self.0.table.with_free().find_map(|first| {
            let mut last = take(first)?;
            let start = self.0.table.chunk(first).base()?;
            for at in 1..chunks {
                let next = self.0.table.find(start.addr().get() + at * CHUNK_BYTES).and_then(take);
                let Some(next) = next else {
                    self.abandon(start, at);
                    return None;
                };
                last = next;
            }
            Some((start, last))
        })
    }

    /// Takes adjacent chunks from the frames. Returns the first one's start and the last one's
    /// number.
    fn new_chunks(&self, chunks: usize) -> Result<(NonNull<u8>, u32)> {
        self.0.growth.with(|growth| {
            self.check_limit(growth, chunks)?;
            let start = self.0.frames.take(chunks)?;
            let mut last = 0;
            for at in 0..chunks {
                // SAFETY: the chunk is within the chunks just taken.
                let base = unsafe { start.add(at * CHUNK_BYTES) };
                last = self.register(growth, base).inspect_err(|_| {
                    // SAFETY: the chunks from `base` on have no record; those before it are in the
                    // pool, in use, and freed below.
                    unsafe { self.0.frames.release(base, chunks - at) };
                    self.abandon(start, at);
                })?;
            }
            Ok((start, last))
        })
    }

    /// Frees the chunks of a run that could not be completed.
    fn abandon(&self, start: NonNull<u8>, chunks: usize) {
        for at in 0..chunks {
            if let Some(number) = self.0.table.find(start.addr().get() + at * CHUNK_BYTES) {
                self.publish(number, chunk::NO_OWNER);
            }
        }
    }
}
