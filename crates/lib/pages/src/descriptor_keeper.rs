//! A thread with a private table of a service's descriptors, independent of what the program does
//! to the process's table.
//!
//! ```text
//! thread of the program:  call(number)  if the number still names the library's file (usual)
//!                         otherwise     the keeper calls, with the same number in its own table
//! ```
//! Programs close descriptors that they do not know (`close_range`, `closefrom`, `daemon`) or
//! replace them by other files (`dup2`). The keeper's table is a copy, so the numbers in it are the
//! same, and a call that fails elsewhere works there.

#![allow(unsafe_code, reason = "runs a waiting thread's call in another thread")]

use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use fieldstone_sys::descriptors;

use crate::request_queue::RequestQueue;
use crate::threads::{current_thread, is_running, spawn};

pub(crate) struct DescriptorKeeper {
    requests: RequestQueue<KeeperCall>,
    thread: AtomicU32,
    process: u32,
}

/// A call, requested by a thread that waits for it.
struct KeeperCall(*const (dyn Fn() + 'static));

impl DescriptorKeeper {
    /// Starts a keeper of these descriptors, and marks their files as its own.
    ///
    /// # Errors
    /// As pthread_create(3) and close_range(2).
    pub(crate) fn start(kept: Vec<RawFd>) -> io::Result<&'static Self> {
        let process = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        let this: &'static Self =
            Box::leak(Box::new(Self { requests: RequestQueue::new(), thread: AtomicU32::new(0), process }));
        let (sender, started) = mpsc::channel();
        spawn("fs-descriptors", move || {
            let result = this.keep(&kept);
            let is_ready = result.is_ok();
            if sender.send(result).is_ok() && is_ready {
                this.serve();
            }
        })?;
        // This terminates: the thread sends a result, or its end of the channel is dropped.
        started.recv().unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EOWNERDEAD)))?;
        Ok(this)
    }

    fn keep(&self, kept: &[RawFd]) -> io::Result<()> {
        descriptors::keep_only(kept)?;
        let thread = current_thread();
        kept.iter().try_for_each(|&fd| descriptors::mark(fd, thread))?;
        self.thread.store(thread, Ordering::Release);
        Ok(())
    }

    fn serve(&self) -> ! {
        loop {
            // SAFETY: the sender keeps the request on its stack until `complete`.
            let request = unsafe { &*self.requests.receive() };
            // SAFETY: the sender keeps the call on its stack until `complete`.
            unsafe { (*request.body.0)() };
            request.complete(0);
        }
    }

    /// Whether the calling thread's table has a marked file at this number. One system call;
    /// async-signal-safe.
    #[inline]
    pub(crate) fn has_file(&self, fd: RawFd) -> bool {
        descriptors::is_marked(fd, self.thread.load(Ordering::Relaxed))
    }

    /// Makes a call in the keeper's descriptor table, and waits for it. Async-signal-safe if the
    /// call is.
    ///
    /// # Errors
    /// As the call; `EOWNERDEAD` if the keeper's thread has ended.
    pub(crate) fn run<R>(&self, call: impl Fn() -> io::Result<R>) -> io::Result<R> {
        let result = Cell::new(None);
        let call = || result.set(Some(call()));
        let call: *const (dyn Fn() + '_) = &raw const call;
        // SAFETY: only the lifetime changes; this thread stays here until the call has returned, or
        // the keeper's thread has ended.
        let call =
            KeeperCall(unsafe { std::mem::transmute::<*const (dyn Fn() + '_), *const (dyn Fn() + 'static)>(call) });
        self.requests.submit(call, || is_running(self.process, self.thread.load(Ordering::Relaxed)));
        result.take().unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EOWNERDEAD)))
    }
}

impl std::fmt::Debug for DescriptorKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DescriptorKeeper").field("thread", &self.thread).finish_non_exhaustive()
    }
}
