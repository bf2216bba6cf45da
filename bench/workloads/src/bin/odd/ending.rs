//! Ways to end, and a program that does not end.

#![allow(unsafe_code, reason = "signals, and a deliberate fault")]

use fieldstone_workloads::Error;
use std::{io::Write, time::Duration};

/// Prints a line, waits, then writes to an inaccessible page.
pub(crate) fn crash(after: Duration) -> Result<u64, Error> {
    println!("about to crash");
    let _ = std::io::stdout().flush();
    std::thread::sleep(after);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: maps one new page; null and MAP_FAILED are checked before use. The volatile write
    // goes to that page, which is mapped without access: it faults, and no Rust object is there.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return Err(Error::system("mmap"));
        }
        page.cast::<u8>().write_volatile(1);
    }
    Err(Error::wrong("a write to an inaccessible page did not fault"))
}

/// Sends SIGKILL to this process.
pub(crate) fn kill_self() -> Result<u64, Error> {
    // SAFETY: kill touches no memory of this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    Err(Error::system("kill"))
}

/// Ignores SIGTERM from here on.
pub(crate) fn ignore_sigterm() {
    // SAFETY: SIG_IGN installs no code that could run in a signal handler.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
}

/// Prints `ready` and sleeps without end.
pub(crate) fn hang() -> ! {
    println!("ready");
    let _ = std::io::stdout().flush();
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
