//! The pager's own memory: one reserved range, handed out from its start.
//!
//! ```text
//! base                                        limit
//! | tables | lanes | spans | tables | ...     |      never freed; untouched pages take no memory
//! ```
//! One range separates the pager's memory from the program's: it is never paged, and it is
//! counted apart.

#![allow(unsafe_code, reason = "hands out parts of a mapping")]

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::kernel::{self, PAGE};

/// The smallest arena that is of use.
const MIN_BYTES: usize = 64 << 20;

/// A reserved range of zeroed memory.
#[derive(Debug)]
pub(crate) struct Arena {
    range: Range<usize>,
    next: AtomicUsize,
}

impl Arena {
    /// Reserves `bytes`, or the largest half, quarter, … of it that the limits of the process allow.
    pub(crate) fn reserve(bytes: usize) -> Result<Self> {
        let mut bytes = bytes;
        loop {
            match kernel::map(bytes) {
                Ok(start) => return Ok(Self { range: start..start + bytes, next: AtomicUsize::new(start) }),
                Err(errno) if bytes / 2 < MIN_BYTES => return Err(Error::Map { bytes, errno }),
                Err(_) => bytes = (bytes / 2).next_multiple_of(PAGE),
            }
        }
    }

    /// Unmaps the memory of an arena that `settle` returned.
    ///
    /// # Safety
    /// Nothing uses the arena or its memory any more.
    #[cfg(feature = "std")]
    pub(crate) unsafe fn release(&'static self) {
        // SAFETY: the caller gives up the arena, so this copy is its only owner.
        drop(unsafe { core::ptr::read(self) });
    }

    /// Moves this description to the start of its own memory. `None` if that is too small.
    pub(crate) fn settle(self) -> Option<&'static Self> {
        let at = self.take(size_of::<Self>())?.cast::<Self>();
        // SAFETY: the memory is fresh, aligned to pages and large enough.
        unsafe {
            at.write(self);
            Some(at.as_ref())
        }
    }

    /// The whole range.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Whole zeroed pages with room for `bytes`. `None` when the arena is used up.
    pub(crate) fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = bytes.next_multiple_of(PAGE);
        let start = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                (self.range.end - next >= bytes).then_some(next + bytes)
            })
            .ok()?;
        NonNull::new(core::ptr::with_exposed_provenance_mut(start))
    }

    /// A zeroed value of the arena. `None` when the arena is used up.
    ///
    /// # Safety
    /// All zero bytes are a valid `T`.
    pub(crate) unsafe fn place<T: Sync>(&self) -> Option<&'static T> {
        debug_assert!(align_of::<T>() <= PAGE);
        // SAFETY: the pages are fresh, zeroed and large enough, and never freed before the arena,
        // whose owner keeps no such reference past its end.
        self.take(size_of::<T>()).map(|at| unsafe { at.cast::<T>().as_ref() })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the range belongs to this value, whose owner uses nothing in it any more.
        unsafe { kernel::unmap(self.range()) };
    }
}
