//! The shared record, mapped for the life of the process.

#![allow(unsafe_code, reason = "maps the shared record")]

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use fieldstone_wire::MAGIC;
use fieldstone_wire::trace::{BUILD, Trace};

/// The host address of guest address 0; 0 for most programs.
static GUEST_BASE: AtomicU64 = AtomicU64::new(0);
static TRACE: AtomicPtr<Trace> = AtomicPtr::new(ptr::null_mut());

/// Maps the record at `path`.
pub(crate) fn open(path: &str) -> Result<(), String> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| format!("{path}: {error}"))?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    if length != size_of::<Trace>() as u64 {
        return Err("it belongs to another build of fieldstone".to_owned());
    }
    // SAFETY: without a fixed address the kernel picks a free range; the file has this length.
    let mapped = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(ptr::null_mut(), size_of::<Trace>(), access, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().to_string());
    }
    let mapped = mapped.cast::<Trace>();
    // SAFETY: mapped page-aligned with the length of a trace, and never unmapped; both words are
    // constant.
    let (magic, build) = unsafe { ((*mapped).magic, (*mapped).build) };
    if magic != MAGIC || build != BUILD {
        return Err("it belongs to another build of fieldstone".to_owned());
    }
    TRACE.store(mapped, Release);
    Ok(())
}

/// The shared record. No call-back runs before [`open`] has succeeded.
pub(crate) fn trace() -> &'static Trace {
    // SAFETY: set before the first call-back was registered, and never unmapped; fields that change
    // are atomic.
    unsafe { &*TRACE.load(Acquire) }
}

/// The host address of guest address 0.
pub(crate) fn guest_base() -> u64 {
    GUEST_BASE.load(Relaxed)
}

/// Sets the base from a guest address and its host address.
pub(crate) fn set_guest_base(guest: u64, host_address: *const c_void) {
    GUEST_BASE.store((host_address.addr() as u64).wrapping_sub(guest), Relaxed);
}

/// Sleeps while `word` is `value`, for at most one second.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
    let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    // SAFETY: the word is in the shared record, which stays mapped; a spurious wake-up is allowed.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const second);
    }
}

/// Wakes a thread that sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word is in the shared record, which stays mapped.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1);
    }
}
