//! The threads of this crate: how they start, whether one still runs, and how the process ends when one cannot go on.

#![allow(unsafe_code, reason = "asks whether a thread runs")]

use std::fmt::Display;
use std::io;
use std::thread::{self, Thread};

use crate::signal;

/// Starts a thread that gets no signal of the program's.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let made = signal::without_signals(|| thread::Builder::new().name(name.to_owned()).spawn(work))?;
    Ok(made.thread().clone())
}

/// The calling thread's number, as of gettid(2).
pub(crate) fn own_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// Whether a thread of a process runs, or this thread may not ask. Async-signal-safe.
pub(crate) fn is_running(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    let asked = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    asked == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Ends the process where faults cannot be served any more: a thread that faults would wait for ever, or read zeros.
pub(crate) fn end_process(what: &str, cause: &dyn Display, remedy: &str) -> ! {
    eprintln!("fieldstone-pages: cannot {what}: {cause}\ntry: {remedy}");
    std::process::abort();
}
