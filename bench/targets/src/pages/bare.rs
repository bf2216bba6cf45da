//! The bare sides: the few functions of `bare.c`, each of them the system calls that a program would write by hand.
//!
//! A [`Bare`] is memory of one mapping under one of them. Signals come to its handler only while [`Bare::listening`] runs.

#![allow(unsafe_code, reason = "calls C, which protects memory of its own")]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use anyhow::{Context, ensure};
use fieldstone_pages::{Alias, Memory};

const PAGE: usize = 4096;

/// How faults are made and told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// userfaultfd, to a thread.
    Thread = 0,
    /// userfaultfd, by a signal.
    Signal = 1,
    /// userfaultfd, to nobody: `PAGEMAP_SCAN` finds what was written.
    Nobody = 2,
    /// mprotect(2), by a signal.
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
        pub(super) fn bare_open(told: i32, start: *mut u8, bytes: usize) -> i32;
        pub(super) fn bare_listen(uffd: i32, start: *mut u8, bytes: usize, log: *mut u8) -> i32;
        pub(super) fn bare_hush() -> i32;
        pub(super) fn bare_trap(start: *mut u8, futile: i64);
        pub(super) fn bare_serve(uffd: i32) -> i32;
        pub(super) fn bare_dirty(pagemap: i32, start: *mut u8, bytes: usize) -> i64;
        pub(super) fn bare_map2(memory: i32, bytes: usize, order: *const usize, count: usize) -> i32;
    }
}

#[cfg(not(has_c))]
mod ffi {
    //! Nothing calls these: `is_there` is asked first.
    macro_rules! absent {
        ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
            $(pub(super) unsafe fn $name($(_: $type),*) $(-> $result)? { unreachable!("no C compiler was there") })*
        };
    }
    absent! {
        bare_protect(uffd: i32, start: *mut u8, bytes: usize) -> i32;
        bare_unprotect(uffd: i32, start: *mut u8, bytes: usize) -> i32;
        bare_protect_each(uffd: i32, start: *mut u8, order: *const usize, count: usize) -> i32;
        bare_unprotect_each(uffd: i32, start: *mut u8, order: *const usize, count: usize) -> i32;
        bare_guard_each(start: *mut u8, order: *const usize, count: usize) -> i32;
        bare_write_each(start: *mut u8, order: *const usize, count: usize);
        bare_open(told: i32, start: *mut u8, bytes: usize) -> i32;
        bare_listen(uffd: i32, start: *mut u8, bytes: usize, log: *mut u8) -> i32;
        bare_hush() -> i32;
        bare_trap(start: *mut u8, futile: i64);
        bare_serve(uffd: i32) -> i32;
        bare_dirty(pagemap: i32, start: *mut u8, bytes: usize) -> i64;
        bare_map2(memory: i32, bytes: usize, order: *const usize, count: usize) -> i32;
    }
}

/// Whether this program was built with the bare sides.
pub(super) const fn is_there() -> bool {
    cfg!(has_c)
}

/// Memory under bare control.
pub(super) struct Bare {
    memory: Memory,
    uffd: Option<OwnedFd>,
    log: Vec<u8>,
}

impl Bare {
    /// Takes memory, with a log of writes where `logs`.
    pub(super) fn new(memory: Memory, told: Told, logs: bool) -> anyhow::Result<Self> {
        let uffd = if told == Told::Protect {
            None
        } else {
            // SAFETY: the memory is ours, and so long.
            let number = unsafe { ffi::bare_open(told as i32, memory.as_ptr(), memory.bytes()) };
            ensure!(number >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
            // SAFETY: it was opened for us.
            Some(unsafe { OwnedFd::from_raw_fd(number) })
        };
        let log = vec![0; if logs { memory.bytes() / PAGE } else { 0 }];
        let bare = Self { memory, uffd, log };
        if told == Told::Thread {
            // SAFETY: the descriptor is a userfaultfd; the thread ends when it cannot be read any more.
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

    /// Runs `work` with the signals of this memory's faults handled.
    pub(super) fn listening<R>(&mut self, work: impl FnOnce(&Self) -> R) -> R {
        let log = if self.log.is_empty() { null_mut() } else { self.log.as_mut_ptr() };
        // SAFETY: the memory and the log live longer than the handler is installed.
        let listens = unsafe { ffi::bare_listen(self.number(), self.memory.as_ptr(), self.memory.bytes(), log) };
        assert_eq!(listens, 0, "sigaction cannot fail on a signal that can be caught");
        let result = work(self);
        // SAFETY: gives back what was there before.
        assert_eq!(unsafe { ffi::bare_hush() }, 0, "as above");
        result
    }

    pub(super) fn protect_all(&self) {
        // SAFETY: the memory is ours; who writes to it is served, or blocked for ever, as its user wants.
        done(unsafe { ffi::bare_protect(self.number(), self.memory.as_ptr(), self.memory.bytes()) });
    }

    pub(super) fn unprotect_all(&self) {
        // SAFETY: as above.
        done(unsafe { ffi::bare_unprotect(self.number(), self.memory.as_ptr(), self.memory.bytes()) });
    }

    pub(super) fn protect_each(&self, order: &[usize]) {
        check(&self.memory, order);
        // SAFETY: as above; each page lies inside.
        done(unsafe { ffi::bare_protect_each(self.number(), self.memory.as_ptr(), order.as_ptr(), order.len()) });
    }

    pub(super) fn unprotect_each(&self, order: &[usize]) {
        check(&self.memory, order);
        // SAFETY: as above.
        done(unsafe { ffi::bare_unprotect_each(self.number(), self.memory.as_ptr(), order.as_ptr(), order.len()) });
    }

    /// One access to the first page, which is protected: it faults so often in vain, and once more.
    pub(super) fn trap(&self, futile: u32) {
        // SAFETY: inside the memory.
        unsafe { ffi::bare_trap(self.memory.as_ptr(), futile.into()) };
    }

    /// How many pages were written; they are clean then.
    pub(super) fn dirty(&self, pagemap: impl AsFd) -> i64 {
        // SAFETY: the memory is registered for it.
        let pages = unsafe { ffi::bare_dirty(pagemap.as_fd().as_raw_fd(), self.memory.as_ptr(), self.memory.bytes()) };
        assert!(pages >= 0, "PAGEMAP_SCAN: {}", std::io::Error::last_os_error());
        pages
    }

    /// How many pages the log has, which is empty then.
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

/// Writes to pages, in order.
pub(super) fn write_each(memory: &Memory, order: &[usize]) {
    check(memory, order);
    // SAFETY: each page lies inside.
    unsafe { ffi::bare_write_each(memory.as_ptr(), order.as_ptr(), order.len()) };
}

/// Writes to pages of a second view, in order.
pub(super) fn write_each_of(view: &Alias, order: &[usize]) {
    assert!(order.iter().all(|page| (page + 1) * PAGE <= view.bytes()), "pages of the view");
    // SAFETY: each page lies inside.
    unsafe { ffi::bare_write_each(view.as_ptr(), order.as_ptr(), order.len()) };
}

/// Makes pages guards, by a call each.
pub(super) fn guard_each(memory: &Memory, order: &[usize]) {
    check(memory, order);
    // SAFETY: as above; nobody needs what they hold.
    done(unsafe { ffi::bare_guard_each(memory.as_ptr(), order.as_ptr(), order.len()) });
}

/// Maps a file, writes to each page, unmaps it.
pub(super) fn map2(memory: impl AsFd, bytes: usize, order: &[usize]) -> anyhow::Result<()> {
    // SAFETY: a new mapping, which is gone when this returns.
    let mapped = unsafe { ffi::bare_map2(memory.as_fd().as_raw_fd(), bytes, order.as_ptr(), order.len()) };
    (mapped == 0).then_some(()).context("mmap")
}
