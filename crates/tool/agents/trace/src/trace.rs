//! The shared record, mapped once and for as long as the process lives.

#![allow(unsafe_code, reason = "maps the shared record")]

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use fieldstone_wire::MAGIC;
use fieldstone_wire::trace::{BUILD, Trace};

/// Where the guest's address 0 lies: 0, as far as QEMU can have it.
static GUEST_BASE: AtomicU64 = AtomicU64::new(0);
static TRACE: AtomicPtr<Trace> = AtomicPtr::new(ptr::null_mut());

/// Maps the record at `path`.
pub(crate) fn open(path: &str) -> Result<(), String> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| format!("{path}: {error}"))?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    if length != size_of::<Trace>() as u64 {
        return Err("it belongs to another build of fieldstone".to_owned());
    }
    // SAFETY: no address is named, so nothing that exists is touched; the file has this length.
    let mapped = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(ptr::null_mut(), size_of::<Trace>(), access, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().to_string());
    }
    let mapped = mapped.cast::<Trace>();
    // SAFETY: just mapped, page-aligned, as long as a trace, and never unmapped; these two words no longer change.
    let (magic, build) = unsafe { ((*mapped).magic, (*mapped).build) };
    if magic != MAGIC || build != BUILD {
        return Err("it belongs to another build of fieldstone".to_owned());
    }
    TRACE.store(mapped, Release);
    Ok(())
}

/// The record. No call-back runs before [`open`] has succeeded.
pub(crate) fn trace() -> &'static Trace {
    // SAFETY: set before the first call-back was registered, mapped for good; all that changes in it is atomic.
    unsafe { &*TRACE.load(Acquire) }
}

/// Where the guest's address 0 lies in this process.
pub(crate) fn guest_base() -> u64 {
    GUEST_BASE.load(Relaxed)
}

/// Notes where code of the guest lies here.
pub(crate) fn set_guest_base(guest: u64, here: *const c_void) {
    GUEST_BASE.store((here.addr() as u64).wrapping_sub(guest), Relaxed);
}

/// Sleeps while `word` is `value`, for a second at most.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
    let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    // SAFETY: the word lives in the shared record; waking early or late is as good as in time.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const second);
    }
}

/// Wakes who sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: as above.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1);
    }
}
