//! Where a pool gets its memory: chunks of 2 MiB from the kernel, from an allocator, or from a plain array.
//!
//! ```text
//! MmapFrames   the kernel, on the kind of pages that is asked for        (feature std)
//! HeapFrames   the program's allocator: for tests under Miri
//! FixedFrames  one range of memory that is there already: no_std, bare machines
//! ```
//! A chunk is what one entry of a huge page's size covers. Frames give the lowest address that they have: blocks in address
//! order are worth more than large blocks.

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

/// Bytes of a chunk, and its alignment: a huge page of x86-64 and aarch64.
pub const CHUNK_BYTES: usize = 2 << 20;

/// A source of chunks.
///
/// # Safety
/// What is given is readable and writable, aligned to [`CHUNK_BYTES`], below 2^48, used by nobody else, and stays so until it
/// is given back, or the frames are dropped: a pool drops its frames last.
#[allow(unsafe_code, reason = "the trait is a promise about memory")]
pub unsafe trait Frames: Send + Sync {
    /// Takes `chunks` contiguous chunks, at the lowest address that there is.
    ///
    /// # Errors
    /// [`Error::Exhausted`] or [`Error::System`] when there is no memory; [`Error::NoRun`] when there are no such neighbours.
    fn take(&self, chunks: usize) -> Result<NonNull<u8>>;

    /// Gives chunks back; parts of what was taken at once may come back on their own.
    ///
    /// # Safety
    /// They came from [`Frames::take`] of this value, and nobody uses them any more.
    unsafe fn give(&self, start: NonNull<u8>, chunks: usize);

    /// Makes `bytes` from `start` on resident, so that their first use does not fault. Contents stay.
    ///
    /// # Errors
    /// [`Error::System`] when the memory is not there.
    ///
    /// # Safety
    /// They lie in chunks that were taken and not given back.
    unsafe fn prefault(&self, start: NonNull<u8>, bytes: usize) -> Result<()> {
        let _ = (start, bytes);
        Ok(())
    }
}

/// Bytes of `chunks`, if there can be so many.
fn bytes_of(chunks: usize) -> Result<usize> {
    let too_many = Error::CapacityOverflow { elements: chunks };
    chunks.checked_mul(CHUNK_BYTES).filter(|&bytes| bytes > 0 && isize::try_from(bytes).is_ok()).ok_or(too_many)
}
