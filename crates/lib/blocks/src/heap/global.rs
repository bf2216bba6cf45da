//! The heap as a program's global allocator: all its allocations come from blocks.
//!
//! ```
//! use fieldstone_blocks::heap::GlobalHeap;
//!
//! #[global_allocator]
//! static HEAP: GlobalHeap = GlobalHeap::new();
//!
//! let numbers: Vec<u64> = (0..1000).collect();
//! assert!(HEAP.stats().used_bytes >= 8 * numbers.len());
//! ```
//! The first allocation creates the pool. The tables of the pool and its frames come from an arena
//! of 1 GiB of address space (`arena`) if a slab cannot serve them at once: the pool cannot
//! allocate from itself under its lock.
//!
//! # Fork
//! Like any allocator without fork handlers: if one thread forks while another takes a chunk from
//! the kernel, the child must not allocate before it calls `exec`. Locks and numbers of the
//! parent's other threads stay taken in the child.

#![allow(unsafe_code, reason = "implements an allocator")]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::arena::{Arena, BLOCK_BYTES};
use super::slab::Slab;
use super::{Heap, HeapStats, Large, class, thread};
use crate::frames::{MmapFrames, PageKind};
use crate::pool::Pool;
use crate::sync::{enter_internals, is_in_internals};

/// A heap with its own pool of 64 KiB blocks, usable as a `static`.
#[derive(Debug)]
pub struct GlobalHeap {
    /// The heap's number; 0 before the heap exists.
    id: AtomicUsize,
    heap: OnceLock<Heap>,
    start: Mutex<()>,
    arena: Arena,
    pages: PageKind,
    large: Large,
}

impl GlobalHeap {
    /// A heap on transparent huge pages; large objects are runs of blocks.
    #[must_use]
    pub const fn new() -> Self {
        Self::with(PageKind::Thp, Large::Runs)
    }

    /// A heap on pages of this kind. With [`Large::Refuse`] every request larger than a block
    /// fails. Few programs survive that: the standard library's hash tables and vectors are
    /// contiguous.
    #[must_use]
    pub const fn with(pages: PageKind, large: Large) -> Self {
        Self {
            id: AtomicUsize::new(0),
            heap: OnceLock::new(),
            start: Mutex::new(()),
            arena: Arena::new(),
            pages,
            large,
        }
    }

    /// The heap, which the first call creates with its pool. `None` when there is no memory for it.
    pub fn heap(&self) -> Option<&Heap> {
        self.heap.get().or_else(|| self.start())
    }

    /// What the program holds; zeros before the first allocation.
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        self.heap.get().map(Heap::stats).unwrap_or_default()
    }

    #[cold]
    fn start(&self) -> Option<&Heap> {
        enter_internals(|| {
            let _guard = self.start.lock().unwrap_or_else(PoisonError::into_inner);
            if self.heap.get().is_none() {
                let pool = Pool::with_block_bytes(MmapFrames::new(self.pages), BLOCK_BYTES).ok()?;
                let heap = Heap::new(&pool, self.large).ok()?;
                let id = heap.0.id;
                // `set` cannot fail: this thread holds the lock.
                let _ = self.heap.set(heap);
                self.id.store(id, Ordering::Release);
            }
            self.heap.get()
        })
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, layout: Layout) -> *mut u8 {
        if is_in_internals() {
            return self.arena.alloc(layout);
        }
        let object = self.heap().and_then(|heap| heap.alloc(layout).ok());
        object.map_or(null_mut(), NonNull::as_ptr)
    }

    #[cold]
    #[inline(never)]
    unsafe fn free_slow(&self, object: *mut u8, layout: Layout) {
        if self.arena.contains(object.addr()) {
            // SAFETY: the arena contains the address, so the object came from it, with this layout
            // by contract.
            return unsafe { self.arena.free(object, layout) };
        }
        if let (Some(heap), Some(object)) = (self.heap.get(), NonNull::new(object)) {
            // SAFETY: an object that is not the arena's is the heap's, and the caller vouches for
            // its layout.
            unsafe { heap.free(object, layout) };
        }
    }
}

impl Default for GlobalHeap {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: an object belongs to the caller alone until it is freed, and fits the layout. Nothing
// here unwinds: an invalid free ends the process.
unsafe impl GlobalAlloc for GlobalHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the pointer cached under a heap's number is a `ThreadHeap` of it. The number is
        // nonzero only after the heap exists.
        let local = unsafe { thread::cached(self.id.load(Ordering::Relaxed)).as_ref() };
        let object = local.and_then(|local| local.alloc(class::of_layout(layout)));
        object.map_or_else(|| self.alloc_slow(layout), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let address = object.addr();
        // SAFETY: the pointer cached under a heap's number is a `ThreadHeap` of it. The number is
        // nonzero only after the heap exists.
        let local = unsafe { thread::cached(self.id.load(Ordering::Relaxed)).as_ref() };
        if let Some(local) = local
            && !address.is_multiple_of(BLOCK_BYTES)
            && !cfg!(debug_assertions)
        {
            let slab = Slab::of(address, BLOCK_BYTES);
            // SAFETY: an object that is not at a block's start is in a slab, or in a block of the
            // arena, whose zeroed header names no owner.
            unsafe {
                if ptr::eq((*slab).local, local) {
                    return local.free(&*slab, ptr::with_exposed_provenance_mut(address));
                }
            }
        }
        // SAFETY: the caller vouches for the object and its layout.
        unsafe { self.free_slow(object, layout) };
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: by contract the size is valid for the alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        if !self.arena.contains(object.addr())
            && let (Some(heap), Some(place)) = (self.heap.get(), NonNull::new(object))
        {
            // SAFETY: the object is not the arena's, so it is the heap's; the caller vouches for
            // its layout.
            if unsafe { heap.0.fits_in_place(place, layout, wanted) } {
                return object;
            }
        }
        // SAFETY: by contract the size is not 0. Both objects have at least this many bytes, and
        // the new one is not shared.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(object, moved, layout.size().min(bytes));
                self.dealloc(object, layout);
            }
            moved
        }
    }
}
