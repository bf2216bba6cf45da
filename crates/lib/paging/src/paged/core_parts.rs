//! What the handle of paged memory and its thread share, and the order in which it ends.

#![allow(unsafe_code, reason = "owns mappings, and boxes that a pager refers to")]

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::paging::PagingCounters;
use rustix::fd::OwnedFd;
use rustix::mm::Advice;

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::kernel::{self, PAGE};
use crate::paged::stats::{PagedStats, StoreStats};
use crate::paged::thread::without_signals;
use crate::pager::{DecideLoss, Pager};
use crate::store::Store;

/// The shared parts. The fields are dropped in this order: the pager refers to all others.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) pager: Pager,
    pub(super) mapping: Mapping,
    pub(super) counters: &'static PagingCounters,
    pub(super) has_kernel_faults: bool,
    pub(super) process: ProcessMark,
    /// Readable when the thread must end.
    pub(super) stop: OwnedFd,
    pub(super) _arena: OwnArena,
    pub(super) stores: Vec<Shared<dyn Store>>,
    pub(super) _on_loss: Shared<DecideLoss>,
}

impl Core {
    /// Runs an operation on the pager, with signals blocked: a handler that accesses the memory would
    /// wait for a lock of its own thread. A panic of a store ends the process: the page that it had in
    /// hand would be lost.
    ///
    /// # Errors
    /// In a forked child, whose userfaultfd controls the memory of its parent.
    pub(super) fn control<R>(&self, operation: impl FnOnce(&Pager) -> R) -> Result<R> {
        if self.process.is_forked() {
            return Err(Error::Forked);
        }
        Ok(without_signals(|| abort_on_panic(|| operation(&self.pager))))
    }

    /// Drops the contents of pages.
    pub(super) fn discard(&self, pages: Range<usize>) -> Result<()> {
        self.control(|pager| {
            let result = self.mapping.advise(&pages, Advice::LinuxDontNeed);
            // The service thread has read the kernel's message with this lock, and frees stored pages.
            drop(pager.work.acquire());
            result
        })?
    }

    pub(super) fn stats(&self) -> PagedStats {
        let counters = self.counters;
        let bytes = |pages: u64| pages * PAGE as u64;
        let stores = self.stores.iter().enumerate().map(|(index, store)| StoreStats {
            name: store.get().name(),
            bytes: store.get().bytes(),
            loaded: counters.loaded[index].load(Relaxed),
            load_ns: counters.load_ns[index].load(Relaxed),
        });
        PagedStats {
            bytes: self.mapping.range().len() as u64,
            resident: bytes(counters.resident.load(Relaxed)),
            resident_peak: bytes(counters.peak_resident.load(Relaxed)),
            resident_limit: bytes(counters.bound.load(Relaxed)),
            evicted: counters.evicted.load(Relaxed),
            evicted_zero: counters.evicted_zero.load(Relaxed),
            faults: counters.faults.load(Relaxed),
            first_accesses: counters.first_accesses.load(Relaxed),
            unmovable: counters.unmovable.load(Relaxed),
            refused: counters.refused.load(Relaxed),
            lost: counters.lost.load(Relaxed),
            has_kernel_faults: self.has_kernel_faults,
            stores: stores.collect(),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.process.is_forked() {
            // A child does not have the memory, and may have mapped other memory there.
            self.mapping.0 = 0..0;
            return;
        }
        // The unmap of registered memory would wait until a thread reads the kernel's message. A
        // forked child may have the descriptor, too, so its close does not unregister the memory.
        let _ = self.pager.fd.unregister(self.mapping.range());
        self.pager.unregister_own();
    }
}

/// Runs `f`. A panic in it ends the process, after its message.
pub(super) fn abort_on_panic<R>(f: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        print_error("the process ends: a store or the handler of losses has panicked");
        std::process::abort()
    })
}

/// Prints a line to standard error without its lock: the owner of that one may wait for a fault.
pub(super) fn print_error(message: impl fmt::Display) {
    let line = format!("fieldstone-paging: {message}\n");
    // SAFETY: the kernel reads the bytes of the line.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Memory without contents.
#[derive(Debug)]
pub(super) struct Mapping(Range<usize>);

impl Mapping {
    pub(super) fn new(bytes: usize) -> Result<Self> {
        let start = kernel::map(bytes).map_err(|errno| Error::Map { bytes, errno })?;
        Ok(Self(start..start + bytes))
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.0.clone()
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        let start = std::ptr::with_exposed_provenance_mut(self.0.start);
        // SAFETY: the kernel maps no memory at address 0 without MAP_FIXED.
        unsafe { NonNull::new_unchecked(start) }
    }

    /// Makes madvise(2) for a part of the memory.
    pub(super) fn advise(&self, range: &Range<usize>, advice: Advice) -> Result<()> {
        debug_assert!(self.0.start <= range.start && range.end <= self.0.end);
        // SAFETY: the range is part of this mapping, and the advice leaves it mapped with valid words.
        unsafe { rustix::mm::madvise(std::ptr::with_exposed_provenance_mut(range.start), range.len(), advice) }
            .map_err(|errno| Error::Map { bytes: range.len(), errno: errno.raw_os_error() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            // SAFETY: borrows of the memory end before its owner, `Paged`, is dropped.
            unsafe { kernel::unmap(self.range()) };
        }
    }
}

/// An arena in its own memory.
#[derive(Debug)]
pub(super) struct OwnArena(&'static Arena);

impl OwnArena {
    pub(super) fn reserve(bytes: usize) -> Result<Self> {
        Arena::reserve(bytes)?.settle().map(Self).ok_or(Error::Full { bytes })
    }

    /// The arena. What uses it must not outlive this value.
    pub(super) const fn get(&self) -> &'static Arena {
        self.0
    }
}

impl Drop for OwnArena {
    fn drop(&mut self) {
        // SAFETY: the pager and its counters were dropped before, by the order of fields in `Core`.
        unsafe { self.0.release() };
    }
}

/// A boxed value that a pager refers to.
pub(super) struct Shared<T: ?Sized>(NonNull<T>);

// SAFETY: the value is owned, so it can be sent where `T` can.
unsafe impl<T: Send + ?Sized> Send for Shared<T> {}
// SAFETY: a reference to this gives a reference to `T` only.
unsafe impl<T: Sync + ?Sized> Sync for Shared<T> {}

impl<T: ?Sized> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.0.as_ptr().cast::<()>()).finish()
    }
}

impl<T: ?Sized> Shared<T> {
    pub(super) fn new(value: Box<T>) -> Self {
        Self(NonNull::from(Box::leak(value)))
    }

    /// The value. What uses it must not outlive this value.
    pub(super) fn get(&self) -> &'static T
    where
        T: 'static,
    {
        // SAFETY: the box is freed by `drop`, after the pager that has the reference.
        unsafe { self.0.as_ref() }
    }
}

impl<T: ?Sized> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: `new` took it from a box, and the pager with the reference is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A word that fork(2) clears in the child.
#[derive(Debug)]
pub(super) struct ProcessMark(&'static AtomicU32);

impl ProcessMark {
    pub(super) fn new(arena: &'static Arena) -> Result<Self> {
        let full = Error::Full { bytes: arena.range().len() };
        // SAFETY: zeros are a valid atomic number.
        let word: &'static AtomicU32 = unsafe { arena.place() }.ok_or(full)?;
        let page = std::ptr::from_ref(word).cast_mut().cast();
        // SAFETY: `place` gives whole pages, and only this word is on its page.
        unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) }
            .map_err(|errno| Error::Map { bytes: PAGE, errno: errno.raw_os_error() })?;
        word.store(1, Relaxed);
        Ok(Self(word))
    }

    /// Whether this process is a child of the one that made the mark.
    pub(super) fn is_forked(&self) -> bool {
        self.0.load(Relaxed) == 0
    }
}
