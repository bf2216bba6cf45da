//! The heap as a program's global allocator, so that a whole Rust program lives in blocks alone.
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
//! The pool is made at the first allocation. Its own tables, and those of its frames, come from an arena of 1 GiB of address
//! space (`arena`) whenever a slab cannot serve them at once: the pool must not ask itself while it holds its lock.
//!
//! # Fork
//! As with any allocator without handlers for it: a child that is forked while another thread takes a chunk from the kernel must
//! not allocate before it calls exec. What the parent's other threads held stays held in the child.

#![allow(unsafe_code, reason = "is an allocator")]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::arena::Arena;
use super::slab::Slab;
use super::{Heap, HeapStats, Large, class, thread};
use crate::frames::{MmapFrames, PageKind};
use crate::pool::Pool;
use crate::sync::{hold, is_held};

/// The global heap's blocks, which are its slabs: a class that is hardly used takes no more.
pub(super) const BLOCK_BYTES: usize = 64 << 10;

/// A heap with a pool of 64 KiB blocks of its own, that can be a `static`.
#[derive(Debug)]
pub struct GlobalHeap {
    /// The heap's number; 0 while there is none.
    id: AtomicUsize,
    heap: OnceLock<Heap>,
    start: Mutex<()>,
    arena: Arena,
    pages: PageKind,
    large: Large,
}

impl GlobalHeap {
    /// On transparent huge pages; large objects are runs of blocks.
    #[must_use]
    pub const fn new() -> Self {
        Self::with(PageKind::Thp, Large::Runs)
    }

    /// On pages of this kind; large objects as `large` says. With [`Large::Refuse`] a program gets no object of more than a
    /// block, which few survive: the standard library's hash tables and growing vectors are contiguous.
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

    /// The heap, with its pool; none when there was no memory to make it.
    pub fn heap(&self) -> Option<&Heap> {
        self.heap.get().or_else(|| self.start())
    }

    /// What the program holds.
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        self.heap.get().map(Heap::stats).unwrap_or_default()
    }

    #[cold]
    fn start(&self) -> Option<&Heap> {
        hold(|| {
            let _alone = self.start.lock().unwrap_or_else(PoisonError::into_inner);
            if self.heap.get().is_none() {
                let pool = Pool::with_block_bytes(MmapFrames::new(self.pages), BLOCK_BYTES).ok()?;
                let heap = Heap::new(&pool, self.large).ok()?;
                let id = heap.0.id;
                // Nobody else sets it: the lock is ours.
                let _ = self.heap.set(heap);
                self.id.store(id, Ordering::Release);
            }
            self.heap.get()
        })
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, layout: Layout) -> *mut u8 {
        if is_held() {
            return self.arena.alloc(layout);
        }
        let object = self.heap().and_then(|heap| heap.alloc(layout).ok());
        object.map_or(null_mut(), NonNull::as_ptr)
    }

    #[cold]
    #[inline(never)]
    unsafe fn free_slow(&self, object: *mut u8, layout: Layout) {
        if self.arena.contains(object.addr()) {
            // SAFETY: it came from the arena, with this layout.
            return unsafe { self.arena.free(object, layout) };
        }
        if let (Some(heap), Some(object)) = (self.heap.get(), NonNull::new(object)) {
            // SAFETY: what did not come from the arena came from the heap.
            unsafe { heap.free(object, layout) };
        }
    }
}

impl Default for GlobalHeap {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: objects of the heap and pieces of the arena are the caller's alone until they are freed, and fit the layout. Nothing
// here unwinds: what a program may not do ends it.
unsafe impl GlobalAlloc for GlobalHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: what this thread remembers for the number of a heap is a local of it. A number is there only after its heap.
        let local = unsafe { thread::cached(self.id.load(Ordering::Relaxed)).as_ref() };
        let object = local.and_then(|local| local.alloc(class::of_layout(layout)));
        object.map_or_else(|| self.alloc_slow(layout), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let address = object.addr();
        // SAFETY: as in `alloc`.
        let local = unsafe { thread::cached(self.id.load(Ordering::Relaxed)).as_ref() };
        if let Some(local) = local
            && !address.is_multiple_of(BLOCK_BYTES)
            && !cfg!(debug_assertions)
        {
            let slab = Slab::of(address, BLOCK_BYTES);
            // SAFETY: what does not lie at a block's start is a slab's, or the arena's, whose blocks begin with a header that
            // names no owner.
            unsafe {
                if ptr::eq((*slab).local, local) {
                    return local.free(&*slab, ptr::with_exposed_provenance_mut(address));
                }
            }
        }
        // SAFETY: as promised.
        unsafe { self.free_slow(object, layout) };
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: by contract the size is good for the alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        if !self.arena.contains(object.addr())
            && let (Some(heap), Some(place)) = (self.heap.get(), NonNull::new(object))
        {
            // SAFETY: the object is the heap's, since it is not the arena's.
            if unsafe { heap.0.fits_in_place(place, layout, wanted) } {
                return object;
            }
        }
        // SAFETY: by contract the size is not 0; both have so many bytes, and the new one is nobody else's.
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
