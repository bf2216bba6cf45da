//! A heap as the allocator of one collection, by `allocator-api2`'s stable copy of std's unstable
//! trait.

#![allow(unsafe_code, reason = "implements an allocator")]

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use super::Heap;

// SAFETY: objects stay in place until they are freed. A clone is the same heap, which lives as long
// as any handle.
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
        // SAFETY: the trait's caller vouches for the object and its layout.
        unsafe { self.free(object, layout) };
    }

    unsafe fn grow(&self, object: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the trait's caller vouches for the object and both layouts.
        unsafe { self.resize(object, old, new) }
    }

    unsafe fn shrink(&self, object: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the trait's caller vouches for the object and both layouts.
        unsafe { self.resize(object, old, new) }
    }
}

impl Heap {
    unsafe fn resize(&self, object: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let moved = if old.align() == new.align() {
            // SAFETY: the trait's caller vouches for the object, its layout and the new size.
            unsafe { self.realloc(object, old, new.size()) }.map_err(|_| AllocError)?
        } else {
            let moved = self.alloc(new).map_err(|_| AllocError)?;
            // SAFETY: both objects have at least this many bytes, and the new one is not shared.
            unsafe {
                moved.copy_from_nonoverlapping(object, old.size().min(new.size()));
                self.free(object, old);
            }
            moved
        };
        Ok(NonNull::slice_from_raw_parts(moved, new.size()))
    }
}
