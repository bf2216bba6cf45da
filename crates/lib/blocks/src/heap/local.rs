//! What one thread has of a heap: a list of free objects and slabs for each class.
//!
//! ```text
//! free[class]   -> object -> object -> none                    allocating pops, nothing else
//! current       the slab that these objects are of
//! slabs         [ available | available | ... | parked | parked ]       doubly linked
//! mail          slabs on which other threads have freed something, as one list
//! ```
//! A list that is empty is refilled (`refill`): the mail is read first, then the current slab gives what came back or what it
//! has not carved yet, then an available slab, then a new one. A slab that is used up is parked until an eighth of it is free:
//! fewer would mean a visit for each.
//!
//! # Mail
//! Who frees an object of another thread pushes it on its slab's remote list; who finds that list empty mails the slab. The owner
//! takes a remote list only of a slab that it took out of the mail, so that a slab is in the mail once at most; and it cannot be
//! given back meanwhile, since what lies on its remote list counts as out.

#![allow(unsafe_code, reason = "hands out objects of slabs")]

use core::cell::Cell;
use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::class::{self, CLASSES};
use super::corrupt;
use super::slab::{Free, Slab, State};
use crate::error::Result;
use crate::pool::Pool;

#[derive(Debug)]
pub(super) struct Local {
    free: [Cell<*mut Free>; CLASSES],
    /// Bytes in objects that the program has. Written by the owner alone, read by all.
    used_bytes: AtomicUsize,
    held_blocks: AtomicUsize,
    pub(super) index: usize,
    pool: Pool,
    /// An empty block, kept.
    spare: Cell<Option<NonNull<u8>>>,
    slabs: [Slabs; CLASSES],
    mail: Mail,
}

/// On a cache line of its own: other threads write here.
#[derive(Debug)]
#[repr(align(128))]
struct Mail(AtomicPtr<Slab>);

/// The slabs of a class.
#[derive(Debug)]
struct Slabs {
    current: Cell<*const Slab>,
    first: Cell<*const Slab>,
    last: Cell<*const Slab>,
}

impl Local {
    pub(super) fn new(pool: Pool, index: usize) -> Self {
        Self {
            free: [const { Cell::new(null_mut()) }; CLASSES],
            used_bytes: AtomicUsize::new(0),
            held_blocks: AtomicUsize::new(0),
            index,
            pool,
            spare: Cell::new(None),
            slabs: [const { Slabs::new() }; CLASSES],
            mail: Mail(AtomicPtr::new(null_mut())),
        }
    }

    /// Takes an object of the class off its list, if there is one.
    #[inline(always)]
    pub(super) fn alloc(&self, class: usize) -> Option<NonNull<u8>> {
        let list = self.free.get(class)?;
        let object = NonNull::new(list.get())?;
        // SAFETY: what is on the list is free, and only this thread has the list.
        list.set(unsafe { object.as_ref() }.next);
        // SAFETY: as above.
        unsafe { Free::set_mark(object.as_ptr(), false) };
        self.count(class::object_bytes(class));
        Some(object.cast())
    }

    /// Frees an object of one of this thread's slabs.
    ///
    /// # Safety
    /// The slab is this thread's, and the object is one that the program has and gives up.
    #[inline(always)]
    pub(super) unsafe fn free(&self, slab: &Slab, object: *mut u8) {
        self.count(slab.object_bytes().wrapping_neg());
        // SAFETY: as promised.
        if unsafe { self.take_back(slab, object.cast()) } {
            self.look_at(slab);
        }
    }

    /// Puts an object back on its slab; whether the slab wants to be looked at.
    #[inline(always)]
    unsafe fn take_back(&self, slab: &Slab, object: *mut Free) -> bool {
        // SAFETY: the object is one of the slab's.
        if slab.is_first_free(object) || unsafe { Free::is_marked(object) } {
            corrupt("an object is freed twice", object.addr());
        }
        // SAFETY: it is one that is out, as promised.
        unsafe {
            Free::set_mark(object, true);
            slab.push(object)
        }
    }

    /// Frees an object of another thread's slab.
    ///
    /// # Safety
    /// As [`Local::free`], whoever owns the slab; its owner is a local of a heap that lives.
    pub(super) unsafe fn free_remote(slab: *const Slab, object: *mut Free) {
        // SAFETY: the object is out, so its slab and the slab's owner are there.
        let (slab, owner) = unsafe { (&*slab, &*(*slab).local) };
        // SAFETY: the object is the program's, which gives it up.
        unsafe {
            if Free::is_marked(object) {
                corrupt("an object is freed twice", object.addr());
            }
            Free::set_mark(object, true);
            if !slab.push_remote(object) {
                return;
            }
        }
        let mut seen = owner.mail.0.load(Ordering::Relaxed);
        loop {
            slab.mail_next().set(seen);
            let mine = ptr::from_ref(slab).cast_mut();
            match owner.mail.0.compare_exchange_weak(seen, mine, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Refills the list of a class and takes an object off it.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub(super) fn refill(&self, class: usize) -> Result<NonNull<u8>> {
        self.read_mail();
        loop {
            // SAFETY: the slabs that we list are ours until we give them back.
            if let Some(slab) = unsafe { self.slabs[class].current.get().as_ref() } {
                if let Some(list) = slab.grant() {
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

    /// Makes another slab the current one: an available one, a new one, or, when memory is used up, any that has a free object.
    fn next_slab(&self, class: usize) -> Result<()> {
        let slabs = &self.slabs[class];
        if slabs.take(|slab| slab.state.get() == State::Available) {
            return Ok(());
        }
        match self.spare.take().map_or_else(|| self.take_block(), Ok) {
            Ok(block) => {
                // SAFETY: the block is ours and nobody uses it.
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

    fn give_block(&self, block: NonNull<u8>) {
        self.held_blocks.store(self.held_blocks.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        // SAFETY: the block came from the pool, and no object of it is out.
        if unsafe { self.pool.free(block) }.is_err() {
            corrupt("the pool does not know the slab", block.addr().get());
        }
    }

    fn park(&self, slab: &Slab) {
        slab.state.set(State::Parked);
        slab.watch(slab.wake_after());
        self.slabs[slab.class()].push_back(slab);
    }

    /// A slab's count has run down: it is empty, or worth a visit again.
    #[cold]
    #[inline(never)]
    fn look_at(&self, slab: &Slab) {
        if slab.state.get() == State::Current {
            return;
        }
        self.slabs[slab.class()].remove(slab);
        self.shelve(slab);
    }

    /// Puts a slab that is in no list where it belongs.
    fn shelve(&self, slab: &Slab) {
        if slab.out() > 0 {
            slab.state.set(State::Available);
            slab.watch(u32::MAX);
            self.slabs[slab.class()].push_front(slab);
            return;
        }
        if let Some(block) = self.spare.replace(Some(slab.block())) {
            self.give_block(block);
        }
    }

    /// Takes back what other threads freed.
    fn read_mail(&self) {
        if self.mail.0.load(Ordering::Relaxed).is_null() {
            return;
        }
        let mut next: *const Slab = self.mail.0.swap(null_mut(), Ordering::Acquire);
        // SAFETY: a slab in the mail has something out, so it is ours still.
        while let Some(slab) = unsafe { next.as_ref() } {
            // Once its list is taken, the slab may be mailed again.
            next = slab.mail_next().get();
            // SAFETY: only who takes the slab out of the mail takes its remote list, and that is us.
            let (count, is_run_down) = unsafe { slab.take_remote() };
            self.count((count as usize * slab.object_bytes()).wrapping_neg());
            if is_run_down {
                self.look_at(slab);
            }
        }
    }

    /// Gives back all blocks that no object of the program lies in.
    pub(super) fn flush(&self) {
        self.read_mail();
        for (list, slabs) in self.free.iter().zip(&self.slabs) {
            // SAFETY: the slabs that we list are ours until we give them back.
            let Some(slab) = (unsafe { slabs.current.replace(ptr::null()).as_ref() }) else { continue };
            let mut object = list.replace(null_mut());
            while !object.is_null() {
                // SAFETY: what is on the list is free and counts as out.
                unsafe {
                    let after = (*object).next;
                    slab.push(object);
                    object = after;
                }
            }
            self.shelve(slab);
        }
        if let Some(block) = self.spare.take() {
            self.give_block(block);
        }
    }

    /// Gives back all blocks, whatever lies in them.
    ///
    /// # Safety
    /// Nobody uses an object of this local, nor the local, any more.
    pub(super) unsafe fn give_all(&self) {
        for slabs in &self.slabs {
            while slabs.take(|_| true) || !slabs.current.get().is_null() {
                // SAFETY: the slab is ours, and was just made the current one or was it before.
                if let Some(slab) = unsafe { slabs.current.replace(ptr::null()).as_ref() } {
                    self.give_block(slab.block());
                }
            }
        }
        if let Some(block) = self.spare.take() {
            self.give_block(block);
        }
    }

    /// Bytes in objects that the program has, which wraps while other threads count, and blocks that are held.
    pub(super) fn stats(&self) -> (usize, usize) {
        (self.used_bytes.load(Ordering::Relaxed), self.held_blocks.load(Ordering::Relaxed))
    }

    /// Counts bytes; a negative number as its complement. No atomic addition: only the owner writes.
    #[inline(always)]
    fn count(&self, bytes: usize) {
        self.used_bytes.store(self.used_bytes.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
    }
}

impl Slabs {
    const fn new() -> Self {
        Self { current: Cell::new(ptr::null()), first: Cell::new(ptr::null()), last: Cell::new(ptr::null()) }
    }

    /// Makes the first slab the current one, if it is as wanted.
    fn take(&self, is_wanted: impl Fn(&Slab) -> bool) -> bool {
        if !self.current.get().is_null() {
            return false;
        }
        // SAFETY: listed slabs are the owner's until it gives them back.
        let Some(slab) = (unsafe { self.first.get().as_ref() }).filter(|slab| is_wanted(slab)) else { return false };
        self.remove(slab);
        self.make_current(slab);
        true
    }

    /// Makes any slab with a free object the current one.
    fn take_any(&self) -> bool {
        let mut next = self.first.get();
        // SAFETY: as in `take`.
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
        slab.state.set(State::Current);
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

    /// Makes `after` what follows `prev`, and `before` what goes before `next`; at an end, the first or last of all.
    fn join(&self, prev: *const Slab, after: *const Slab, before: *const Slab, next: *const Slab) {
        // SAFETY: listed slabs are the owner's until it gives them back.
        unsafe {
            prev.as_ref().map_or(&self.first, |prev| &prev.next).set(after);
            next.as_ref().map_or(&self.last, |next| &next.prev).set(before);
        }
    }
}
