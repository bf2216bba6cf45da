//! A slab: one block cut into objects of one class.
//!
//! ```text
//! block  | header 128 | rest | object | object | ... | object | never touched | rest |
//!        ^ address & !(block - 1)    first      carved ^        up to capacity ^
//! ```
//! The header is found by masking an object's address. Free objects are linked through their first word; objects are carved a
//! few at a time, so that a fresh slab is not touched whole. The first one lies at a multiple of the power of two that divides
//! the object size, and so do all.
//!
//! # Who touches what
//! The owner alone: all fields but the last two, without atomics. Any thread: `remote`, on which it pushes what it frees, and
//! `mail_next`, which belongs to who found `remote` empty, until the owner takes it (see `local`).
//!
//! # Invariant
//! `left + rest` objects are out: with the program, on the owner's list for its class, or on `remote`. What is carved and not
//! out is on `free`. When `left` falls to 0 the owner looks at the slab; nothing else is tested when an object is freed.
//! Source: snmalloc's slab metadata (`needed`), mimalloc's lazily extended pages (MSR-TR-2019-18, section 2).

#![allow(unsafe_code, reason = "writes links into free objects")]

use core::cell::Cell;
use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use super::class;
use super::local::Local;

pub(super) const HEADER_BYTES: usize = size_of::<Slab>();
/// Objects are carved up to so many bytes at a time, two at least.
const CARVE_BYTES: usize = 4096;
const MARK: usize = 0x5ab5_f7ee_0b1e_c75a;

/// A free object.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Free {
    pub(super) next: *mut Free,
    /// In debug builds: that the object is free.
    mark: usize,
}

impl Free {
    /// Marks an object as free, or as the program's; in release builds nothing.
    ///
    /// # Safety
    /// It is an object of ours.
    #[inline(always)]
    pub(super) unsafe fn set_mark(object: *mut Self, is_free: bool) {
        if cfg!(all(debug_assertions, not(miri))) {
            // SAFETY: an object has two words.
            unsafe { (&raw mut (*object).mark).write_volatile(if is_free { MARK ^ object.addr() } else { 0 }) };
        }
    }

    /// Whether the object is free already, as far as that is known.
    ///
    /// # Safety
    /// It is an object of ours.
    #[inline(always)]
    pub(super) unsafe fn is_marked(object: *mut Self) -> bool {
        // SAFETY: an object has two words. Volatile, since the program may have left bytes there that it never wrote.
        cfg!(all(debug_assertions, not(miri)))
            && unsafe { (&raw const (*object).mark).read_volatile() } == MARK ^ object.addr()
    }
}

/// Where a slab stands in its owner's list for its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its free objects are on the owner's list for the class.
    Current,
    /// In front: it has free objects.
    Available,
    /// At the back: it has none, or not enough to be worth a visit.
    Parked,
}

#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Slab {
    /// The owner. Null in memory that is no slab: what the arena gave.
    pub(super) local: *const Local,
    free: Cell<*mut Free>,
    left: Cell<u32>,
    rest: Cell<u32>,
    carved: Cell<u32>,
    capacity: u32,
    object_bytes: u32,
    class: u16,
    pub(super) state: Cell<State>,
    pub(super) next: Cell<*const Slab>,
    pub(super) prev: Cell<*const Slab>,
    remote: Remote,
}

/// On a cache line of its own: other threads write here.
#[derive(Debug)]
#[repr(align(64))]
struct Remote {
    list: AtomicPtr<Free>,
    mail_next: Cell<*const Slab>,
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
    /// The block is the caller's, and has this size.
    pub(super) unsafe fn make(
        block: NonNull<u8>,
        block_bytes: usize,
        class: usize,
        local: *const Local,
    ) -> *const Self {
        // Objects come back as plain addresses: a program's pointer to one need not be good for the header.
        block.expose_provenance();
        let slab = Self {
            local,
            free: Cell::new(null_mut()),
            left: Cell::new(0),
            rest: Cell::new(0),
            carved: Cell::new(0),
            capacity: narrow(capacity(class, block_bytes)),
            object_bytes: narrow(class::object_bytes(class)),
            class: u16::try_from(class).unwrap_or(u16::MAX),
            state: Cell::new(State::Current),
            next: Cell::new(ptr::null()),
            prev: Cell::new(ptr::null()),
            remote: Remote { list: AtomicPtr::new(null_mut()), mail_next: Cell::new(ptr::null()) },
        };
        let place = block.cast::<Self>();
        // SAFETY: the block is the caller's, larger than a header, and aligned to its size.
        unsafe { place.write(slab) };
        place.as_ptr()
    }

    /// The slab that an object lies in, if it does.
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

    /// The block that the slab is.
    pub(super) fn block(&self) -> NonNull<u8> {
        let address = ptr::from_ref(self).addr();
        // The header's own reference is good for the header alone.
        NonNull::new(ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling())
    }

    /// Objects that are out.
    pub(super) fn out(&self) -> u32 {
        self.left.get() + self.rest.get()
    }

    pub(super) fn has_free(&self) -> bool {
        self.out() < self.carved.get() || self.carved.get() < self.capacity
    }

    /// Puts an object on the free list. True when the owner has to look at the slab.
    ///
    /// # Safety
    /// The caller is the owner, and the object is one of the slab's that are out.
    #[inline(always)]
    pub(super) unsafe fn push(&self, object: *mut Free) -> bool {
        // SAFETY: the object is out, so its words are ours from here on.
        unsafe { (*object).next = self.free.get() };
        self.free.set(object);
        let left = self.left.get().wrapping_sub(1);
        self.left.set(left);
        left == 0
    }

    /// Whether the object was the last to be freed here.
    #[inline(always)]
    pub(super) fn is_first_free(&self, object: *mut Free) -> bool {
        self.free.get() == object
    }

    /// Takes what is free as a list, all of it or what is newly carved; all of it counts as out.
    pub(super) fn grant(&self) -> Option<NonNull<Free>> {
        let carved = self.carved.get();
        if self.out() == carved {
            let count = (narrow(CARVE_BYTES) / self.object_bytes).max(2).min(self.capacity - carved);
            self.carve(carved, count);
        }
        self.left.set(self.carved.get());
        self.rest.set(0);
        NonNull::new(self.free.replace(null_mut()))
    }

    /// Links `count` objects from number `from` on, in address order. The free list is empty.
    fn carve(&self, from: u32, count: u32) {
        let bytes = self.object_bytes();
        // SAFETY: object `from` lies in the block, or `count` is 0 and nothing is written.
        let start = unsafe { self.block().add(first_bytes(self.class()) + from as usize * bytes) };
        let mut next = null_mut::<Free>();
        for at in (0..count as usize).rev() {
            // SAFETY: `from + at` is below the capacity, so the object lies in the block; no one has had it yet.
            unsafe {
                let object = start.add(at * bytes).cast::<Free>().as_ptr();
                (*object).next = next;
                Free::set_mark(object, true);
                next = object;
            }
        }
        self.free.set(next);
        self.carved.set(from + count);
    }

    /// Asks to be looked at after `count` frees, or when the last object is back.
    pub(super) fn watch(&self, count: u32) {
        let out = self.out();
        self.left.set(count.min(out));
        self.rest.set(out - count.min(out));
    }

    /// How many frees make a parked slab worth a visit.
    pub(super) fn wake_after(&self) -> u32 {
        (self.capacity / 8).max(1)
    }

    /// Puts an object on the list of what other threads freed. True when that was empty: the caller then mails the slab.
    ///
    /// # Safety
    /// The object is one of the slab's that are out.
    pub(super) unsafe fn push_remote(&self, object: *mut Free) -> bool {
        let mut seen = self.remote.list.load(Ordering::Relaxed);
        loop {
            // SAFETY: the object is out, and the caller gives it up.
            unsafe { (*object).next = seen };
            match self.remote.list.compare_exchange_weak(seen, object, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return seen.is_null(),
                Err(now) => seen = now,
            }
        }
    }

    /// Puts what other threads freed on the free list; how many that were, and whether the owner has to look at the slab.
    ///
    /// # Safety
    /// The caller is the owner, and has taken the slab out of its mail, so that there is something.
    pub(super) unsafe fn take_remote(&self) -> (u32, bool) {
        let first = self.remote.list.swap(null_mut(), Ordering::Acquire);
        let (mut last, mut count) = (first, 1);
        // SAFETY: what is on the list is free, and the owner's from here on; its links are only read, but for the last.
        unsafe {
            while !(*last).next.is_null() {
                last = (*last).next;
                count += 1;
            }
            (*last).next = self.free.replace(first);
        }
        let (left, out) = (self.left.get(), self.out() - count);
        let is_run_down = count >= left;
        self.left.set(if is_run_down { 0 } else { left - count });
        self.rest.set(out - self.left.get());
        (count, is_run_down)
    }

    /// The next slab in the owner's mail.
    pub(super) fn mail_next(&self) -> &Cell<*const Self> {
        &self.remote.mail_next
    }

    /// Whether an address is that of an object that was carved.
    pub(super) fn is_object(&self, address: usize) -> bool {
        let first = ptr::from_ref(self).addr() + first_bytes(self.class());
        address >= first
            && (address - first).is_multiple_of(self.object_bytes())
            && (address - first) / self.object_bytes() < self.carved.get() as usize
    }
}

/// What is at most a block's size fits.
fn narrow(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
