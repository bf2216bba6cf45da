//! System calls without libc: no errno, no cancellation point, nothing that a program can interpose.

#![allow(unsafe_code, reason = "system calls are made through here and nowhere else in the agent")]

use core::ffi::CStr;
use core::ops::Range;

pub(crate) use fieldstone_preload::process::{getpid, map, map_file, write_error};
use fieldstone_syscall::{failed, syscall};

/// The page size in bytes.
pub(crate) const PAGE: usize = 4096;

/// madvise(2) for the program; a negated errno.
pub(crate) fn advise(start: usize, bytes: usize, advice: i32) -> isize {
    // SAFETY: the program makes this call.
    unsafe { syscall(libc::SYS_madvise, [start, bytes, advice as usize, 0, 0, 0]) }
}

/// Unmaps memory.
///
/// # Safety
/// Nothing uses the range.
pub(crate) unsafe fn unmap(range: Range<usize>) {
    // SAFETY: the caller answers for the range.
    unsafe { syscall(libc::SYS_munmap, [range.start, range.len(), 0, 0, 0, 0]) };
}

/// Makes memory inaccessible.
///
/// # Safety
/// Nothing uses the range.
pub(crate) unsafe fn forbid(range: Range<usize>) {
    // SAFETY: the caller answers for the range.
    unsafe { syscall(libc::SYS_mprotect, [range.start, range.len(), libc::PROT_NONE as usize, 0, 0, 0]) };
}

/// Opens a file.
pub(crate) fn open(path: &CStr, flags: i32) -> Option<i32> {
    // SAFETY: the path is a C string.
    let file = unsafe {
        syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0])
    };
    (!failed(file)).then_some(file as i32)
}

/// Closes a descriptor that the agent opened.
pub(crate) fn close(file: i32) {
    // SAFETY: the descriptor belongs to the caller.
    unsafe { syscall(libc::SYS_close, [file as usize, 0, 0, 0, 0, 0]) };
}

/// Reads from a file; 0 at its end and after an error.
pub(crate) fn read(file: i32, into: &mut [u8]) -> usize {
    // SAFETY: the kernel writes within the slice.
    let read = unsafe { syscall(libc::SYS_read, [file as usize, into.as_mut_ptr() as usize, into.len(), 0, 0, 0]) };
    usize::try_from(read).unwrap_or(0)
}

/// Reads from the start of a file; 0 after an error.
pub(crate) fn read_start(file: i32, into: &mut [u8]) -> usize {
    // SAFETY: the kernel writes within the slice.
    let read = unsafe { syscall(libc::SYS_pread64, [file as usize, into.as_mut_ptr() as usize, into.len(), 0, 0, 0]) };
    usize::try_from(read).unwrap_or(0)
}

/// Locks a byte of a file until its open file description is closed. Returns whether it worked.
pub(crate) fn lock_byte(file: i32, byte: usize) -> bool {
    let mut lock = write_lock(byte);
    // SAFETY: the kernel reads the record, which outlives the call.
    let result = unsafe {
        syscall(libc::SYS_fcntl, [file as usize, libc::F_OFD_SETLK as usize, &raw mut lock as usize, 0, 0, 0])
    };
    !failed(result)
}

/// Whether another open file description has locked a byte of a file; true if that is unknown.
pub(crate) fn is_byte_locked(file: i32, byte: usize) -> bool {
    let mut lock = write_lock(byte);
    // SAFETY: the kernel writes the record, which outlives the call.
    let result = unsafe {
        syscall(libc::SYS_fcntl, [file as usize, libc::F_OFD_GETLK as usize, &raw mut lock as usize, 0, 0, 0])
    };
    failed(result) || i32::from(lock.l_type) != libc::F_UNLCK
}

fn write_lock(byte: usize) -> libc::flock {
    let (l_type, l_whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
    libc::flock { l_type, l_whence, l_start: byte as i64, l_len: 1, l_pid: 0 }
}

/// Sets the signal mask of the current thread; returns the old one.
pub(crate) fn set_mask(mask: u64) -> u64 {
    let mut old = 0_u64;
    let (new, old_at) = (&raw const mask as usize, &raw mut old as usize);
    // SAFETY: both masks have the 8 bytes of the kernel's sigset_t.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, new, old_at, 8, 0, 0]) };
    old
}

/// Lets the current thread run on one processor only.
pub(crate) fn run_on(processor: usize) {
    let mut set = [0_u64; 16];
    let Some(word) = set.get_mut(processor / 64) else { return };
    *word = 1 << (processor % 64);
    // SAFETY: the kernel reads the set.
    unsafe { syscall(libc::SYS_sched_setaffinity, [0, size_of_val(&set), set.as_ptr() as usize, 0, 0, 0]) };
}

/// Names the current thread.
pub(crate) fn set_thread_name(name: &CStr) {
    // SAFETY: the name is a C string.
    unsafe { syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Sleeps for some milliseconds.
pub(crate) fn sleep(milliseconds: u32) {
    let pause =
        libc::timespec { tv_sec: i64::from(milliseconds / 1000), tv_nsec: i64::from(milliseconds % 1000) * 1_000_000 };
    // SAFETY: the kernel reads the record, which outlives the call.
    unsafe { syscall(libc::SYS_nanosleep, [&raw const pause as usize, 0, 0, 0, 0, 0]) };
}

/// Sleeps for about 50 µs.
pub(crate) fn sleep_briefly() {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
    // SAFETY: the kernel reads the record, which outlives the call.
    unsafe { syscall(libc::SYS_nanosleep, [&raw const pause as usize, 0, 0, 0, 0, 0]) };
}

/// Ends the process by `SIGKILL`, which it cannot catch.
pub(crate) fn end_process() -> ! {
    loop {
        // SAFETY: the call has no pointers.
        unsafe { syscall(libc::SYS_kill, [getpid() as usize, libc::SIGKILL as usize, 0, 0, 0, 0]) };
    }
}

/// Ends the current thread.
pub(crate) fn exit_thread() -> ! {
    loop {
        // SAFETY: the call has no pointers.
        unsafe { syscall(libc::SYS_exit, [0; 6]) };
    }
}
