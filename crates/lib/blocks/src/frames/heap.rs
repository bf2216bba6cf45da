//! Chunks from the program's own allocator. Not for speed: for tests under Miri, and where there is no kernel to ask.

#![allow(unsafe_code, reason = "asks the allocator for raw memory")]

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;

use super::{CHUNK_BYTES, Frames, bytes_of};
use crate::error::{Error, Result};

/// Chunks from the global allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapFrames;

const CHUNK: Layout = match Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("a chunk is a power of two"),
};

// SAFETY: the allocator gives memory of the chunk's size and alignment to us alone, until it is deallocated.
unsafe impl Frames for HeapFrames {
    fn take(&self, chunks: usize) -> Result<NonNull<u8>> {
        if chunks != 1 {
            // Parts of an allocation could not be given back on their own.
            return Err(Error::NoRun { blocks: chunks });
        }
        let bytes = bytes_of(chunks)?;
        // SAFETY: the layout is not of size zero.
        let chunk = unsafe { alloc(CHUNK) };
        NonNull::new(chunk).ok_or(Error::Exhausted { wanted_bytes: bytes, held_bytes: 0 })
    }

    unsafe fn give(&self, start: NonNull<u8>, chunks: usize) {
        debug_assert_eq!(chunks, 1, "chunks were taken one by one");
        // SAFETY: the chunk came from `take`, with this layout, and nobody uses it any more.
        unsafe { dealloc(start.as_ptr(), CHUNK) };
    }
}
