//! What happens when the recorder is loaded, before any constructor and any thread; and what all share since.
//!
//! What it has to map lies at addresses of its own ([`fieldstone_wire::sites::RECORDER_RANGE`]), so that the trace can tell it from
//! the program's memory. Where they are taken, the program goes on, and nothing is announced.

#![allow(unsafe_code, reason = "runs as a constructor, maps the record and the mailbox")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr};

use fieldstone_wire::sites::{Announcement, MAILBOXES_ADDRESS, MAILBOXES_BYTES, RECORD_ADDRESS, Sites};

use crate::thread::{self, Thread};
use crate::{environment, modules, real};

static RECORDED: AtomicPtr<Sites> = AtomicPtr::new(core::ptr::null_mut());
static MAILBOX_THERE: AtomicBool = AtomicBool::new(false);

/// The shared record; `None` in a program that is not recorded.
pub(crate) fn sites() -> Option<&'static Sites> {
    // SAFETY: null or a record that is mapped for the life of the process; what changes in it is atomic.
    unsafe { RECORDED.load(Acquire).as_ref() }
}

/// Whether the mailbox is mapped.
pub(crate) fn has_mailbox() -> bool {
    MAILBOX_THERE.load(Relaxed)
}

/// The constructor.
///
/// # Safety
/// Called by the loader alone, with the process's own vectors.
pub(crate) unsafe extern "C" fn start(_argc: c_int, _argv: *const *const c_char, envp: *mut *mut c_char) {
    // SAFETY: the loader passes the environment before anybody else has seen it.
    let Some(path) = (unsafe { environment::take(envp) }) else { return };
    let Some(sites) = open_record(path).filter(|_| real::real().is_some()) else { return };
    // SAFETY: this is the constructor.
    unsafe { modules::prepare() };
    MAILBOX_THERE.store(map_private(MAILBOXES_ADDRESS, MAILBOXES_BYTES), Relaxed);
    // SAFETY: a function for the life of the process: the loader never unloads what is preloaded.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    sites.programs.fetch_add(1, Relaxed);
    RECORDED.store(core::ptr::from_ref(sites).cast_mut(), Release);
    let ours = modules::ours();
    if let Some(thread) = Thread::enter() {
        thread.letter().announce(Announcement::Here { address: ours.start, bytes: ours.end - ours.start });
    }
}

unsafe extern "C" fn after_fork() {
    thread::after_fork();
}

fn open_record(path: &CStr) -> Option<&'static Sites> {
    // SAFETY: a C string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return None;
    }
    // The path may lead elsewhere by now: a number of a process that ended can belong to another.
    let mapped = is_long_enough(fd) && map(RECORD_ADDRESS, size_of::<Sites>(), libc::MAP_SHARED, fd);
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    // SAFETY: mapped for the life of the process; the file is long enough, and all that changes in it is atomic.
    let sites = mapped.then(|| unsafe { &*core::ptr::with_exposed_provenance::<Sites>(RECORD_ADDRESS as usize) });
    sites.filter(|sites| sites.check().is_ok())
}

fn is_long_enough(fd: c_int) -> bool {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the call fills the record, or leaves the zeroes, which are a valid one.
    let status = unsafe {
        libc::fstat(fd, status.as_mut_ptr());
        status.assume_init()
    };
    status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_size as usize >= size_of::<Sites>()
}

/// Maps zeroed private memory at an address of ours. False, and nothing is mapped, where that cannot be.
pub(crate) fn map_private(address: u64, bytes: usize) -> bool {
    keeping_errno(|| map(address, bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1))
}

/// Does `work` and leaves the program's errno as it was.
pub(crate) fn keeping_errno<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: libc's word of this thread.
    let before = unsafe { *libc::__errno_location() };
    let result = work();
    // SAFETY: libc's word of this thread.
    unsafe { *libc::__errno_location() = before };
    result
}

fn map(address: u64, bytes: usize, flags: c_int, fd: c_int) -> bool {
    let wanted = core::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: NOREPLACE never takes the place of a mapping.
    let mapped = unsafe { system_mmap(wanted, bytes, access, flags | libc::MAP_FIXED_NOREPLACE, fd, 0) };
    if mapped != wanted && mapped != libc::MAP_FAILED {
        // A kernel or an emulator that does not know NOREPLACE takes the address for a hint.
        // SAFETY: what this call has just mapped.
        unsafe { libc::munmap(mapped, bytes) };
    }
    mapped == wanted
}

/// As mmap(2), past every library that stands before it: this one too.
///
/// # Safety
/// As mmap(2).
pub(crate) unsafe fn system_mmap(
    wanted: *mut c_void,
    bytes: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off64_t,
) -> *mut c_void {
    // SAFETY: the caller's word; libc's `syscall` makes of an error what mmap makes of it.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, wanted, bytes, access, flags, fd, offset) };
    core::ptr::with_exposed_provenance_mut(mapped as usize)
}
