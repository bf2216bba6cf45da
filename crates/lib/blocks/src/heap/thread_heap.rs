//! One thread's part of a heap: for each size class a list of free objects, and slabs.
//!
//! ```text
//! free[class]   -> object -> object -> none                    allocation only pops
//! current       the slab of these objects
//! slabs         [ available | available | ... | parked | parked ]       doubly linked
//! remote_slabs  linked list of slabs on which other threads have freed objects
//! ```
//! `refill` fills an empty list. It first drains the queue of remote slabs. Then it takes the freed
//! or uncarved objects of the current slab, of an available slab, or of a new one. A full slab is
//! parked until an eighth of it is free, so that the owner does not process every single free.
//!
//! # Remote frees
//! A thread that frees another thread's object pushes it on the slab's remote list. If that list
//! was empty, the thread also pushes the slab on its owner's queue. The owner takes a remote list
//! only of a slab that it took off the queue, so a slab is queued at most once. A queued slab
//! cannot be freed, since objects on its remote list count as outstanding.

#![allow(unsafe_code, reason = "allocates objects of slabs")]

use core::cell::Cell;
use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::class::{self, CLASSES};
use super::corrupt;
use super::slab::{FreeObject, Slab, SlabState};
use crate::error::Result;
use crate::pool::Pool;

#[derive(Debug)]
pub(super) struct ThreadHeap {
    free: [Cell<*mut FreeObject>; CLASSES],
    /// Bytes in the program's objects. Only the owner writes it; any thread reads it.
    used_bytes: AtomicUsize,
    held_blocks: AtomicUsize,
    pub(super) index: usize,
    pool: Pool,
    /// An empty block kept for the next slab.
    spare: Cell<Option<NonNull<u8>>>,
    slabs: [Slabs; CLASSES],
    remote_slabs: RemoteQueue,
}

/// On its own cache line, since other threads write to it.
#[derive(Debug)]
#[repr(align(128))]
struct RemoteQueue(AtomicPtr<Slab>);

/// The slabs of a class.
#[derive(Debug)]
struct Slabs {
    current: Cell<*const Slab>,
    first: Cell<*const Slab>,
    last: Cell<*const Slab>,
}

impl ThreadHeap {
    pub(super) fn new(pool: Pool, index: usize) -> Self {
        Self {
            free: [const { Cell::new(null_mut()) }; CLASSES],
            used_bytes: AtomicUsize::new(0),
            held_blocks: AtomicUsize::new(0),
            index,
            pool,
            spare: Cell::new(None),
            slabs: [const { Slabs::new() }; CLASSES],
            remote_slabs: RemoteQueue(AtomicPtr::new(null_mut())),
        }
    }

    /// Pops an object of the class off its free list.
    #[inline(always)]
    pub(super) fn alloc(&self, class: usize) -> Option<NonNull<u8>> {
        let list = self.free.get(class)?;
        let object = NonNull::new(list.get())?;
        // SAFETY: a listed object is free, and only this thread uses the list.
        list.set(unsafe { object.as_ref() }.next);
        // SAFETY: the object was on the free list, so it has a `FreeObject`'s size and nothing else
        // uses it.
        unsafe { FreeObject::set_mark(object.as_ptr(), false) };
        self.count(class::object_bytes(class));
        Some(object.cast())
    }

    /// Frees an object of one of this thread's slabs.
    ///
    /// # Safety
    /// This thread owns the slab. The object is an allocated one, and nothing uses it any more.
    #[inline(always)]
    pub(super) unsafe fn free(&self, slab: &Slab, object: *mut u8) {
        self.count(slab.object_bytes().wrapping_neg());
        // SAFETY: the caller vouches for slab and object.
        if unsafe { self.push_freed(slab, object.cast()) } {
            self.handle_countdown(slab);
        }
    }

    /// Puts an object on its slab's free list. Returns whether the slab's countdown reached zero.
    #[inline(always)]
    unsafe fn push_freed(&self, slab: &Slab, object: *mut FreeObject) -> bool {
        // SAFETY: the caller vouches that the object is one of the slab's.
        if slab.is_first_free(object) || unsafe { FreeObject::is_marked(object) } {
            corrupt("an object is freed twice", object.addr());
        }
        // SAFETY: the caller vouches that the object is allocated and unused, and that this thread
        // owns the slab.
        unsafe {
            FreeObject::set_mark(object, true);
            slab.push(object)
        }
    }

    /// Frees an object of another thread's slab.
    ///
    /// # Safety
    /// As for `ThreadHeap::free`, with any owner, whose heap is alive.
    pub(super) unsafe fn free_remote(slab: *const Slab, object: *mut FreeObject) {
        // SAFETY: the object is allocated, so its slab and the slab's owner are alive.
        let (slab, owner) = unsafe { (&*slab, &*(*slab).local) };
        // SAFETY: the caller vouches that the object is allocated and unused.
        unsafe {
            if FreeObject::is_marked(object) {
                corrupt("an object is freed twice", object.addr());
            }
            FreeObject::set_mark(object, true);
            if !slab.push_remote(object) {
                return;
            }
        }
        let mut seen = owner.remote_slabs.0.load(Ordering::Relaxed);
        loop {
            slab.next_remote().set(seen);
            let mine = ptr::from_ref(slab).cast_mut();
            match owner.remote_slabs.0.compare_exchange_weak(seen, mine, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Refills the list of a class and pops an object off it.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub(super) fn refill(&self, class: usize) -> Result<NonNull<u8>> {
        self.drain_remote();
        loop {
            // SAFETY: a slab in `slabs` is owned by this `ThreadHeap` until it frees the slab.
            if let Some(slab) = unsafe { self.slabs[class].current.get().as_ref() } {
                if let Some(list) = slab.take_free_list() {
                    self.free[class].set(list.as_ptr());
                }
                if let Some(object) = self.alloc(class) {
                    return Ok(object);
                }
                self.slabs[class].current.set(ptr::null());
                self.park(slab);
            }
            self.next_slab(class)?;
        }
    }

    /// Makes another slab current: an available one, a new one, or, if memory is exhausted, any
    /// with a free object.
    fn next_slab(&self, class: usize) -> Result<()> {
        let slabs = &self.slabs[class];
        if slabs.take(|slab| slab.state.get() == SlabState::Available) {
            return Ok(());
        }
        match self.spare.take().map_or_else(|| self.take_block(), Ok) {
            Ok(block) => {
                // SAFETY: the block was just allocated, or kept as an unused spare.
                slabs.current.set(unsafe { Slab::make(block, self.pool.block_bytes(), class, self) });
                Ok(())
            }
            Err(error) => slabs.take_any().then_some(()).ok_or(error),
        }
    }

    fn take_block(&self) -> Result<NonNull<u8>> {
        let block = self.pool.alloc()?;
        self.held_blocks.store(self.held_blocks.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(block)
    }

    fn free_block(&self, block: NonNull<u8>) {
        self.held_blocks.store(self.held_blocks.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        // SAFETY: the block came from the pool, and none of its objects is outstanding.
        if unsafe { self.pool.free(block) }.is_err() {
            corrupt("a slab is not a block of the pool", block.addr().get());
        }
    }

    fn park(&self, slab: &Slab) {
        slab.state.set(SlabState::Parked);
        slab.set_countdown(slab.wake_threshold());
        self.slabs[slab.class()].push_back(slab);
    }

    /// Handles a slab whose countdown reached zero: it is empty, or has enough free objects to use
    /// again.
    #[cold]
    #[inline(never)]
    fn handle_countdown(&self, slab: &Slab) {
        if slab.state.get() == SlabState::Current {
            return;
        }
        self.slabs[slab.class()].remove(slab);
        self.list_or_free(slab);
    }

    /// Lists a slab as available, or keeps or frees its block if it is empty. The slab is in no
    /// list.
    fn list_or_free(&self, slab: &Slab) {
        if slab.outstanding() > 0 {
            slab.state.set(SlabState::Available);
            slab.set_countdown(u32::MAX);
            self.slabs[slab.class()].push_front(slab);
            return;
        }
        if let Some(block) = self.spare.replace(Some(slab.block())) {
            self.free_block(block);
        }
    }

    /// Reclaims objects that other threads freed.
    fn drain_remote(&self) {
        if self.remote_slabs.0.load(Ordering::Relaxed).is_null() {
            return;
        }
        let mut next: *const Slab = self.remote_slabs.0.swap(null_mut(), Ordering::Acquire);
        // SAFETY: a queued slab has outstanding objects, so this `ThreadHeap` still owns it.
        while let Some(slab) = unsafe { next.as_ref() } {
            // Read the link first: once the remote list is taken, another thread may queue the slab
            // again.
            next = slab.next_remote().get();
            // SAFETY: this thread took the slab off the queue, so only this thread takes its remote
            // list.
            let (count, is_countdown_over) = unsafe { slab.take_remote() };
            self.count((count as usize * slab.object_bytes()).wrapping_neg());
            if is_countdown_over {
                self.handle_countdown(slab);
            }
        }
    }

    /// Frees all blocks without live objects.
    pub(super) fn flush(&self) {
        self.drain_remote();
        for (list, slabs) in self.free.iter().zip(&self.slabs) {
            // SAFETY: a slab in `slabs` is owned by this `ThreadHeap` until it frees the slab.
            let Some(slab) = (unsafe { slabs.current.replace(ptr::null()).as_ref() }) else { continue };
            let mut object = list.replace(null_mut());
            while !object.is_null() {
                // SAFETY: a listed object is free and counts as outstanding.
                unsafe {
                    let after = (*object).next;
                    slab.push(object);
                    object = after;
                }
            }
            self.list_or_free(slab);
        }
        if let Some(block) = self.spare.take() {
            self.free_block(block);
        }
    }

    /// Frees all blocks, even those with live objects.
    ///
    /// # Safety
    /// Nothing uses an object of this `ThreadHeap`, nor the `ThreadHeap`, any more.
    pub(super) unsafe fn free_all_blocks(&self) {
        for slabs in &self.slabs {
            while slabs.take(|_| true) || !slabs.current.get().is_null() {
                // SAFETY: `take` just made this owned slab current, or it was current before.
                if let Some(slab) = unsafe { slabs.current.replace(ptr::null()).as_ref() } {
                    self.free_block(slab.block());
                }
            }
        }
        if let Some(block) = self.spare.take() {
            self.free_block(block);
        }
    }

    /// Bytes in the program's objects, and blocks held. The bytes may wrap while other threads
    /// count.
    pub(super) fn stats(&self) -> (usize, usize) {
        (self.used_bytes.load(Ordering::Relaxed), self.held_blocks.load(Ordering::Relaxed))
    }

    /// Adds to the byte count, modulo 2^64. No atomic addition: only the owner writes.
    #[inline(always)]
    fn count(&self, bytes: usize) {
        self.used_bytes.store(self.used_bytes.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
    }
}

impl Slabs {
    const fn new() -> Self {
        Self { current: Cell::new(ptr::null()), first: Cell::new(ptr::null()), last: Cell::new(ptr::null()) }
    }

    /// Makes the first slab current, if `is_wanted` accepts it and there is no current slab.
    fn take(&self, is_wanted: impl Fn(&Slab) -> bool) -> bool {
        if !self.current.get().is_null() {
            return false;
        }
        // SAFETY: a listed slab is owned by the list's owner until it frees the slab.
        let Some(slab) = (unsafe { self.first.get().as_ref() }).filter(|slab| is_wanted(slab)) else { return false };
        self.remove(slab);
        self.make_current(slab);
        true
    }

    /// Makes any slab with a free object current.
    fn take_any(&self) -> bool {
        let mut next = self.first.get();
        // SAFETY: a listed slab is owned by the list's owner until it frees the slab.
        while let Some(slab) = unsafe { next.as_ref() } {
            if slab.has_free() {
                self.remove(slab);
                self.make_current(slab);
                return true;
            }
            next = slab.next.get();
        }
        false
    }

    fn make_current(&self, slab: &Slab) {
        slab.state.set(SlabState::Current);
        self.current.set(slab);
    }

    fn push_front(&self, slab: &Slab) {
        self.insert(slab, ptr::null(), self.first.get());
    }

    fn push_back(&self, slab: &Slab) {
        self.insert(slab, self.last.get(), ptr::null());
    }

    fn insert(&self, slab: &Slab, prev: *const Slab, next: *const Slab) {
        slab.prev.set(prev);
        slab.next.set(next);
        self.join(prev, slab, slab, next);
    }

    fn remove(&self, slab: &Slab) {
        let (prev, next) = (slab.prev.get(), slab.next.get());
        self.join(prev, next, prev, next);
    }

    /// Sets `prev.next` to `after` and `next.prev` to `before`. A null `prev` or `next` stands for
    /// the end of the list.
    fn join(&self, prev: *const Slab, after: *const Slab, before: *const Slab, next: *const Slab) {
        // SAFETY: a listed slab is owned by the list's owner until it frees the slab.
        unsafe {
            prev.as_ref().map_or(&self.first, |prev| &prev.next).set(after);
            next.as_ref().map_or(&self.last, |next| &next.prev).set(before);
        }
    }
}
