//! Descriptors that the rest of the process cannot take away: a table of the calling thread's own, and a mark that tells whether a
//! number still names the file that it named.
//!
//! ```text
//! the process's table     3: ...   960: file  <- the program may close this, or put another file there
//! a thread's own table             960: file  <- nobody else reaches this; it keeps the file open
//! ```
//! The mark is the file's owner (`F_SETOWN_EX`), which has no effect without `O_ASYNC`. A check costs one system call.
#![allow(unsafe_code, reason = "fcntl(2) with an owner, and close_range(2), have no safe form")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Numbers that are moved out of the program's way lie this far below the limit on descriptors, or higher.
const BELOW_LIMIT: u64 = 64;
/// The limit counts as this at most, so that tables of descriptors stay small.
const HIGHEST_LIMIT: u64 = 1024;

/// `struct f_owner_ex`, and the type of owner that is a thread; not in libc.
#[repr(C)]
#[derive(Default)]
struct Owner {
    kind: i32,
    thread: i32,
}

const F_OWNER_TID: i32 = 0;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;

/// Gives the calling thread a table of descriptors of its own that has `kept` alone. Threads that it starts share the table.
///
/// # Errors
/// As close_range(2): `ENOSYS` before Linux 5.9, `ENOMEM` without memory for the table.
pub fn keep_only(kept: &[RawFd]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.cast_unsigned()).collect();
    kept.sort_unstable();
    // The last gap comes first: the kernel then copies no more of the table than lies before it.
    let mut end = u32::MAX;
    let mut flags = libc::CLOSE_RANGE_UNSHARE;
    for fd in kept.into_iter().rev() {
        close_range(fd + 1, end, flags)?;
        if fd == 0 {
            return Ok(());
        }
        (end, flags) = (fd - 1, 0);
    }
    close_range(0, end, flags)
}

fn close_range(first: u32, last: u32, flags: u32) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: the first call gives this thread a table of its own; the later ones close in that table, where no other thread and no
    // owner of a descriptor looks. `keep_only` makes them in this order.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves a descriptor to a high number, where a program that closes and reopens files does not put one. It stays where it is if
/// the limit on descriptors leaves no room.
#[must_use]
pub fn raised(fd: OwnedFd) -> OwnedFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live local.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let least = limit.rlim_cur.min(HIGHEST_LIMIT).saturating_sub(BELOW_LIMIT);
    let least = libc::c_int::try_from(least).unwrap_or(0);
    // SAFETY: makes a new descriptor.
    let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    if high < 0 {
        return fd;
    }
    // SAFETY: a new descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(high) }
}

/// Marks a file as held by a thread, by the thread's number as of gettid(2).
///
/// # Errors
/// As fcntl(2).
pub fn mark(fd: RawFd, thread: u32) -> io::Result<()> {
    let owner = Owner { kind: F_OWNER_TID, thread: thread.cast_signed() };
    // SAFETY: the kernel reads a live local.
    let done = unsafe { libc::syscall(libc::SYS_fcntl, fd, F_SETOWN_EX, &raw const owner) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the calling thread's table has the file that was marked for `thread` at this number. Async-signal-safe.
#[must_use]
pub fn is_marked(fd: RawFd, thread: u32) -> bool {
    let mut owner = Owner::default();
    // SAFETY: the kernel writes a live local.
    let done = unsafe { libc::syscall(libc::SYS_fcntl, fd, F_GETOWN_EX, &raw mut owner) };
    done == 0 && owner.kind == F_OWNER_TID && owner.thread == thread.cast_signed() && thread != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn a_thread_keeps_what_the_process_closes_and_replaces() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let (reader, writer) = std::io::pipe().unwrap();
        let fd = raised(OwnedFd::from(File::open("/proc/self/comm").unwrap()));
        let number = fd.as_raw_fd();
        mark(number, thread).unwrap();
        assert!(is_marked(number, thread) && !is_marked(number, thread + 1));
        let (tell, told) = std::sync::mpsc::channel();
        let (proceed, wait) = std::sync::mpsc::channel();
        let keeper = std::thread::spawn(move || {
            keep_only(&[number]).unwrap();
            let held = std::fs::read_dir("/proc/thread-self/fd").unwrap().count();
            tell.send(held).unwrap();
            wait.recv().unwrap();
            is_marked(number, thread)
        });
        // The listing has its own descriptor.
        assert_eq!(told.recv().unwrap(), 2);
        // SAFETY: another file takes the place of one that this test owns.
        assert_eq!(unsafe { libc::dup2(reader.as_raw_fd(), number) }, number);
        assert!(!is_marked(number, thread), "another file is there");
        proceed.send(()).unwrap();
        assert!(keeper.join().unwrap(), "the thread's own table has the file");
        drop(writer);
        drop(fd);
        assert_eq!((&reader).read(&mut [0]).unwrap(), 0, "the thread holds no copy of the pipe");
        assert!(!is_marked(number, thread), "it is closed");
    }
}
