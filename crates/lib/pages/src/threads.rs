//! The threads of this crate: starting them, testing whether one runs, and ending the process when
//! one cannot continue.

#![allow(unsafe_code, reason = "tests whether a thread runs")]

use std::fmt::Display;
use std::io;
use std::thread::{self, Thread};

use crate::signal_mask::without_signals;

/// Starts a thread that receives no signal of the program.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let handle = without_signals(|| thread::Builder::new().name(name.to_owned()).spawn(work))?;
    Ok(handle.thread().clone())
}

/// The calling thread's id, as of gettid(2).
pub(crate) fn current_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// Whether a thread of a process runs; also true if this thread may not ask. Async-signal-safe.
pub(crate) fn is_running(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is not delivered; the call takes integers.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Ends the process when faults cannot be served any more: a faulting thread would wait forever, or
/// read zeros.
pub(crate) fn end_process(what: &str, cause: &dyn Display, remedy: &str) -> ! {
    eprintln!("fieldstone-pages: cannot {what}: {cause}\ntry: {remedy}");
    std::process::abort();
}
