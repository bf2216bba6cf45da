//! The constructor of the recorder, which runs before any other constructor and any thread; and the
//! state that it sets up.
//!
//! All mappings of the recorder are at reserved addresses ([`fieldstone_wire::sites::RECORDER_RANGE`]), so
//! that the trace can exclude them. If those addresses are in use, the program continues and
//! nothing is announced.

#![allow(unsafe_code, reason = "runs as a constructor, maps the record and the mailbox")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr};

use fieldstone_wire::sites::{Announcement, MAILBOXES_ADDRESS, MAILBOXES_BYTES, RECORD_ADDRESS, Sites};

use crate::thread::{self, ThreadGuard};
use crate::{allocator, environment, modules};

static RECORD_POINTER: AtomicPtr<Sites> = AtomicPtr::new(core::ptr::null_mut());
static HAS_MAILBOXES: AtomicBool = AtomicBool::new(false);

/// The shared record; `None` in a program that is not recorded.
pub(crate) fn sites() -> Option<&'static Sites> {
    // SAFETY: null or a record mapped for the life of the process; all fields that change are
    // atomic.
    unsafe { RECORD_POINTER.load(Acquire).as_ref() }
}

/// Whether the mailboxes are mapped.
pub(crate) fn has_mailboxes() -> bool {
    HAS_MAILBOXES.load(Relaxed)
}

/// The constructor.
///
/// # Safety
/// Only the loader may call this, with the process's own vectors.
pub(crate) unsafe extern "C" fn start(_argc: c_int, _argv: *const *const c_char, envp: *mut *mut c_char) {
    // SAFETY: the loader passes the environment vector, and no other code has read it yet.
    let Some(path) = (unsafe { environment::remove_recorder_variables(envp) }) else { return };
    let Some(sites) = open_record(path).filter(|_| allocator::functions().is_some()) else { return };
    // SAFETY: only the constructor calls `prepare`, before any other thread exists.
    unsafe { modules::prepare() };
    HAS_MAILBOXES.store(map_private(MAILBOXES_ADDRESS, MAILBOXES_BYTES), Relaxed);
    // SAFETY: the callback stays valid: the loader never unloads a preloaded library.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    sites.programs.fetch_add(1, Relaxed);
    RECORD_POINTER.store(core::ptr::from_ref(sites).cast_mut(), Release);
    let own_range = modules::own_range();
    if let Some(thread) = ThreadGuard::enter() {
        thread
            .mailbox()
            .announce(Announcement::Here { address: own_range.start, bytes: own_range.end - own_range.start });
    }
}

unsafe extern "C" fn after_fork() {
    thread::after_fork();
}

fn open_record(path: &CStr) -> Option<&'static Sites> {
    // SAFETY: `path` is a NUL-terminated C string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return None;
    }
    // The path may name another file by now: the number of an ended process can belong to a new
    // one.
    let mapped = is_long_enough(fd) && map(RECORD_ADDRESS, size_of::<Sites>(), libc::MAP_SHARED, fd);
    // SAFETY: this function opened `fd` and does not use it afterwards.
    unsafe { libc::close(fd) };
    // SAFETY: mapped for the life of the process and long enough; all fields that change are
    // atomic.
    let sites = mapped.then(|| unsafe { &*core::ptr::with_exposed_provenance::<Sites>(RECORD_ADDRESS as usize) });
    sites.filter(|sites| sites.check().is_ok())
}

fn is_long_enough(fd: c_int) -> bool {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the call writes within the record, and all zeroes are a valid value of it.
    let status = unsafe {
        libc::fstat(fd, status.as_mut_ptr());
        status.assume_init()
    };
    status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_size as usize >= size_of::<Sites>()
}

/// Maps zeroed private memory at a reserved address. False, and nothing is mapped, on failure.
pub(crate) fn map_private(address: u64, bytes: usize) -> bool {
    with_errno_restored(|| map(address, bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1))
}

/// Runs `work` and restores the program's errno.
pub(crate) fn with_errno_restored<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: `__errno_location` returns the errno of this thread.
    let before = unsafe { *libc::__errno_location() };
    let result = work();
    // SAFETY: `__errno_location` returns the errno of this thread.
    unsafe { *libc::__errno_location() = before };
    result
}

fn map(address: u64, bytes: usize, flags: c_int, fd: c_int) -> bool {
    let wanted = core::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: MAP_FIXED_NOREPLACE never replaces a mapping.
    let mapped = unsafe { system_mmap(wanted, bytes, access, flags | libc::MAP_FIXED_NOREPLACE, fd, 0) };
    if mapped != wanted && mapped != libc::MAP_FAILED {
        // A kernel or an emulator without MAP_FIXED_NOREPLACE treats the address as a hint.
        // SAFETY: this call mapped the range just now, and no other code knows it.
        unsafe { libc::munmap(mapped, bytes) };
    }
    mapped == wanted
}

/// mmap(2) as a system call, which bypasses interposed functions.
///
/// # Safety
/// The caller upholds the contract of mmap(2).
pub(crate) unsafe fn system_mmap(
    wanted: *mut c_void,
    bytes: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off64_t,
) -> *mut c_void {
    // SAFETY: the caller passes the arguments of mmap; `syscall` reports errors as mmap does.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, wanted, bytes, access, flags, fd, offset) };
    core::ptr::with_exposed_provenance_mut(mapped as usize)
}
