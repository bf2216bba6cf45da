//! A thread that keeps a service's descriptors open in a table of its own, whatever the program does to the process's table.
//!
//! ```text
//! thread of the program:  call(number)   -- the number names our file: the usual case, nothing else happens
//!                         else           -- an order by mail --> custodian: call(the same number, in its own table)
//! ```
//! Programs close descriptors that they do not know (`close_range`, `closefrom`, `daemon`) or put other files there (`dup2`).
//! The custodian's table is a copy, so the numbers in it are the same, and a call that fails elsewhere works there.

#![allow(unsafe_code, reason = "runs a call of a thread that waits, in another thread")]

use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use fieldstone_sys::descriptors;

use crate::mail::Mail;
use crate::threads::{is_running, own_number, spawn};

pub(crate) struct Custodian {
    orders: Mail<Order>,
    thread: AtomicU32,
    process: u32,
}

/// A call of a thread that waits for it.
struct Order(*const (dyn Fn() + 'static));

impl Custodian {
    /// Starts one that keeps these descriptors, and marks their files as its own.
    ///
    /// # Errors
    /// As pthread_create(3) and close_range(2).
    pub(crate) fn start(kept: Vec<RawFd>) -> io::Result<&'static Self> {
        let process = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        let this: &'static Self = Box::leak(Box::new(Self { orders: Mail::new(), thread: AtomicU32::new(0), process }));
        let (tell, started) = mpsc::channel();
        spawn("fs-descriptors", move || {
            let held = this.hold(&kept);
            let is_held = held.is_ok();
            if tell.send(held).is_ok() && is_held {
                this.serve();
            }
        })?;
        // It ends: the thread sends, or its end of the channel goes with it.
        started.recv().unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EOWNERDEAD)))?;
        Ok(this)
    }

    fn hold(&self, kept: &[RawFd]) -> io::Result<()> {
        descriptors::keep_only(kept)?;
        let thread = own_number();
        kept.iter().try_for_each(|&fd| descriptors::mark(fd, thread))?;
        self.thread.store(thread, Ordering::Release);
        Ok(())
    }

    fn serve(&self) -> ! {
        loop {
            // SAFETY: the sender has the letter and the call that it names on its stack until the answer.
            let letter = unsafe { &*self.orders.next() };
            // SAFETY: the same.
            unsafe { (*letter.request.0)() };
            letter.give(0);
        }
    }

    /// Whether the calling thread's table has a file of ours at this number. One system call; async-signal-safe.
    #[inline]
    pub(crate) fn is_ours(&self, fd: RawFd) -> bool {
        descriptors::is_marked(fd, self.thread.load(Ordering::Relaxed))
    }

    /// Makes a call in the custodian's table of descriptors, and waits for it. Async-signal-safe if the call is.
    ///
    /// # Errors
    /// As the call; `EOWNERDEAD` if the custodian has ended.
    pub(crate) fn run<R>(&self, call: impl Fn() -> io::Result<R>) -> io::Result<R> {
        let result = Cell::new(None);
        let order = || result.set(Some(call()));
        let order: *const (dyn Fn() + '_) = &raw const order;
        // SAFETY: only the lifetime changes: this thread stays here until the call was made, or nobody is left to make it.
        let order = Order(unsafe { std::mem::transmute::<*const (dyn Fn() + '_), *const (dyn Fn() + 'static)>(order) });
        self.orders.ask(order, || is_running(self.process, self.thread.load(Ordering::Relaxed)));
        result.take().unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EOWNERDEAD)))
    }
}

impl std::fmt::Debug for Custodian {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Custodian").field("thread", &self.thread).finish_non_exhaustive()
    }
}
