//! Chunks from the global allocator, for tests under Miri and for targets without `mmap`.

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

// SAFETY: the allocator returns memory of the chunk's size and alignment that nothing else uses
// until `dealloc`.
unsafe impl Frames for HeapFrames {
    fn take(&self, chunks: usize) -> Result<NonNull<u8>> {
        if chunks != 1 {
            // The allocator cannot free a part of an allocation.
            return Err(Error::NoRun { blocks: chunks });
        }
        let bytes = bytes_of(chunks)?;
        // SAFETY: the layout is not of size zero.
        let chunk = unsafe { alloc(CHUNK) };
        NonNull::new(chunk).ok_or(Error::Exhausted { wanted_bytes: bytes, held_bytes: 0 })
    }

    unsafe fn release(&self, start: NonNull<u8>, chunks: usize) {
        debug_assert_eq!(chunks, 1, "chunks were taken one by one");
        // SAFETY: the chunk came from `take`, with this layout, and by contract nothing uses it any
        // more.
        unsafe { dealloc(start.as_ptr(), CHUNK) };
    }
}
