//! The directory of a tree: one pointer per leaf, biased so that adding an index gives the
//! element's address.
//!
//! ```text
//! directory[k] = leaf k - k * per_leaf elements
//! element i    = directory[leaf_of(i)] + i          one shift (or multiplication), two loads
//! ```
//! The bias moves most entries out of their leaf. They are computed with `wrapping_add`, which
//! permits that.

#![allow(
    unsafe_code,
    reason = "a table of raw pointers, allocated by hand because readers may use it after it is replaced"
)]

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;

use crate::error::{Error, Result};

/// A table of leaf pointers. Dropping it frees the table, not the leaves.
#[derive(Debug)]
pub(crate) struct Directory<T> {
    entries: NonNull<*mut T>,
    capacity: usize,
}

const FIRST_CAPACITY: usize = 4;

impl<T> Directory<T> {
    pub(crate) const fn empty() -> Self {
        Self { entries: NonNull::dangling(), capacity: 0 }
    }

    /// Allocates a larger table with the first `count` entries of this one and space for at least
    /// `least`.
    pub(crate) fn grow_copy(&self, least: usize, count: usize) -> Result<Self> {
        let capacity = least.max(2 * self.capacity).max(FIRST_CAPACITY);
        let layout = Layout::array::<*mut T>(capacity).map_err(|_| Error::CapacityOverflow { elements: least })?;
        #[expect(clippy::cast_ptr_alignment, reason = "the layout is that of an array of pointers")]
        // SAFETY: the layout is not of size zero.
        let entries = NonNull::new(unsafe { alloc(layout) }.cast::<*mut T>());
        let entries = entries.ok_or(Error::Table { bytes: layout.size() })?;
        debug_assert!(count <= self.capacity, "entries are in the table");
        // SAFETY: both tables have space for `count` entries and do not overlap.
        unsafe { entries.copy_from_nonoverlapping(self.entries, count) };
        Ok(Self { entries, capacity })
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) const fn entries(&self) -> *mut *mut T {
        self.entries.as_ptr()
    }

    /// Entry `leaf`.
    ///
    /// # Safety
    /// The entry was set.
    #[inline]
    pub(crate) unsafe fn get(&self, leaf: usize) -> *mut T {
        // SAFETY: by contract the entry was set, and `set` checks that it is within the table.
        unsafe { *self.entries.as_ptr().add(leaf) }
    }

    /// Sets entry `leaf`. Panics if it is not below the capacity.
    pub(crate) fn set(&mut self, leaf: usize, biased: *mut T) {
        assert!(leaf < self.capacity, "entry {leaf} is beyond the {} entries of the table", self.capacity);
        // SAFETY: the assertion checks that the entry is within the table.
        unsafe { self.entries.as_ptr().add(leaf).write(biased) };
    }
}

impl<T> Drop for Directory<T> {
    fn drop(&mut self) {
        if self.capacity > 0
            && let Ok(layout) = Layout::array::<*mut T>(self.capacity)
        {
            // SAFETY: the table was allocated with this layout.
            unsafe { dealloc(self.entries.as_ptr().cast(), layout) };
        }
    }
}
