//! Descriptors that other threads cannot close: a private table for the calling thread, and a mark
//! that identifies a file.
//!
//! ```text
//! the process's table   3: ...   960: file  <- the program may close or replace this
//! a thread's own table           960: file  <- other threads cannot reach it; keeps the file open
//! ```
//! The mark is the file's owner (`F_SETOWN_EX`), which has no effect without `O_ASYNC`. Cost: one
//! system call per check.
#![allow(unsafe_code, reason = "fcntl(2) with an owner, and close_range(2), have no safe form")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Relocated descriptors are at least the limit on descriptors minus this.
const BELOW_LIMIT: u64 = 64;
/// Upper bound of the limit in that calculation, so that descriptor tables stay small.
const HIGHEST_LIMIT: u64 = 1024;

/// `struct f_owner_ex` and the owner type for a thread; missing in libc.
#[repr(C)]
#[derive(Default)]
struct Owner {
    kind: i32,
    thread: i32,
}

const F_OWNER_TID: i32 = 0;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;

/// Gives the calling thread a private descriptor table that contains only `kept`. Threads it
/// creates later share the table.
///
/// # Errors
/// As close_range(2): `ENOSYS` before Linux 5.9, `ENOMEM` without memory for the table.
pub fn keep_only(kept: &[RawFd]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.cast_unsigned()).collect();
    kept.sort_unstable();
    // The last gap comes first: the kernel then copies only the part of the table before it.
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
    // SAFETY: `keep_only` makes the first call with CLOSE_RANGE_UNSHARE, which gives this thread a
    // private table. Later calls close descriptors in that table, which no `OwnedFd` refers to.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves a descriptor to a high number, where programs that close and reopen files put none.
/// Returns it unchanged if the limit on descriptors leaves no free number.
#[must_use]
pub fn move_high(fd: OwnedFd) -> OwnedFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit` to a live local.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let least = limit.rlim_cur.min(HIGHEST_LIMIT).saturating_sub(BELOW_LIMIT);
    let least = libc::c_int::try_from(least).unwrap_or(0);
    // SAFETY: the call takes integers and creates a new descriptor.
    let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    if high < 0 {
        return fd;
    }
    // SAFETY: the kernel has just created the descriptor, so no other owner exists.
    unsafe { OwnedFd::from_raw_fd(high) }
}

/// Marks a file with a thread's number as of gettid(2).
///
/// # Errors
/// As fcntl(2).
pub fn mark(fd: RawFd, thread: u32) -> io::Result<()> {
    let owner = Owner { kind: F_OWNER_TID, thread: thread.cast_signed() };
    // SAFETY: the kernel reads one `f_owner_ex` from a live local.
    let done = unsafe { libc::syscall(libc::SYS_fcntl, fd, F_SETOWN_EX, &raw const owner) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether number `fd` in the calling thread's table is the file marked for `thread`.
/// Async-signal-safe.
#[must_use]
pub fn is_marked(fd: RawFd, thread: u32) -> bool {
    let mut owner = Owner::default();
    // SAFETY: the kernel writes one `f_owner_ex` to a live local.
    let done = unsafe { libc::syscall(libc::SYS_fcntl, fd, F_GETOWN_EX, &raw mut owner) };
    done == 0 && owner.kind == F_OWNER_TID && owner.thread == thread.cast_signed() && thread != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn a_private_table_keeps_files_that_the_process_closes() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let (reader, writer) = std::io::pipe().unwrap();
        let fd = move_high(OwnedFd::from(File::open("/proc/self/comm").unwrap()));
        let number = fd.as_raw_fd();
        mark(number, thread).unwrap();
        assert!(is_marked(number, thread) && !is_marked(number, thread + 1));
        let (send_count, open_count) = std::sync::mpsc::channel();
        let (proceed, wait) = std::sync::mpsc::channel();
        let keeper = std::thread::spawn(move || {
            keep_only(&[number]).unwrap();
            let count = std::fs::read_dir("/proc/thread-self/fd").unwrap().count();
            send_count.send(count).unwrap();
            wait.recv().unwrap();
            is_marked(number, thread)
        });
        // The listing itself uses a descriptor.
        assert_eq!(open_count.recv().unwrap(), 2);
        // SAFETY: this test owns `number`; replacing its file is the purpose.
        assert_eq!(unsafe { libc::dup2(reader.as_raw_fd(), number) }, number);
        assert!(!is_marked(number, thread), "another file is there");
        proceed.send(()).unwrap();
        assert!(keeper.join().unwrap(), "the thread's private table has the file");
        drop(writer);
        drop(fd);
        assert_eq!((&reader).read(&mut [0]).unwrap(), 0, "the thread holds no copy of the pipe");
        assert!(!is_marked(number, thread), "it is closed");
    }
}
