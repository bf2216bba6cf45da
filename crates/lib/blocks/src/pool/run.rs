//! Runs: several blocks that are neighbours. What a general allocator needs for large objects, and stacks; trees of blocks need none.
//!
//! A run of up to a chunk lies within one; a larger one takes whole neighbouring chunks from the frames, which may refuse. A run may
//! also grow downwards, as a stack does: it begins with the last block of a chunk and takes the block below it while that is free.

#![allow(unsafe_code, reason = "takes back raw memory")]

use core::ptr::NonNull;

use super::{Pool, chunk};
use crate::error::{Error, Result};
use crate::frames::CHUNK_BYTES;

impl Pool {
    /// Takes `count` neighbouring blocks.
    ///
    /// # Errors
    /// [`Error::NoRun`] where memory is too fragmented or the frames give single chunks, and as [`Pool::alloc`].
    pub fn alloc_run(&self, count: usize) -> Result<NonNull<u8>> {
        match u32::try_from(count) {
            Ok(0) => Err(Error::NoRun { blocks: 0 }),
            Ok(1) => self.alloc(),
            Ok(count) if count <= self.chunk_blocks() => self.run_in_chunk(count),
            _ => self.run_of_chunks(count),
        }
    }

    /// Gives a run back, all of it.
    ///
    /// # Errors
    /// As [`Pool::free`], for the first block that is at fault; those before it are free.
    ///
    /// # Safety
    /// It came from [`Pool::alloc_run`] with this count, and nobody uses it any more.
    pub unsafe fn free_run(&self, start: NonNull<u8>, count: usize) -> Result<()> {
        for block in 0..count {
            // SAFETY: the block lies within the run, and the caller is done with it.
            unsafe { self.free(start.add(block * self.block_bytes()))? };
        }
        Ok(())
    }

    /// Takes the last block of a chunk that is otherwise free, so that a run can grow downwards from there; where memory has
    /// come to its end, any block.
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
                self.0.table.tell_free(number);
                Ok(self.block_at(chunk, blocks - 1))
            }
            Err(error) => self.steal().ok_or(error),
        }
    }

    /// Takes this block, if it is free; whether it was. A block that is not the pool's is never free.
    pub fn alloc_at(&self, block: NonNull<u8>) -> bool {
        self.find(block).is_ok_and(|(number, index)| self.0.table.chunk(number).take_exactly(index, 1))
    }

    fn run_in_chunk(&self, count: u32) -> Result<NonNull<u8>> {
        let blocks = self.chunk_blocks();
        let found = self.0.table.with_free().find_map(|number| {
            let chunk = self.0.table.chunk(number);
            let first = chunk.take_run(count, blocks);
            // A try that failed may have hidden free blocks from somebody who then told that there are none.
            self.0.table.tell_free(number);
            first.map(|first| self.block_at(chunk, first))
        });
        if let Some(start) = found {
            return Ok(start);
        }
        let number = self.0.growth.with(|growth| self.grow(growth))?;
        let chunk = self.0.table.chunk(number);
        chunk.put_back(count, blocks - count);
        self.0.table.tell_free(number);
        Ok(self.block_at(chunk, 0))
    }

    fn run_of_chunks(&self, count: usize) -> Result<NonNull<u8>> {
        let bytes = count.checked_mul(self.block_bytes()).ok_or(Error::CapacityOverflow { elements: count })?;
        let chunks = bytes.div_ceil(CHUNK_BYTES);
        let (start, last) = self.free_chunks(chunks).map_or_else(|| self.new_chunks(chunks), Ok)?;
        // What the last chunk has beyond the run is free.
        let per_chunk = self.chunk_blocks();
        let rest = u32::try_from(chunks * per_chunk as usize - count).unwrap_or(0);
        self.0.table.chunk(last).put_back(per_chunk - rest, rest);
        self.0.table.tell_free(last);
        Ok(start)
    }

    /// Takes neighbouring chunks that are wholly free: the first one's start, the last one's number.
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

    /// Takes neighbouring chunks from the frames.
    fn new_chunks(&self, chunks: usize) -> Result<(NonNull<u8>, u32)> {
        self.0.growth.with(|growth| {
            self.check_limit(growth, chunks)?;
            let start = self.0.frames.take(chunks)?;
            let mut last = 0;
            for at in 0..chunks {
                // SAFETY: the chunk lies within what was taken.
                let base = unsafe { start.add(at * CHUNK_BYTES) };
                last = self.register(growth, base).inspect_err(|_| {
                    // SAFETY: nobody has these chunks; those before are in the pool, in use, and freed below.
                    unsafe { self.0.frames.give(base, chunks - at) };
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
                self.publish(number, chunk::NOBODY);
            }
        }
    }
}
