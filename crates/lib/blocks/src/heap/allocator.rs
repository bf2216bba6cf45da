//! A heap as the allocator of one collection: `allocator-api2`'s trait, which stands for the one that std has not settled yet.

#![allow(unsafe_code, reason = "is an allocator")]

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::Heap;

// SAFETY: objects stay where they are until they are freed; a clone is the same heap, which lives as long as one handle does.
unsafe impl Allocator for Heap {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let object = self.alloc(layout).map_err(|_| AllocError)?;
        Ok(NonNull::slice_from_raw_parts(object, layout.size()))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let object = self.alloc_zeroed(layout).map_err(|_| AllocError)?;
        Ok(NonNull::slice_from_raw_parts(object, layout.size()))
    }

    unsafe fn deallocate(&self, object: NonNull<u8>, layout: Layout) {
        // SAFETY: as the trait's caller promises.
        unsafe { self.free(object, layout) };
    }

    unsafe fn grow(&self, object: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: as the trait's caller promises.
        unsafe { self.resize(object, old, new) }
    }

    unsafe fn shrink(&self, object: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: as the trait's caller promises.
        unsafe { self.resize(object, old, new) }
    }
}

impl Heap {
    unsafe fn resize(&self, object: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let moved = if old.align() == new.align() {
            // SAFETY: as the trait's caller promises.
            unsafe { self.realloc(object, old, new.size()) }.map_err(|_| AllocError)?
        } else {
            let moved = self.alloc(new).map_err(|_| AllocError)?;
            // SAFETY: both have so many bytes, and the new one is nobody else's.
            unsafe {
                moved.copy_from_nonoverlapping(object, old.size().min(new.size()));
                self.free(object, old);
            }
            moved
        };
        Ok(NonNull::slice_from_raw_parts(moved, new.size()))
    }
}
