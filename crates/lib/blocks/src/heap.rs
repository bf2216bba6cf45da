//! A general allocator on blocks: `malloc` and `free` for one data structure or a whole program.
//!
//! ```text
//! Heap -> this thread's ThreadHeap -> free list of the class -> object      small: slabs, one block each
//!                                  -> run of blocks                       large: whole blocks, or refused
//! ```
//! | module | |
//! |---|---|
//! | `class` | size classes, eight per doubling |
//! | `slab` | a block cut into objects of one class |
//! | `thread_heap` | one thread's lists, slabs and queue of remote frees |
//! | `thread` | the small number that selects a thread's `ThreadHeap` |
//! | `global` | [`GlobalHeap`], for `#[global_allocator]` |
//! | `allocator` | a heap as the allocator of one collection (`allocator-api2`) |
//! | `arena` | memory for the pool's own tables in such a program |
//!
//! An object of up to nearly half a block comes from a slab; a larger one is whole blocks. The
//! address distinguishes them: the slab's header is at the block's start, and no object of a slab
//! does.
//!
//! Source: Zagieboylo, Suh and Myers, section 3 (jemalloc configured onto fixed-size blocks); the
//! design follows mimalloc and snmalloc. A slab is exactly one block, so data structures of nodes
//! need no larger contiguous memory. When a thread ends, the next thread with its number inherits
//! its slabs.
//!
//! # Cost
//! Allocating, and freeing by the thread that allocated, take a few ns and no atomic operation.
//! Freeing another thread's object takes one compare-exchange on its slab. A heap takes 8 KiB for
//! its table, and 7 KiB for each thread that uses it.
//!
//! # Errors in the program
//! Debug builds detect a foreign address, an object that was never allocated, and a double free.
//! Release builds detect what costs nothing: the second of two consecutive frees of an object,
//! foreign blocks and runs. Each ends the process.

#![allow(unsafe_code, reason = "frees raw memory, which only its holder knows to be unused")]

mod class;
mod slab;
mod thread;
mod thread_heap;

#[cfg(feature = "allocator-api2")]
mod allocator;
#[cfg(feature = "std")]
mod arena;
#[cfg(feature = "std")]
mod global;

use alloc::boxed::Box;
use core::alloc::Layout;
use core::fmt;
use core::ptr::{self, NonNull, null_mut};

use class::CLASSES;
use slab::{FreeObject, Slab};
use thread_heap::ThreadHeap;

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::sync::{Arc, AtomicPtr, AtomicUsize, Lock, Ordering, enter_internals, is_in_internals};

#[cfg(feature = "std")]
pub use global::GlobalHeap;

/// How a heap treats objects larger than a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Large {
    /// Allocates runs of adjacent blocks, where there are any.
    #[default]
    Runs,
    /// Refuses them, for programs that use single blocks only.
    Refuse,
}

/// What a heap holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Bytes in the program's objects, each rounded up to its class. An object that another thread
    /// frees counts until its owner reclaims it.
    pub used_bytes: usize,
    /// Bytes in blocks that are slabs or belong to large objects.
    pub held_bytes: usize,
}

/// A general allocator on a pool. Clones are handles of the same heap. Dropping the last handle
/// frees the heap's slabs, but not large objects that are still allocated.
#[derive(Clone)]
pub struct Heap(Arc<HeapState>);

struct HeapState {
    /// A number unique to this heap. Each thread caches its `ThreadHeap` of the last heap it used
    /// under this number.
    #[cfg(feature = "std")]
    id: usize,
    pool: Pool,
    large: Large,
    /// The largest class with at least two objects in a block.
    last_class: usize,
    locals: [AtomicPtr<ThreadHeap>; thread::THREADS],
    /// The lock of the shared `ThreadHeap`, number 0.
    shared: Lock<()>,
    run_bytes: AtomicUsize,
}

// SAFETY: a `ThreadHeap` is used only by the thread with its number, or under the lock; the other
// fields are atomic.
unsafe impl Send for HeapState {}
// SAFETY: a `ThreadHeap` is used only by the thread with its number, or under the lock; the other
// fields are atomic.
unsafe impl Sync for HeapState {}

impl Heap {
    /// Creates a heap on `pool`.
    ///
    /// # Errors
    /// [`Error::Table`] when there is no memory for the first records.
    pub fn new(pool: &Pool, large: Large) -> Result<Self> {
        #[cfg(feature = "std")]
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let fits = |&class: &usize| slab::capacity(class, pool.block_bytes()) >= 2;
        let heap = Self(Arc::new(HeapState {
            #[cfg(feature = "std")]
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            pool: pool.clone(),
            large,
            last_class: (0..CLASSES).rev().find(fits).unwrap_or(0),
            locals: [const { AtomicPtr::new(null_mut()) }; thread::THREADS],
            shared: Lock::new(()),
            run_bytes: AtomicUsize::new(0),
        }));
        heap.0.local(thread::SHARED)?;
        Ok(heap)
    }

    /// The pool that the heap's blocks come from.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Allocates memory for a layout; a size of 0 gets a real object. Its contents are undefined.
    ///
    /// # Errors
    /// [`Error::Refused`] for more than a block with [`Large::Refuse`]; else as [`Pool::alloc`] and
    /// [`Pool::alloc_run`].
    #[inline]
    pub fn alloc(&self, layout: Layout) -> Result<NonNull<u8>> {
        let class = class::of_layout(layout);
        self.cached().and_then(|local| local.alloc(class)).map_or_else(|| self.alloc_slow(layout, class), Ok)
    }

    /// Allocates zeroed memory for a layout.
    ///
    /// # Errors
    /// As [`Heap::alloc`].
    pub fn alloc_zeroed(&self, layout: Layout) -> Result<NonNull<u8>> {
        let object = self.alloc(layout)?;
        // SAFETY: the object has at least the layout's size.
        unsafe { object.write_bytes(0, layout.size()) };
        Ok(object)
    }

    /// Frees memory, on any thread.
    ///
    /// # Safety
    /// The object came from this heap with this layout, and nothing uses it any more.
    #[inline]
    pub unsafe fn free(&self, object: NonNull<u8>, layout: Layout) {
        let address = object.addr().get();
        let block_bytes = self.0.pool.block_bytes();
        if let Some(local) = self.cached()
            && !address.is_multiple_of(block_bytes)
        {
            if cfg!(debug_assertions) {
                self.check(address);
            }
            let slab = Slab::of(address, block_bytes);
            // SAFETY: an object that is not at a block's start is in a slab, whose header is valid
            // while the object is allocated.
            unsafe {
                if ptr::eq((*slab).local, local) {
                    return local.free(&*slab, ptr::with_exposed_provenance_mut(address));
                }
                return self.free_remote(slab, address);
            }
        }
        // SAFETY: the caller vouches for the object and its layout.
        unsafe { self.free_slow(address, layout) };
    }

    /// Resizes memory. The object stays in place if its class or number of blocks stays, or if a
    /// run gets shorter. The contents up to the smaller size stay.
    ///
    /// # Errors
    /// As [`Heap::alloc`]; the object is as it was.
    ///
    /// # Safety
    /// As for [`Heap::free`]. `bytes`, rounded up to the alignment, is at most `isize::MAX`.
    pub unsafe fn realloc(&self, object: NonNull<u8>, layout: Layout, bytes: usize) -> Result<NonNull<u8>> {
        // SAFETY: the alignment comes from a layout, and the caller vouches for the size.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: the caller vouches for the object and its layout.
        if unsafe { self.0.fits_in_place(object, layout, wanted) } {
            return Ok(object);
        }
        let moved = self.alloc(wanted)?;
        // SAFETY: both objects have at least this many bytes, and the new one is not shared.
        unsafe {
            ptr::copy_nonoverlapping(object.as_ptr(), moved.as_ptr(), layout.size().min(bytes));
            self.free(object, layout);
        }
        Ok(moved)
    }

    /// Reports what the heap holds. Exact only while no other thread uses it.
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        let runs = self.0.run_bytes.load(Ordering::Relaxed);
        let (used, blocks) = self
            .0
            .thread_heaps()
            .map(ThreadHeap::stats)
            .fold((runs, 0), |(used, blocks), (more_used, more)| (used.wrapping_add(more_used), blocks + more));
        HeapStats { used_bytes: used, held_bytes: runs + blocks * self.0.pool.block_bytes() }
    }

    /// Frees blocks without live objects to the pool, from this thread's slabs and those of ended
    /// threads. Returns their bytes.
    pub fn collect(&self) -> usize {
        let before = self.stats().held_bytes;
        let own = self.with_thread_heap(|local| {
            local.flush();
            Ok(local.index)
        });
        if own != Ok(thread::SHARED) {
            self.0.shared.with(|()| self.0.local(thread::SHARED).map(ThreadHeap::flush)).ok();
        }
        for local in self.0.thread_heaps() {
            if thread::claim(local.index) {
                local.flush();
                thread::release(local.index);
            }
        }
        before.saturating_sub(self.stats().held_bytes)
    }

    #[inline(always)]
    fn cached(&self) -> Option<&ThreadHeap> {
        #[cfg(feature = "std")]
        // SAFETY: the pointer cached under a heap's number is a `ThreadHeap` of it, which lives as
        // long as the heap.
        return unsafe { thread::cached(self.0.id).as_ref() };
        #[cfg(not(feature = "std"))]
        None
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, layout: Layout, class: usize) -> Result<NonNull<u8>> {
        let take = || {
            if class > self.0.last_class {
                return self.0.alloc_run(layout);
            }
            self.with_thread_heap(|local| local.alloc(class).map_or_else(|| local.refill(class), Ok))
        };
        take().or_else(|error| match error {
            Error::Refused { .. } => Err(error),
            // Reclaim blocks that ended threads left, then retry.
            _ => {
                if self.collect() > 0 {
                    take()
                } else {
                    Err(error)
                }
            }
        })
    }

    #[cold]
    #[inline(never)]
    unsafe fn free_slow(&self, address: usize, layout: Layout) {
        let block_bytes = self.0.pool.block_bytes();
        let object = ptr::with_exposed_provenance_mut::<u8>(address);
        if address.is_multiple_of(block_bytes) {
            // SAFETY: only a run begins at a block's start, and the caller vouches for the layout.
            return unsafe { self.0.free_run(object, self.0.run_blocks(layout)) };
        }
        if cfg!(debug_assertions) {
            self.check(address);
        } else if !self.0.pool.has_chunk(address) {
            corrupt("the freed address is not an object of this heap", address);
        }
        let slab = Slab::of(address, block_bytes);
        // SAFETY: the object is an allocated one of a slab, whose header is valid; its owner lives
        // as long as the heap.
        let owner = unsafe { (*slab).local };
        // This thread may hold the lock of the shared heap already; the remote list needs no lock.
        let done = !is_in_internals()
            && self.with_thread_heap(|local| {
                if !ptr::eq(local, owner) {
                    return Ok(false);
                }
                // SAFETY: `with_thread_heap` gives exclusive use of `local`, which owns the slab.
                unsafe { local.free(&*slab, object) };
                Ok(true)
            }) == Ok(true);
        if !done {
            // SAFETY: the object is allocated and is in the slab, whose owner lives as long as
            // the heap.
            unsafe { self.free_remote(slab, address) };
        }
    }

    /// Frees an object of another thread's slab.
    ///
    /// # Safety
    /// As for [`Heap::free`]; the object is in the slab.
    #[inline(never)]
    unsafe fn free_remote(&self, slab: *const Slab, address: usize) {
        if !self.0.pool.has_chunk(address) {
            corrupt("the freed address is not an object of this heap", address);
        }
        // SAFETY: the caller vouches that the object is allocated and is in the slab.
        unsafe { ThreadHeap::free_remote(slab, ptr::with_exposed_provenance_mut::<FreeObject>(address)) };
    }

    /// Runs `f` on this thread's part of the heap.
    fn with_thread_heap<R>(&self, f: impl FnOnce(&ThreadHeap) -> Result<R>) -> Result<R> {
        #[cfg(feature = "std")]
        {
            let index = enter_internals(thread::index);
            if index != thread::SHARED {
                let local = self.0.local(index)?;
                thread::cache(self.0.id, local);
                return f(local);
            }
        }
        self.0.shared.with(|()| self.0.local(thread::SHARED).and_then(f))
    }

    /// Ends the process unless `address` is an object of a slab of this pool. For debug builds: it
    /// needs a division.
    fn check(&self, address: usize) {
        let block_bytes = self.0.pool.block_bytes();
        let slab = Slab::of(address, block_bytes);
        // SAFETY: the pool reports the block as its own and in use. It is a slab unless the program
        // mixes heaps and arrays.
        if !self.0.pool.is_in_use(address & !(block_bytes - 1)) || !unsafe { &*slab }.is_object(address) {
            corrupt("the freed address is not an object of this heap", address);
        }
    }
}

impl HeapState {
    /// Returns the `ThreadHeap` of a number, and creates it if needed. Only the number's holder
    /// calls this.
    fn local(&self, index: usize) -> Result<&ThreadHeap> {
        let mut local = self.locals[index].load(Ordering::Acquire);
        if local.is_null() {
            // If this heap is the global allocator, the record must not come from the slabs that it
            // describes. SAFETY: the layout is not of size zero.
            local = enter_internals(|| unsafe { alloc::alloc::alloc(Layout::new::<ThreadHeap>()) }).cast();
            if local.is_null() {
                return Err(Error::Table { bytes: size_of::<ThreadHeap>() });
            }
            // SAFETY: the memory was just allocated with this type's layout.
            unsafe { local.write(ThreadHeap::new(self.pool.clone(), index)) };
            self.locals[index].store(local, Ordering::Release);
        }
        // SAFETY: a `ThreadHeap` is freed only with the heap.
        Ok(unsafe { &*local })
    }

    fn thread_heaps(&self) -> impl Iterator<Item = &ThreadHeap> {
        // SAFETY: a `ThreadHeap` is freed only with the heap. Callers use only atomics of other
        // threads' heaps, or claim the number.
        self.locals.iter().filter_map(|local| unsafe { local.load(Ordering::Acquire).as_ref() })
    }

    fn run_blocks(&self, layout: Layout) -> usize {
        layout.size().div_ceil(self.pool.block_bytes()).max(1)
    }

    fn alloc_run(&self, layout: Layout) -> Result<NonNull<u8>> {
        let block_bytes = self.pool.block_bytes();
        let blocks = self.run_blocks(layout);
        if self.large == Large::Refuse && (blocks > 1 || layout.align() > block_bytes) {
            return Err(Error::Refused { bytes: layout.size(), largest_bytes: block_bytes });
        }
        // A larger alignment is found in a longer run, whose ends are freed.
        let spare = (layout.align() / block_bytes).saturating_sub(1);
        let start = self.pool.alloc_run(blocks + spare)?;
        let before = start.addr().get().next_multiple_of(layout.align()) - start.addr().get();
        // SAFETY: the run has enough spare blocks to contain an aligned start, whatever its own
        // start is.
        let found = unsafe { start.add(before) };
        // SAFETY: both ends are in the run, and nothing uses them.
        unsafe {
            self.pool.free_run(start, before / block_bytes)?;
            self.pool.free_run(found.add(blocks * block_bytes), spare - before / block_bytes)?;
        }
        found.expose_provenance();
        self.run_bytes.fetch_add(blocks * block_bytes, Ordering::Relaxed);
        Ok(found)
    }

    unsafe fn free_run(&self, start: *mut u8, blocks: usize) {
        let Some(start) = NonNull::new(start) else { return };
        // SAFETY: the caller vouches that these blocks are allocated and unused.
        if unsafe { self.pool.free_run(start, blocks) }.is_err() {
            corrupt("a large object is foreign, or freed twice", start.addr().get());
        }
        self.run_bytes.fetch_sub(blocks * self.pool.block_bytes(), Ordering::Relaxed);
    }

    /// Whether an object can keep its place at another size. Frees the tail of a run that gets
    /// shorter.
    unsafe fn fits_in_place(&self, object: NonNull<u8>, layout: Layout, wanted: Layout) -> bool {
        let classes = (class::of_layout(layout), class::of_layout(wanted));
        if classes.0 <= self.last_class || classes.1 <= self.last_class {
            return classes.0 == classes.1;
        }
        let (has, needs) = (self.run_blocks(layout), self.run_blocks(wanted));
        if needs < has {
            let tail = object.as_ptr().map_addr(|address| address + needs * self.pool.block_bytes());
            // SAFETY: the tail is in the run, and the caller gives up the bytes beyond the new
            // size.
            unsafe { self.free_run(tail, has - needs) };
        }
        needs <= has
    }
}

impl Drop for HeapState {
    fn drop(&mut self) {
        for local in &self.locals {
            let local = local.load(Ordering::Acquire);
            if !local.is_null() {
                // SAFETY: no handle is left, so nothing uses the heap's objects; the record has a
                // box's layout and allocator.
                unsafe {
                    (*local).free_all_blocks();
                    drop(Box::from_raw(local));
                }
            }
        }
    }
}

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("large", &self.0.large).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Ends the process after an invalid free, since its memory may be corrupt.
#[cold]
#[inline(never)]
fn corrupt(what: &str, address: usize) -> ! {
    /// A panic during a panic aborts the process, with and without `std`.
    struct AbortOnDrop;
    impl Drop for AbortOnDrop {
        fn drop(&mut self) {
            panic!("the process ends here");
        }
    }
    let _abort = AbortOnDrop;
    panic!("the heap is corrupt: {what} ({address:#x})")
}
