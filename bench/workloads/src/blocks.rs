//! Random use of the C allocator with checked contents: malloc, calloc, posix_memalign, realloc,
//! free, malloc_trim.
//!
//! A block's bytes are a function of its seed (word i is a mix of seed and i), so a block can be
//! checked without a copy and filled after growing. Sizes run from one byte to tens of megabytes:
//! from thread arenas to blocks that realloc moves with mremap.

#![allow(unsafe_code, reason = "calls the C allocator")]

use crate::{
    Error,
    random::{SplitMix64, mix},
};
use std::ops::Range;

/// At most 64 live blocks, of at most a total number of bytes. Dropping frees them without a check.
#[derive(Debug)]
pub struct Blocks {
    blocks: Vec<CheckedBlock>,
    limit_bytes: usize,
}

#[derive(Debug)]
struct CheckedBlock {
    address: usize,
    bytes: usize,
    seed: u64,
}

const MAX_BLOCKS: usize = 64;
const WORD: usize = size_of::<u64>();

impl Blocks {
    /// Creates an empty set that never exceeds `limit_bytes` in total.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self { blocks: Vec::with_capacity(MAX_BLOCKS), limit_bytes }
    }

    /// Allocates, resizes or frees one random block, and checks the affected bytes.
    ///
    /// # Errors
    /// [`Error::Wrong`] if malloc fails, or if a block's contents changed.
    pub fn step(&mut self, random: &mut SplitMix64) -> Result<(), Error> {
        let full = self.blocks.len() == MAX_BLOCKS;
        match random.below(8) {
            _ if self.blocks.is_empty() => self.allocate(random),
            0..=2 if !full => self.allocate(random),
            3..=4 => self.resize(random),
            5 if random.below(16) == 0 => {
                // SAFETY: the call takes no pointer, and must not change live blocks, which is
                // checked below.
                unsafe { libc::malloc_trim(0) };
                self.check()
            }
            _ => self.free(random),
        }
    }

    /// Checks every byte of every block.
    ///
    /// # Errors
    /// [`Error::Wrong`] for the first byte that differs.
    pub fn check(&self) -> Result<(), Error> {
        self.blocks.iter().try_for_each(|block| block.check(0..block.bytes))
    }

    /// The address ranges of the blocks.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.blocks.iter().map(|block| block.address..block.address + block.bytes)
    }

    fn size(&self, random: &mut SplitMix64) -> usize {
        let most = match random.below(16) {
            0..=7 => 512,
            8..=12 => 64 << 10,
            13..=14 => 1 << 20,
            _ => 32 << 20,
        };
        let used: usize = self.blocks.iter().map(|block| block.bytes).sum();
        1 + random.below(most.min(self.limit_bytes.saturating_sub(used)))
    }

    fn allocate(&mut self, random: &mut SplitMix64) -> Result<(), Error> {
        let (bytes, seed) = (self.size(random), random.draw());
        let block = match random.below(4) {
            0 => CheckedBlock::zeroed(bytes, seed)?,
            1 => CheckedBlock::aligned(bytes, 16 << random.below(18), seed)?,
            _ => CheckedBlock::new(bytes, seed)?,
        };
        if let Some(other) = self.ranges().find(|r| r.start < block.address + bytes && block.address < r.end) {
            return Err(Error::wrong(format!("malloc returned {:#x}, inside the block {other:#x?}", block.address)));
        }
        block.write(0);
        self.blocks.push(block);
        Ok(())
    }

    fn resize(&mut self, random: &mut SplitMix64) -> Result<(), Error> {
        let index = random.below(self.blocks.len());
        let bytes = self.size(random);
        let block = &mut self.blocks[index];
        let kept = block.bytes.min(bytes);
        // SAFETY: the block came from malloc's family and is live; its old address is replaced
        // below.
        let address = unsafe { libc::realloc(block.address as *mut libc::c_void, bytes) };
        if address.is_null() {
            return Err(refused("realloc", bytes));
        }
        (block.address, block.bytes) = (address as usize, bytes);
        block.check(0..kept)?;
        block.write(kept);
        block.check(kept..bytes)
    }

    fn free(&mut self, random: &mut SplitMix64) -> Result<(), Error> {
        let block = self.blocks.swap_remove(random.below(self.blocks.len()));
        block.check(0..block.bytes)?;
        block.free();
        Ok(())
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.blocks.drain(..).for_each(CheckedBlock::free);
    }
}

impl CheckedBlock {
    fn new(bytes: usize, seed: u64) -> Result<Self, Error> {
        // SAFETY: malloc has no precondition; null is checked below.
        let address = unsafe { libc::malloc(bytes) } as usize;
        if address == 0 { Err(refused("malloc", bytes)) } else { Ok(Self { address, bytes, seed }) }
    }

    fn zeroed(bytes: usize, seed: u64) -> Result<Self, Error> {
        // SAFETY: calloc has no precondition; null is checked below.
        let address = unsafe { libc::calloc(1, bytes) } as usize;
        if address == 0 {
            return Err(refused("calloc", bytes));
        }
        let block = Self { address, bytes, seed };
        match block.bytes(0..bytes).iter().position(|byte| *byte != 0) {
            Some(at) => Err(Error::wrong(format!("byte {at} of calloc's {bytes} bytes at {address:#x} is not 0"))),
            None => Ok(block),
        }
    }

    fn aligned(bytes: usize, alignment: usize, seed: u64) -> Result<Self, Error> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: `memory` receives the result; the alignment is a power of two and a multiple of a
        // pointer's size.
        let error = unsafe { libc::posix_memalign(&raw mut memory, alignment, bytes) };
        if error != 0 {
            return Err(refused("posix_memalign", bytes));
        }
        let address = memory as usize;
        if !address.is_multiple_of(alignment) {
            return Err(Error::wrong(format!(
                "posix_memalign returned {address:#x} for an alignment of {alignment:#x}"
            )));
        }
        Ok(Self { address, bytes, seed })
    }

    fn free(self) {
        // SAFETY: the block came from malloc's family, and `self` is consumed.
        unsafe { libc::free(self.address as *mut libc::c_void) };
    }

    /// The current bytes of `range`: zeroed by calloc, or written before.
    fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.end <= self.bytes, "{range:?} is beyond the block's {} bytes", self.bytes);
        let start = (self.address + range.start) as *const u8;
        // SAFETY: the block is live and contains the range. It is initialised: callers pass bytes
        // that calloc zeroed or `write` has written (realloc's new tail is read only after that).
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    fn word(&self, index: usize) -> [u8; WORD] {
        mix(self.seed.wrapping_add(index as u64)).to_le_bytes()
    }

    /// Fills the block from byte `from` on.
    fn write(&self, from: usize) {
        for index in from / WORD..self.bytes.div_ceil(WORD) {
            let at = index * WORD;
            let count = WORD.min(self.bytes - at);
            // SAFETY: `at + count` is at most the block's length, the block is live, and no
            // reference into it exists.
            unsafe {
                std::ptr::copy_nonoverlapping(self.word(index).as_ptr(), (self.address + at) as *mut u8, count);
            };
        }
    }

    /// Checks the words that overlap `range`.
    fn check(&self, range: Range<usize>) -> Result<(), Error> {
        let first = range.start / WORD;
        let bytes = self.bytes(first * WORD..range.end);
        for (index, found) in (first..).zip(bytes.chunks(WORD)) {
            let expected = self.word(index);
            if *found != expected[..found.len()] {
                return Err(Error::wrong(format!(
                    "the block of {} bytes at {:#x} holds {found:x?} at byte {}, expected {expected:x?}",
                    self.bytes,
                    self.address,
                    index * WORD
                )));
            }
        }
        Ok(())
    }
}

fn refused(call: &str, bytes: usize) -> Error {
    Error::wrong(format!("{call} failed for {bytes} bytes: {}", std::io::Error::last_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_use_keeps_every_byte() {
        let mut blocks = Blocks::new(1 << 20);
        let mut random = SplitMix64::new(5);
        for _ in 0..500 {
            blocks.step(&mut random).unwrap();
        }
        blocks.check().unwrap();
    }

    #[test]
    fn a_changed_byte_is_found() {
        let block = CheckedBlock::new(21, 9).unwrap();
        block.write(0);
        assert!(block.check(0..21).is_ok());
        // SAFETY: byte 20 is the block's last one.
        unsafe { *((block.address + 20) as *mut u8) ^= 1 };
        assert!(block.check(0..21).is_err());
        assert!(block.check(0..16).is_ok());
        block.free();
    }
}
