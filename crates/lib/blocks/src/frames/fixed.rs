//! Chunks from one existing range of memory: a static array, or the memory of a machine without an
//! operating system.
//!
//! Free chunks form a list in address order. The link is in the chunk's first words, so the list
//! needs no other memory.
//!
//! ```text
//! |skip|  chunk  |  chunk  |  chunk  | rest |
//!       first ->  next ----------->  none
//! ```

#![allow(unsafe_code, reason = "stores its free list in the chunks themselves")]

use core::ptr::NonNull;

use super::{CHUNK_BYTES, Frames, bytes_of};
use crate::error::{Error, Result};
use crate::sync::Lock;

/// Chunks of one fixed range.
#[derive(Debug)]
pub struct FixedFrames {
    list: Lock<FreeList>,
    bytes: usize,
}

#[derive(Debug)]
struct FreeList {
    first: Option<NonNull<Free>>,
}

#[derive(Debug)]
struct Free {
    next: Option<NonNull<Free>>,
}

// SAFETY: the list owns its chunks, and no thread keeps a pointer to them.
unsafe impl Send for FreeList {}

impl FixedFrames {
    /// Uses the whole chunks in `bytes` from `start` on. Bytes before the first and after the last
    /// of them stay unused.
    ///
    /// # Safety
    /// The range is readable, writable and below 2^48. Nothing else uses it while this value, or a
    /// chunk from it, is alive.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        let skip = start.as_ptr().align_offset(CHUNK_BYTES);
        let chunks = bytes.saturating_sub(skip) / CHUNK_BYTES;
        let mut list = FreeList { first: None };
        for chunk in (0..chunks).rev() {
            // SAFETY: the chunk is in the range: skip + (chunk + 1) * CHUNK_BYTES is at most
            // `bytes`.
            unsafe { list.insert(start.add(skip + chunk * CHUNK_BYTES)) };
        }
        Self { list: Lock::new(list), bytes: chunks * CHUNK_BYTES }
    }
}

impl FreeList {
    /// Inserts a chunk in address order.
    ///
    /// # Safety
    /// The chunk is in the range, is on no list and is unused.
    unsafe fn insert(&mut self, chunk: NonNull<u8>) {
        let free = chunk.cast::<Free>();
        let mut link = &mut self.first;
        while let Some(mut there) = *link {
            if there > free {
                break;
            }
            // SAFETY: a listed chunk is free and begins with a `Free`, which only the lock's holder
            // accesses.
            link = unsafe { &mut there.as_mut().next };
        }
        // SAFETY: the chunk is aligned and large enough for a link, and unused by contract.
        unsafe { free.write(Free { next: *link }) };
        *link = Some(free);
    }

    /// Removes the first `chunks` contiguous chunks.
    fn take(&mut self, chunks: usize) -> Option<NonNull<u8>> {
        let mut link = &mut self.first;
        while let Some(first) = *link {
            let (mut last, mut count) = (first, 1);
            // SAFETY: a listed chunk is free and begins with a `Free`, which only the lock's holder
            // accesses.
            while let Some(next) = unsafe { last.as_ref().next } {
                if count == chunks || next.addr().get() != last.addr().get() + CHUNK_BYTES {
                    break;
                }
                (last, count) = (next, count + 1);
            }
            // SAFETY: `last` is a listed chunk, which begins with a `Free` that only the lock's
            // holder accesses.
            let after = unsafe { &mut (*last.as_ptr()).next };
            if count == chunks {
                *link = *after;
                return Some(first.cast());
            }
            link = after;
        }
        None
    }
}

// SAFETY: `take` unlinks a chunk before returning it, so each is returned once; `new`'s caller
// vouches for the range.
unsafe impl Frames for FixedFrames {
    fn take(&self, chunks: usize) -> Result<NonNull<u8>> {
        let wanted_bytes = bytes_of(chunks)?;
        let none = if chunks == 1 {
            Error::Exhausted { wanted_bytes, held_bytes: self.bytes }
        } else {
            Error::NoRun { blocks: chunks }
        };
        self.list.with(|list| list.take(chunks)).ok_or(none)
    }

    unsafe fn release(&self, start: NonNull<u8>, chunks: usize) {
        self.list.with(|list| {
            for chunk in 0..chunks {
                // SAFETY: by contract these chunks came from `take` and are unused, so they are on
                // no list.
                unsafe { list.insert(start.add(chunk * CHUNK_BYTES)) };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_the_whole_ones_in_address_order() {
        let mut memory = alloc::vec![0_u8; 5 * CHUNK_BYTES + 100];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the vector lives to the end of the test, and only the frames use it.
        let frames = unsafe { FixedFrames::new(start, memory.len()) };
        let mut taken: alloc::vec::Vec<_> = core::iter::from_fn(|| frames.take(1).ok()).collect();
        assert!((4..=5).contains(&taken.len()) && taken.is_sorted(), "{taken:?}");
        assert!(taken.iter().all(|chunk| chunk.addr().get().is_multiple_of(CHUNK_BYTES)));
        assert!(matches!(frames.take(1), Err(Error::Exhausted { wanted_bytes: CHUNK_BYTES, .. })));
        let lowest = taken[0];
        taken.swap(0, 2);
        for &chunk in &taken[..3] {
            // SAFETY: each chunk was taken above and is released once.
            unsafe { frames.release(chunk, 1) };
        }
        assert_eq!(frames.take(4).unwrap_err(), Error::NoRun { blocks: 4 });
        assert_eq!(frames.take(3).unwrap(), lowest, "adjacent chunks are reused");
    }
}
