//! The Rust interface of `bare.c`: the system calls that a program would write by hand.
//!
//! A [`Bare`] is a memory with one of the mechanisms. Its signal handler is installed only during
//! [`Bare::with_handler`].

#![allow(unsafe_code, reason = "calls C, which protects memory of its own")]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use anyhow::{Context, ensure};
use fieldstone_pages::{Alias, Memory};

const PAGE: usize = 4096;

/// How faults are caused and delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultDelivery {
    /// userfaultfd, delivered to a thread.
    Thread = 0,
    /// userfaultfd, delivered as a signal.
    Signal = 1,
    /// userfaultfd without delivery: `PAGEMAP_SCAN` finds the written pages.
    None = 2,
    /// mprotect(2), delivered as a signal.
    Protect = 3,
}

#[cfg(has_c)]
mod ffi {
    unsafe extern "C" {
        pub(super) fn bare_protect(uffd: i32, start: *mut u8, bytes: usize) -> i32;
        pub(super) fn bare_unprotect(uffd: i32, start: *mut u8, bytes: usize) -> i32;
        pub(super) fn bare_protect_each(uffd: i32, start: *mut u8, order: *const usize, count: usize) -> i32;
        pub(super) fn bare_unprotect_each(uffd: i32, start: *mut u8, order: *const usize, count: usize) -> i32;
        pub(super) fn bare_guard_each(start: *mut u8, order: *const usize, count: usize) -> i32;
        pub(super) fn bare_write_each(start: *mut u8, order: *const usize, count: usize);
        pub(super) fn bare_open(delivery: i32, start: *mut u8, bytes: usize) -> i32;
        pub(super) fn bare_listen(uffd: i32, start: *mut u8, bytes: usize, log: *mut u8) -> i32;
        pub(super) fn bare_unlisten() -> i32;
        pub(super) fn bare_trap(start: *mut u8, futile: i64);
        pub(super) fn bare_serve(uffd: i32) -> i32;
        pub(super) fn bare_dirty(pagemap: i32, start: *mut u8, bytes: usize) -> i64;
        pub(super) fn bare_map2(memory: i32, bytes: usize, order: *const usize, count: usize) -> i32;
    }
}

#[cfg(not(has_c))]
mod ffi {
    //! Never called: callers check `is_available` first.
    macro_rules! absent {
        ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
            $(pub(super) unsafe fn $name($(_: $type),*) $(-> $result)? { unreachable!("no C compiler was found") })*
        };
    }
    absent! {
        bare_protect(uffd: i32, start: *mut u8, bytes: usize) -> i32;
        bare_unprotect(uffd: i32, start: *mut u8, bytes: usize) -> i32;
        bare_protect_each(uffd: i32, start: *mut u8, order: *const usize, count: usize) -> i32;
        bare_unprotect_each(uffd: i32, start: *mut u8, order: *const usize, count: usize) -> i32;
        bare_guard_each(start: *mut u8, order: *const usize, count: usize) -> i32;
        bare_write_each(start: *mut u8, order: *const usize, count: usize);
        bare_open(delivery: i32, start: *mut u8, bytes: usize) -> i32;
        bare_listen(uffd: i32, start: *mut u8, bytes: usize, log: *mut u8) -> i32;
        bare_unlisten() -> i32;
        bare_trap(start: *mut u8, futile: i64);
        bare_serve(uffd: i32) -> i32;
        bare_dirty(pagemap: i32, start: *mut u8, bytes: usize) -> i64;
        bare_map2(memory: i32, bytes: usize, order: *const usize, count: usize) -> i32;
    }
}

/// Whether this program was built with `bare.c`.
pub(super) const fn is_available() -> bool {
    cfg!(has_c)
}

/// A memory that is managed by `bare.c`.
pub(super) struct Bare {
    memory: Memory,
    uffd: Option<OwnedFd>,
    log: Vec<u8>,
}

impl Bare {
    /// Takes the memory; with a log of written pages if `logs`.
    pub(super) fn new(memory: Memory, delivery: FaultDelivery, logs: bool) -> anyhow::Result<Self> {
        let uffd = if delivery == FaultDelivery::Protect {
            None
        } else {
            // SAFETY: `memory` owns a mapping of this address and length.
            let number = unsafe { ffi::bare_open(delivery as i32, memory.as_ptr(), memory.bytes()) };
            ensure!(number >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
            // SAFETY: `bare_open` returned a new descriptor, which nothing else owns.
            Some(unsafe { OwnedFd::from_raw_fd(number) })
        };
        let log = vec![0; if logs { memory.bytes() / PAGE } else { 0 }];
        let bare = Self { memory, uffd, log };
        if delivery == FaultDelivery::Thread {
            // SAFETY: the number is an open userfaultfd; the thread ends when reading it fails.
            ensure!(unsafe { ffi::bare_serve(bare.number()) } == 0, "no thread could be started");
        }
        Ok(bare)
    }

    fn number(&self) -> i32 {
        self.uffd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Runs `work` while the handler for this memory's fault signals is installed.
    pub(super) fn with_handler<R>(&mut self, work: impl FnOnce(&Self) -> R) -> R {
        let log = if self.log.is_empty() { null_mut() } else { self.log.as_mut_ptr() };
        // SAFETY: `self` owns the memory and the log, and the handler is removed before this
        // function returns.
        let listens = unsafe { ffi::bare_listen(self.number(), self.memory.as_ptr(), self.memory.bytes(), log) };
        assert_eq!(listens, 0, "sigaction cannot fail on a signal that can be caught");
        let result = work(self);
        // SAFETY: restores the handlers that `bare_listen` saved above.
        assert_eq!(unsafe { ffi::bare_unlisten() }, 0, "sigaction cannot fail on a signal that can be caught");
        result
    }

    pub(super) fn protect_all(&self) {
        // SAFETY: `self` owns the memory. A later write to it faults and waits for the handler, as
        // the caller intends.
        done(unsafe { ffi::bare_protect(self.number(), self.memory.as_ptr(), self.memory.bytes()) });
    }

    pub(super) fn unprotect_all(&self) {
        // SAFETY: `self` owns the memory, and unprotecting changes no contents.
        done(unsafe { ffi::bare_unprotect(self.number(), self.memory.as_ptr(), self.memory.bytes()) });
    }

    pub(super) fn protect_each(&self, order: &[usize]) {
        check(&self.memory, order);
        // SAFETY: `self` owns the memory, and `check` verified that each page is inside it.
        done(unsafe { ffi::bare_protect_each(self.number(), self.memory.as_ptr(), order.as_ptr(), order.len()) });
    }

    pub(super) fn unprotect_each(&self, order: &[usize]) {
        check(&self.memory, order);
        // SAFETY: `self` owns the memory, and `check` verified that each page is inside it.
        done(unsafe { ffi::bare_unprotect_each(self.number(), self.memory.as_ptr(), order.as_ptr(), order.len()) });
    }

    /// Accesses the protected first page: `futile` unresolved faults, and one that is resolved.
    pub(super) fn trap(&self, futile: u32) {
        // SAFETY: writes the first byte of the memory, which `self` owns.
        unsafe { ffi::bare_trap(self.memory.as_ptr(), futile.into()) };
    }

    /// Returns the number of written pages, and makes them clean.
    pub(super) fn dirty(&self, pagemap: impl AsFd) -> i64 {
        // SAFETY: `self` owns the memory, and `bare_open` registered it for `PAGEMAP_SCAN`.
        let pages = unsafe { ffi::bare_dirty(pagemap.as_fd().as_raw_fd(), self.memory.as_ptr(), self.memory.bytes()) };
        assert!(pages >= 0, "PAGEMAP_SCAN: {}", std::io::Error::last_os_error());
        pages
    }

    /// Returns the number of logged pages, and clears the log.
    pub(super) fn logged(&mut self) -> i64 {
        let mut pages = 0;
        for page in &mut self.log {
            pages += i64::from(std::mem::take(page));
        }
        pages
    }
}

fn done(result: i32) {
    assert_eq!(result, 0, "a bare call failed: {}", std::io::Error::last_os_error());
}

fn check(memory: &Memory, order: &[usize]) {
    assert!(order.iter().all(|page| (page + 1) * PAGE <= memory.bytes()), "pages of the memory");
}

/// Writes to the pages in order.
pub(super) fn write_each(memory: &Memory, order: &[usize]) {
    check(memory, order);
    // SAFETY: `memory` is a live mapping, and `check` verified that each page is inside it.
    unsafe { ffi::bare_write_each(memory.as_ptr(), order.as_ptr(), order.len()) };
}

/// Writes to the pages of a second view in order.
pub(super) fn write_each_of(view: &Alias, order: &[usize]) {
    assert!(order.iter().all(|page| (page + 1) * PAGE <= view.bytes()), "pages of the view");
    // SAFETY: `view` is a live mapping, and the assertion verified that each page is inside it.
    unsafe { ffi::bare_write_each(view.as_ptr(), order.as_ptr(), order.len()) };
}

/// Makes each page a guard, one call per page.
pub(super) fn guard_each(memory: &Memory, order: &[usize]) {
    check(memory, order);
    // SAFETY: `memory` is a live mapping, `check` verified the pages, and no caller needs their
    // contents.
    done(unsafe { ffi::bare_guard_each(memory.as_ptr(), order.as_ptr(), order.len()) });
}

/// Maps the file, writes to each page, and unmaps it.
pub(super) fn map2(memory: impl AsFd, bytes: usize, order: &[usize]) -> anyhow::Result<()> {
    // SAFETY: the function creates a mapping and removes it before it returns.
    let mapped = unsafe { ffi::bare_map2(memory.as_fd().as_raw_fd(), bytes, order.as_ptr(), order.len()) };
    (mapped == 0).then_some(()).context("mmap")
}
