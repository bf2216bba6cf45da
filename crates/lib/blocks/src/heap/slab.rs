//! A slab: one block cut into objects of one class.
//!
//! ```text
//! block  | header 128 | rest | object | object | ... | object | not carved    | rest |
//!        ^ address & !(block - 1)    first      carved ^              capacity ^
//! ```
//! Masking an object's address finds the header. Free objects are linked through their first word.
//! Objects are carved a few at a time, so that a fresh slab does not fault in whole. Every object
//! is aligned to the largest power of two that divides the object size.
//!
//! # Concurrency
//! Only the owner accesses the fields before `remote`, without atomics. Any thread pushes objects
//! that it frees on `remote`. A thread that finds `remote` empty writes `next_remote`, before it
//! queues the slab (see `thread_heap`).
//!
//! # Invariant
//! `countdown + rest` objects are outstanding: allocated, on the owner's list for the class, or on
//! `remote`. Carved objects that are not outstanding are on `free`. When `countdown` reaches 0 the
//! owner handles the slab; a free tests nothing else.
//!
//! Source: snmalloc's slab metadata (`needed`), and mimalloc's lazily extended pages
//! (MSR-TR-2019-18, section 2).

#![allow(unsafe_code, reason = "writes links into free objects")]

use core::cell::Cell;
use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use super::class;
use super::thread_heap::ThreadHeap;

pub(super) const HEADER_BYTES: usize = size_of::<Slab>();
/// Bytes of objects that are carved at a time; at least two objects.
const CARVE_BYTES: usize = 4096;
const MARK: usize = 0x5ab5_f7ee_0b1e_c75a;

/// A free object.
#[repr(C)]
#[derive(Debug)]
pub(super) struct FreeObject {
    pub(super) next: *mut FreeObject,
    /// In debug builds: a mark that the object is free.
    mark: usize,
}

impl FreeObject {
    /// In debug builds, marks an object as free or as allocated.
    ///
    /// # Safety
    /// The pointer is that of an object in a slab.
    #[inline(always)]
    pub(super) unsafe fn set_mark(object: *mut Self, is_free: bool) {
        if cfg!(all(debug_assertions, not(miri))) {
            // SAFETY: by contract this is an object, which has at least two words.
            unsafe { (&raw mut (*object).mark).write_volatile(if is_free { MARK ^ object.addr() } else { 0 }) };
        }
    }

    /// Whether the object carries the mark of a free one; always false in release builds.
    ///
    /// # Safety
    /// The pointer is that of an object in a slab.
    #[inline(always)]
    pub(super) unsafe fn is_marked(object: *mut Self) -> bool {
        // SAFETY: by contract this is an object, which has at least two words. Volatile: the
        // program may never have written them.
        cfg!(all(debug_assertions, not(miri)))
            && unsafe { (&raw const (*object).mark).read_volatile() } == MARK ^ object.addr()
    }
}

/// A slab's position in its owner's list for the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlabState {
    /// Its free objects are on the owner's list for the class.
    Current,
    /// At the list's front: it has free objects.
    Available,
    /// At the list's back: it has no free objects, or fewer than [`Slab::wake_threshold`].
    Parked,
}

#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Slab {
    /// The owner. Null in the arena's blocks, which are not slabs.
    pub(super) local: *const ThreadHeap,
    free: Cell<*mut FreeObject>,
    countdown: Cell<u32>,
    rest: Cell<u32>,
    carved: Cell<u32>,
    capacity: u32,
    object_bytes: u32,
    class: u16,
    pub(super) state: Cell<SlabState>,
    pub(super) next: Cell<*const Slab>,
    pub(super) prev: Cell<*const Slab>,
    remote: Remote,
}

/// On its own cache line, since other threads write to it.
#[derive(Debug)]
#[repr(align(64))]
struct Remote {
    list: AtomicPtr<FreeObject>,
    next_remote: Cell<*const Slab>,
}

/// Bytes before the first object of a class.
fn first_bytes(class: usize) -> usize {
    HEADER_BYTES.next_multiple_of(1 << class::object_bytes(class).trailing_zeros())
}

/// Objects of a class in a block.
pub(super) fn capacity(class: usize, block_bytes: usize) -> usize {
    block_bytes.saturating_sub(first_bytes(class)) / class::object_bytes(class)
}

impl Slab {
    /// Makes a block a slab, as its owner's current one.
    ///
    /// # Safety
    /// The caller owns the block, which has `block_bytes` bytes.
    pub(super) unsafe fn make(
        block: NonNull<u8>,
        block_bytes: usize,
        class: usize,
        local: *const ThreadHeap,
    ) -> *const Self {
        // Objects are freed by address: the program's pointer to one need not have provenance for
        // the header.
        block.expose_provenance();
        let slab = Self {
            local,
            free: Cell::new(null_mut()),
            countdown: Cell::new(0),
            rest: Cell::new(0),
            carved: Cell::new(0),
            capacity: narrow(capacity(class, block_bytes)),
            object_bytes: narrow(class::object_bytes(class)),
            class: u16::try_from(class).unwrap_or(u16::MAX),
            state: Cell::new(SlabState::Current),
            next: Cell::new(ptr::null()),
            prev: Cell::new(ptr::null()),
            remote: Remote { list: AtomicPtr::new(null_mut()), next_remote: Cell::new(ptr::null()) },
        };
        let place = block.cast::<Self>();
        // SAFETY: by contract the caller owns the block; it is larger than a header and aligned to
        // its size.
        unsafe { place.write(slab) };
        place.as_ptr()
    }

    /// The slab of an object's address. Valid only if the address is in a slab.
    #[inline(always)]
    pub(super) fn of(address: usize, block_bytes: usize) -> *const Self {
        ptr::with_exposed_provenance(address & !(block_bytes - 1))
    }

    pub(super) fn class(&self) -> usize {
        self.class.into()
    }

    #[inline(always)]
    pub(super) fn object_bytes(&self) -> usize {
        self.object_bytes as usize
    }

    /// The slab's block.
    pub(super) fn block(&self) -> NonNull<u8> {
        let address = ptr::from_ref(self).addr();
        // A pointer from the header's reference would have provenance for the header alone.
        NonNull::new(ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling())
    }

    /// The number of outstanding objects.
    pub(super) fn outstanding(&self) -> u32 {
        self.countdown.get() + self.rest.get()
    }

    pub(super) fn has_free(&self) -> bool {
        self.outstanding() < self.carved.get() || self.carved.get() < self.capacity
    }

    /// Puts an object on the free list. Returns whether the countdown reached zero.
    ///
    /// # Safety
    /// The caller owns the slab, and the object is an outstanding one of it that nothing uses.
    #[inline(always)]
    pub(super) unsafe fn push(&self, object: *mut FreeObject) -> bool {
        // SAFETY: by contract nothing uses the object, so its first word may hold the link.
        unsafe { (*object).next = self.free.get() };
        self.free.set(object);
        let countdown = self.countdown.get().wrapping_sub(1);
        self.countdown.set(countdown);
        countdown == 0
    }

    /// Whether the object is the one freed last in this slab.
    #[inline(always)]
    pub(super) fn is_first_free(&self, object: *mut FreeObject) -> bool {
        self.free.get() == object
    }

    /// Takes the list of free objects, or of newly carved ones. All of them then count as
    /// outstanding.
    pub(super) fn take_free_list(&self) -> Option<NonNull<FreeObject>> {
        let carved = self.carved.get();
        if self.outstanding() == carved {
            let count = (narrow(CARVE_BYTES) / self.object_bytes).max(2).min(self.capacity - carved);
            self.carve(carved, count);
        }
        self.countdown.set(self.carved.get());
        self.rest.set(0);
        NonNull::new(self.free.replace(null_mut()))
    }

    /// Carves `count` objects from number `from` on into the free list, which is empty, in address
    /// order.
    fn carve(&self, from: u32, count: u32) {
        let bytes = self.object_bytes();
        // SAFETY: object `from` is in the block, or `count` is 0 and nothing is written.
        let start = unsafe { self.block().add(first_bytes(self.class()) + from as usize * bytes) };
        let mut next = null_mut::<FreeObject>();
        for at in (0..count as usize).rev() {
            // SAFETY: `from + at` is below the capacity, so the object is in the block; it was
            // never allocated.
            unsafe {
                let object = start.add(at * bytes).cast::<FreeObject>().as_ptr();
                (*object).next = next;
                FreeObject::set_mark(object, true);
                next = object;
            }
        }
        self.free.set(next);
        self.carved.set(from + count);
    }

    /// Starts a countdown of `count` frees, or of all outstanding objects if these are fewer.
    pub(super) fn set_countdown(&self, count: u32) {
        let outstanding = self.outstanding();
        self.countdown.set(count.min(outstanding));
        self.rest.set(outstanding - count.min(outstanding));
    }

    /// The number of frees after which a parked slab is available again.
    pub(super) fn wake_threshold(&self) -> u32 {
        (self.capacity / 8).max(1)
    }

    /// Puts an object on the list of remote frees. Returns whether the list was empty: the caller
    /// then queues the slab.
    ///
    /// # Safety
    /// The object is an outstanding one of the slab, and nothing uses it.
    pub(super) unsafe fn push_remote(&self, object: *mut FreeObject) -> bool {
        let mut seen = self.remote.list.load(Ordering::Relaxed);
        loop {
            // SAFETY: by contract nothing uses the object, so its first word may hold the link.
            unsafe { (*object).next = seen };
            match self.remote.list.compare_exchange_weak(seen, object, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return seen.is_null(),
                Err(now) => seen = now,
            }
        }
    }

    /// Moves the remote frees to the free list. Returns their number, and whether the countdown
    /// reached zero.
    ///
    /// # Safety
    /// The caller owns the slab and took it off the queue, so the remote list is not empty.
    pub(super) unsafe fn take_remote(&self) -> (u32, bool) {
        let first = self.remote.list.swap(null_mut(), Ordering::Acquire);
        let (mut last, mut count) = (first, 1);
        // SAFETY: listed objects are free, and the swap made them this thread's. The list is not
        // empty by contract.
        unsafe {
            while !(*last).next.is_null() {
                last = (*last).next;
                count += 1;
            }
            (*last).next = self.free.replace(first);
        }
        let (countdown, outstanding) = (self.countdown.get(), self.outstanding() - count);
        let is_countdown_over = count >= countdown;
        self.countdown.set(if is_countdown_over { 0 } else { countdown - count });
        self.rest.set(outstanding - self.countdown.get());
        (count, is_countdown_over)
    }

    /// The link to the next slab in the owner's queue.
    pub(super) fn next_remote(&self) -> &Cell<*const Self> {
        &self.remote.next_remote
    }

    /// Whether the address is the start of a carved object.
    pub(super) fn is_object(&self, address: usize) -> bool {
        let first = ptr::from_ref(self).addr() + first_bytes(self.class());
        address >= first
            && (address - first).is_multiple_of(self.object_bytes())
            && (address - first) / self.object_bytes() < self.carved.get() as usize
    }
}

/// Converts a size of at most a block's.
fn narrow(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
