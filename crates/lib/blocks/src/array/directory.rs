//! The directory of a tree: one pointer a leaf, biased so that an element's address is one addition away.
//!
//! ```text
//! directory[k] = leaf k - k * per_leaf elements
//! element i    = directory[leaf_of(i)] + i          one shift (or multiplication), two loads
//! ```
//! The bias makes most entries point outside their leaf: they are moved by `wrapping_add` only, which is defined for that.

#![allow(unsafe_code, reason = "a table of raw pointers, allocated by hand because readers may outlive its growth")]

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;

use crate::error::{Error, Result};

/// A table of leaves. Dropping it frees the table, not the leaves.
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

    /// A larger table with the first `count` entries of this one.
    pub(crate) fn grown(&self, least: usize, count: usize) -> Result<Self> {
        let capacity = least.max(2 * self.capacity).max(FIRST_CAPACITY);
        let layout = Layout::array::<*mut T>(capacity).map_err(|_| Error::CapacityOverflow { elements: least })?;
        #[expect(clippy::cast_ptr_alignment, reason = "the layout is that of such pointers")]
        // SAFETY: the layout is not of size zero.
        let entries = NonNull::new(unsafe { alloc(layout) }.cast::<*mut T>());
        let entries = entries.ok_or(Error::Table { bytes: layout.size() })?;
        debug_assert!(count <= self.capacity, "entries are in the table");
        // SAFETY: both tables have room for `count` entries and do not overlap.
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
    /// It was set.
    #[inline]
    pub(crate) unsafe fn get(&self, leaf: usize) -> *mut T {
        // SAFETY: a set entry lies within the table.
        unsafe { *self.entries.as_ptr().add(leaf) }
    }

    /// Sets entry `leaf`, which is below the capacity.
    pub(crate) fn set(&mut self, leaf: usize, biased: *mut T) {
        assert!(leaf < self.capacity, "a table of {} entries has no {leaf}", self.capacity);
        // SAFETY: it lies within the table.
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
