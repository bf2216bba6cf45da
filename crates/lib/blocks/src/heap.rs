//! A general allocator on blocks: malloc and free for nodes, and for whole programs.
//!
//! ```text
//! Heap -> local of this thread -> free list of the class -> object                  small: slabs, one block each
//!                                                        -> run of blocks           large: whole blocks, or refused
//! ```
//! | module | |
//! |---|---|
//! | `class` | sizes, an eighth apart |
//! | `slab` | a block cut into objects of one class |
//! | `local` | what a thread has of a heap: lists, slabs, mail from other threads |
//! | `thread` | which local a thread has |
//! | `global` | [`GlobalHeap`], for `#[global_allocator]` |
//! | `arena` | memory for the pool's own tables in such a program |
//!
//! An object of up to nearly half a block comes from a slab; a larger one is whole blocks. The address tells which:
//! an object of a slab never lies at a block's start, where the slab's header is.
//!
//! Source: Zagieboylo, Suh and Myers, section 3 (jemalloc configured onto fixed-size blocks); the ideas are those of mimalloc and
//! snmalloc. Here a slab is exactly a block, so that node structures need no contiguity beyond one, and a thread that ends
//! leaves its slabs to the next one by number.
//!
//! # Cost
//! Taking and freeing by the thread that took: a few ns, no atomic operation. Freeing an object of another thread: one
//! compare-exchange, on that object's slab. With each heap 8 KiB for its table, 7 KiB for a thread that uses it.
//!
//! # Errors in the program
//! A foreign address, an object that was never handed out, a second free: caught in debug builds. Release builds catch what
//! costs nothing: the second of two frees in a row, foreign blocks and runs. The process is ended.

#![allow(unsafe_code, reason = "hands out raw memory, which only its holder can promise to be out of use")]

mod class;
mod local;
mod slab;
mod thread;

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
use local::Local;
use slab::{Free, Slab};

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::sync::{Arc, AtomicPtr, AtomicUsize, Lock, Ordering, hold, is_held};

#[cfg(feature = "std")]
pub use global::GlobalHeap;

/// What a heap does with objects that are larger than a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Large {
    /// Gives them runs of neighbouring blocks, where there are any.
    #[default]
    Runs,
    /// Refuses them: the program gets along with single blocks.
    Refuse,
}

/// What a heap holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Bytes in objects that the program has, each with what its class adds. What one thread freed of another's is counted until
    /// that one takes it back.
    pub used_bytes: usize,
    /// Bytes in blocks that are slabs or parts of large objects.
    pub held_bytes: usize,
}

/// A general allocator on a pool. A handle: clones are the same heap. When the last one is dropped its slabs go back to the pool;
/// large objects that were not freed do not.
#[derive(Clone)]
pub struct Heap(Arc<Inner>);

struct Inner {
    /// A number that no other heap has or had: a thread remembers what it has of the last one that it used.
    #[cfg(feature = "std")]
    id: usize,
    pool: Pool,
    large: Large,
    /// The largest class of which two objects fit in a block.
    last_class: usize,
    locals: [AtomicPtr<Local>; thread::THREADS],
    /// Held by who uses local 0.
    shared: Lock<()>,
    run_bytes: AtomicUsize,
}

// SAFETY: a local is used by the thread that has its number, or under the lock; the rest is atomic.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Heap {
    /// A heap on `pool`, whose large objects are as `large` says.
    ///
    /// # Errors
    /// [`Error::Table`] without memory for the first records.
    pub fn new(pool: &Pool, large: Large) -> Result<Self> {
        #[cfg(feature = "std")]
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let fits = |&class: &usize| slab::capacity(class, pool.block_bytes()) >= 2;
        let heap = Self(Arc::new(Inner {
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

    /// Takes memory for a layout; a size of 0 gets an object like any other. Its contents are not defined.
    ///
    /// # Errors
    /// [`Error::Refused`] for more than a block where the heap refuses that, and as [`Pool::alloc`] and [`Pool::alloc_run`].
    #[inline]
    pub fn alloc(&self, layout: Layout) -> Result<NonNull<u8>> {
        let class = class::of_layout(layout);
        self.cached().and_then(|local| local.alloc(class)).map_or_else(|| self.alloc_slow(layout, class), Ok)
    }

    /// Takes memory of zeros for a layout.
    ///
    /// # Errors
    /// As [`Heap::alloc`].
    pub fn alloc_zeroed(&self, layout: Layout) -> Result<NonNull<u8>> {
        let object = self.alloc(layout)?;
        // SAFETY: the object has at least the layout's size.
        unsafe { object.write_bytes(0, layout.size()) };
        Ok(object)
    }

    /// Gives memory back. Any thread may.
    ///
    /// # Safety
    /// It came from this heap with this layout, and nobody uses it any more.
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
            // SAFETY: an object that does not lie at a block's start is a slab's, whose header is there while the object is out.
            unsafe {
                if ptr::eq((*slab).local, local) {
                    return local.free(&*slab, ptr::with_exposed_provenance_mut(address));
                }
                return self.free_remote(slab, address);
            }
        }
        // SAFETY: as promised.
        unsafe { self.free_slow(address, layout) };
    }

    /// Moves memory to another size, in place where the class or the number of blocks stays, or a run gets shorter. The contents
    /// up to the smaller size stay.
    ///
    /// # Errors
    /// As [`Heap::alloc`]; the object is as it was.
    ///
    /// # Safety
    /// As [`Heap::free`]; `bytes`, rounded up to the alignment, is at most `isize::MAX`.
    pub unsafe fn realloc(&self, object: NonNull<u8>, layout: Layout, bytes: usize) -> Result<NonNull<u8>> {
        // SAFETY: the alignment is a layout's, the size is as promised.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: as promised.
        if unsafe { self.0.fits_in_place(object, layout, wanted) } {
            return Ok(object);
        }
        let moved = self.alloc(wanted)?;
        // SAFETY: both have at least so many bytes, and the new one is nobody else's.
        unsafe {
            ptr::copy_nonoverlapping(object.as_ptr(), moved.as_ptr(), layout.size().min(bytes));
            self.free(object, layout);
        }
        Ok(moved)
    }

    /// What the heap holds. Exact only when no other thread uses it.
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        let runs = self.0.run_bytes.load(Ordering::Relaxed);
        let (used, blocks) = self
            .0
            .made()
            .map(Local::stats)
            .fold((runs, 0), |(used, blocks), (more_used, more)| (used.wrapping_add(more_used), blocks + more));
        HeapStats { used_bytes: used, held_bytes: runs + blocks * self.0.pool.block_bytes() }
    }

    /// Gives blocks without an object of the program back to the pool, from this thread's slabs and from those that no
    /// thread has; the bytes that were.
    pub fn collect(&self) -> usize {
        let before = self.stats().held_bytes;
        let own = self.with_local(|local| {
            local.flush();
            Ok(local.index)
        });
        if own != Ok(thread::SHARED) {
            self.0.shared.with(|()| self.0.local(thread::SHARED).map(Local::flush)).ok();
        }
        for local in self.0.made() {
            if thread::claim(local.index) {
                local.flush();
                thread::release(local.index);
            }
        }
        before.saturating_sub(self.stats().held_bytes)
    }

    #[inline(always)]
    fn cached(&self) -> Option<&Local> {
        #[cfg(feature = "std")]
        // SAFETY: what this thread remembers for the number of a heap is a local of it, which lives as long as the heap.
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
            self.with_local(|local| local.alloc(class).map_or_else(|| local.refill(class), Ok))
        };
        take().or_else(|error| match error {
            Error::Refused { .. } => Err(error),
            // What threads left that have ended may serve; without a block it was not given back for nothing.
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
            // SAFETY: it is a run, as nothing else lies at a block's start.
            return unsafe { self.0.free_run(object, self.0.run_blocks(layout)) };
        }
        if cfg!(debug_assertions) {
            self.check(address);
        } else if !self.0.pool.has_chunk(address) {
            corrupt("what is freed is no object of this heap", address);
        }
        let slab = Slab::of(address, block_bytes);
        // SAFETY: the object is a slab's, and out; its owner lives as long as the heap.
        let owner = unsafe { (*slab).local };
        // Under a lock of ours, that of the shared local may be the one: the remote list asks for none.
        let done = !is_held()
            && self.with_local(|local| {
                if !ptr::eq(local, owner) {
                    return Ok(false);
                }
                // SAFETY: the slab is this thread's, or number 0's while we have the lock.
                unsafe { local.free(&*slab, object) };
                Ok(true)
            }) == Ok(true);
        if !done {
            // SAFETY: as above.
            unsafe { self.free_remote(slab, address) };
        }
    }

    /// Frees an object of another thread's slab.
    ///
    /// # Safety
    /// As [`Heap::free`]; the object lies in the slab.
    #[inline(never)]
    unsafe fn free_remote(&self, slab: *const Slab, address: usize) {
        if !self.0.pool.has_chunk(address) {
            corrupt("what is freed is no object of this heap", address);
        }
        // SAFETY: as promised.
        unsafe { Local::free_remote(slab, ptr::with_exposed_provenance_mut::<Free>(address)) };
    }

    /// Runs `f` on what this thread has of the heap.
    fn with_local<R>(&self, f: impl FnOnce(&Local) -> Result<R>) -> Result<R> {
        #[cfg(feature = "std")]
        {
            let index = hold(thread::index);
            if index != thread::SHARED {
                let local = self.0.local(index)?;
                thread::cache(self.0.id, local);
                return f(local);
            }
        }
        self.0.shared.with(|()| self.0.local(thread::SHARED).and_then(f))
    }

    /// Ends the process if an address is no object of a slab of this pool: for debug builds, since it divides.
    fn check(&self, address: usize) {
        let block_bytes = self.0.pool.block_bytes();
        let slab = Slab::of(address, block_bytes);
        // SAFETY: the pool says that the block is its own and in use; it is a slab unless the program mixes heaps and arrays.
        if !self.0.pool.is_in_use(address & !(block_bytes - 1)) || !unsafe { &*slab }.is_object(address) {
            corrupt("what is freed is no object of this heap", address);
        }
    }
}

impl Inner {
    /// The local of a number, made where there is none. Only who has the number asks.
    fn local(&self, index: usize) -> Result<&Local> {
        let mut local = self.locals[index].load(Ordering::Acquire);
        if local.is_null() {
            // In a program whose allocator this is, the record must not come from the slabs that it is to record.
            // SAFETY: the layout is not of size zero.
            local = hold(|| unsafe { alloc::alloc::alloc(Layout::new::<Local>()) }).cast();
            if local.is_null() {
                return Err(Error::Table { bytes: size_of::<Local>() });
            }
            // SAFETY: it was allocated for this.
            unsafe { local.write(Local::new(self.pool.clone(), index)) };
            self.locals[index].store(local, Ordering::Release);
        }
        // SAFETY: a local lives as long as the heap.
        Ok(unsafe { &*local })
    }

    fn made(&self) -> impl Iterator<Item = &Local> {
        // SAFETY: as in `local`. What others' threads do with theirs, the callers leave alone or claim.
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
        // A larger alignment is found in a longer run, whose ends go back.
        let spare = (layout.align() / block_bytes).saturating_sub(1);
        let start = self.pool.alloc_run(blocks + spare)?;
        let before = start.addr().get().next_multiple_of(layout.align()) - start.addr().get();
        // SAFETY: a run that begins anywhere and is longer by all but one of an alignment's blocks has an aligned one in it.
        let found = unsafe { start.add(before) };
        // SAFETY: both ends are in the run, and nobody has them.
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
        // SAFETY: as promised by who frees it.
        if unsafe { self.pool.free_run(start, blocks) }.is_err() {
            corrupt("a large object is foreign, or freed twice", start.addr().get());
        }
        self.run_bytes.fetch_sub(blocks * self.pool.block_bytes(), Ordering::Relaxed);
    }

    /// Whether an object serves another size where it lies. A run's tail is cut off.
    unsafe fn fits_in_place(&self, object: NonNull<u8>, layout: Layout, wanted: Layout) -> bool {
        let classes = (class::of_layout(layout), class::of_layout(wanted));
        if classes.0 <= self.last_class || classes.1 <= self.last_class {
            return classes.0 == classes.1;
        }
        let (has, needs) = (self.run_blocks(layout), self.run_blocks(wanted));
        if needs < has {
            let tail = object.as_ptr().map_addr(|address| address + needs * self.pool.block_bytes());
            // SAFETY: the tail lies in the run, and the program gives it up.
            unsafe { self.free_run(tail, has - needs) };
        }
        needs <= has
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for local in &self.locals {
            let local = local.load(Ordering::Acquire);
            if !local.is_null() {
                // SAFETY: no handle is left, so nobody uses the heap's objects; the record has a box's layout and allocator.
                unsafe {
                    (*local).give_all();
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

/// The program has freed what it may not: ends the process, since what it would do next is not known.
#[cold]
#[inline(never)]
fn corrupt(what: &str, address: usize) -> ! {
    /// A second panic, while one is under way, ends the process; also where there is no `std` to do it.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            panic!("the process ends here");
        }
    }
    let _end = End;
    panic!("the heap is corrupt: {what} ({address:#x})")
}
