//! The thread that serves faults.

#![allow(unsafe_code, reason = "changes the signal mask of a thread")]

use std::io;
use std::mem::{MaybeUninit, forget};
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::paged::core_parts::{Core, abort_on_panic, print_error};

/// The wait while there are pages to bring ahead of their accesses.
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How long the thread waits for faults before it evicts ahead of need.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// A running thread. It is joined when this value is dropped.
#[derive(Debug)]
pub(super) struct ServiceThread {
    core: Arc<Core>,
    handle: Option<JoinHandle<()>>,
}

impl ServiceThread {
    pub(super) fn start(core: Arc<Core>) -> Result<Self> {
        let shared = Arc::clone(&core);
        let thread = Builder::new().name("fs-paged".to_owned());
        let handle = without_signals(|| thread.spawn(move || serve(&shared)));
        let handle = handle.map_err(|error| Error::Thread { errno: error.raw_os_error().unwrap_or(0) })?;
        Ok(Self { core, handle: Some(handle) })
    }
}

impl Drop for ServiceThread {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        if self.core.process.is_forked() {
            // libc has reused what it knew about the thread, which is in the parent only.
            forget(handle);
            // SAFETY: the thread's reference is never dropped in this process.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(&self.core)) };
            return;
        }
        // An eventfd takes a number unless its counter is at the maximum.
        let _ = rustix::io::write(&self.core.stop, &1_u64.to_le_bytes());
        let _ = handle.join();
    }
}

/// A descriptor that ends a thread when it is readable.
pub(super) fn stop() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::Thread { errno: errno.raw_os_error() })
}

/// Serves faults until the end.
fn serve(core: &Core) {
    let pager = &core.pager;
    loop {
        // Memory close to the bound: pages leave ahead of the next fault if none comes soon.
        let is_close = pager.excess(pager.spare()) > 0;
        let timeout = if pager.has_ahead() { Some(&NO_TIME) } else { is_close.then_some(&PAUSE) };
        match wait(core, timeout) {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => end_process(&error),
        }
        if let Err(errno) = abort_on_panic(|| pager.serve(0)) {
            end_process(&io::Error::from_raw_os_error(errno));
        }
    }
}

/// Waits for a message or the end; true at the end.
fn wait(core: &Core, timeout: Option<&Timespec>) -> io::Result<bool> {
    let mut entries = [PollFd::new(core.pager.fd.descriptor(), PollFlags::IN), PollFd::new(&core.stop, PollFlags::IN)];
    match poll(&mut entries, timeout) {
        Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
        Err(errno) => return Err(errno.into()),
    }
    if entries.iter().any(|entry| entry.revents().contains(PollFlags::NVAL)) {
        return Err(Errno::BADF.into());
    }
    Ok(entries[1].revents().contains(PollFlags::IN))
}

/// Without this thread, each access to a page that is not resident would wait forever.
fn end_process(error: &io::Error) -> ! {
    print_error(format_args!(
        "the process ends: cannot read faults of paged memory: {error}\n\
         try: do not close descriptors that the program did not open"
    ));
    std::process::abort()
}

/// Runs `f` with all signals blocked but those of faults, also in a thread that it starts: a handler
/// could access paged memory and wait forever.
pub(super) fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are live locals, each initialised by a call before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigdelset(all.as_mut_ptr(), libc::SIGSEGV);
        libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        result
    }
}
