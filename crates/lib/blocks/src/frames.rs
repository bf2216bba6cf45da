//! Sources of a pool's memory: chunks of 2 MiB from the kernel, an allocator, or a fixed range.
//!
//! ```text
//! MmapFrames   the kernel, with a chosen page kind (feature `std`)
//! HeapFrames   the program's allocator: for tests under Miri
//! FixedFrames  one existing range of memory: no_std, bare machines
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `mmap` | the kernel |
//! | `heap` | the program's allocator |
//! | `fixed` | one existing range |
//!
//! A chunk has the size of a huge page. Frames return the lowest free address, because block order
//! matters more than block size (see [`crate::DEFAULT_BLOCK_BYTES`]).

mod fixed;
mod heap;
#[cfg(feature = "std")]
mod mmap;

use core::ptr::NonNull;

use crate::error::{Error, Result};

pub use fixed::FixedFrames;
pub use heap::HeapFrames;
#[cfg(feature = "std")]
pub use mmap::{MmapFrames, PageKind};

/// Bytes of a chunk, and its alignment: a huge page on x86-64 and aarch64.
pub const CHUNK_BYTES: usize = 2 << 20;

/// A source of chunks.
///
/// # Safety
/// Each chunk that `take` returns is readable, writable, aligned to [`CHUNK_BYTES`] and below 2^48.
/// Nothing else uses it until it is released or the frames are dropped. A pool drops its frames
/// last.
#[allow(unsafe_code, reason = "the trait is a contract about memory")]
pub unsafe trait Frames: Send + Sync {
    /// Takes `chunks` contiguous chunks at the lowest free address.
    ///
    /// # Errors
    /// [`Error::Exhausted`] or [`Error::System`] when there is no memory; [`Error::NoRun`] when
    /// there are not enough contiguous chunks.
    fn take(&self, chunks: usize) -> Result<NonNull<u8>>;

    /// Releases chunks. A caller may release parts of one `take` separately.
    ///
    /// # Safety
    /// The chunks came from [`Frames::take`] of this value, and nothing uses them any more.
    unsafe fn release(&self, start: NonNull<u8>, chunks: usize);

    /// Makes `bytes` from `start` on resident, so that their first access does not fault. Contents
    /// do not change.
    ///
    /// # Errors
    /// [`Error::System`] when the kernel has no memory.
    ///
    /// # Safety
    /// The range is in chunks that were taken and not released.
    unsafe fn prefault(&self, start: NonNull<u8>, bytes: usize) -> Result<()> {
        let _ = (start, bytes);
        Ok(())
    }
}

/// Bytes of `chunks` chunks.
fn bytes_of(chunks: usize) -> Result<usize> {
    let too_many = Error::CapacityOverflow { elements: chunks };
    chunks.checked_mul(CHUNK_BYTES).filter(|&bytes| bytes > 0 && isize::try_from(bytes).is_ok()).ok_or(too_many)
}
