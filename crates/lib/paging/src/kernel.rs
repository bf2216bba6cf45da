//! The system calls of the pager, made without libc.
//!
//! The pager runs inside programs whose libc calls may be interposed, and in threads without a libc
//! of their own. Each call returns `Err` with the errno.

#![allow(unsafe_code, reason = "makes system calls")]

use core::ops::Range;
use core::sync::atomic::AtomicU32;

pub use fieldstone_syscall::Errno;
use fieldstone_syscall::call;
use linux_raw_sys::{errno, general};

/// The page size in bytes.
pub(crate) const PAGE: usize = 4096;
/// Pages that one call writes at most.
const WRITTEN: usize = 64;

#[cfg(feature = "std")]
pub(crate) const EACCES: Errno = errno::EACCES.cast_signed();
pub(crate) const EAGAIN: Errno = errno::EAGAIN.cast_signed();
pub(crate) const EBUSY: Errno = errno::EBUSY.cast_signed();
pub(crate) const ECHILD: Errno = errno::ECHILD.cast_signed();
pub(crate) const EEXIST: Errno = errno::EEXIST.cast_signed();
pub(crate) const EINTR: Errno = errno::EINTR.cast_signed();
pub(crate) const EINVAL: Errno = errno::EINVAL.cast_signed();
pub(crate) const EIO: Errno = errno::EIO.cast_signed();
pub(crate) const ENODATA: Errno = errno::ENODATA.cast_signed();
pub(crate) const ENOENT: Errno = errno::ENOENT.cast_signed();
pub(crate) const ENOMEM: Errno = errno::ENOMEM.cast_signed();
pub(crate) const ENOSPC: Errno = errno::ENOSPC.cast_signed();
pub(crate) const ENOSYS: Errno = errno::ENOSYS.cast_signed();
pub(crate) const EOPNOTSUPP: Errno = errno::EOPNOTSUPP.cast_signed();
#[cfg(feature = "std")]
pub(crate) const EPERM: Errno = errno::EPERM.cast_signed();
pub(crate) const ETIMEDOUT: Errno = errno::ETIMEDOUT.cast_signed();
pub(crate) const ESRCH: Errno = errno::ESRCH.cast_signed();

/// Maps fresh private memory for reading and writing, without a reservation of swap space.
pub(crate) fn map(bytes: usize) -> Result<usize, Errno> {
    let access = general::PROT_READ | general::PROT_WRITE;
    let flags = general::MAP_PRIVATE | general::MAP_ANONYMOUS | general::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel chooses an unused range.
    unsafe { call(general::__NR_mmap, [0, bytes, access as usize, flags as usize, usize::MAX, 0]) }
}

/// Makes memory inaccessible.
///
/// # Safety
/// The caller owns the range and does not access it afterwards.
pub(crate) unsafe fn forbid(range: Range<usize>) -> Result<(), Errno> {
    let access = general::PROT_NONE as usize;
    // SAFETY: the caller owns the range.
    unsafe { call(general::__NR_mprotect, [range.start, range.len(), access, 0, 0, 0]) }.map(drop)
}

/// Unmaps memory.
///
/// # Safety
/// The caller owns the range, and nothing uses it any more.
pub(crate) unsafe fn unmap(range: Range<usize>) {
    // SAFETY: the caller owns the range. For a whole mapping the call cannot fail.
    let _ = unsafe { call(general::__NR_munmap, [range.start, range.len(), 0, 0, 0, 0]) };
}

/// Drops the contents of whole pages; they read as zeros then.
///
/// # Safety
/// The caller owns the range and gives up its contents.
pub(crate) unsafe fn discard(range: Range<usize>) {
    // SAFETY: the caller owns the range. For its own ordinary memory the call cannot fail.
    let _ =
        unsafe { call(general::__NR_madvise, [range.start, range.len(), general::MADV_DONTNEED as usize, 0, 0, 0]) };
}

/// Makes each page of a range writable and owned by this process alone, as a write would.
///
/// # Errors
/// Why a page cannot be written: `EFAULT`, `ENOMEM`.
pub(crate) fn populate_write(range: Range<usize>) -> Result<(), Errno> {
    let advice = general::MADV_POPULATE_WRITE as usize;
    // SAFETY: the call changes no contents.
    unsafe { call(general::__NR_madvise, [range.start, range.len(), advice, 0, 0, 0]) }.map(drop)
}

/// Which pages of a range are resident: the lowest bit of each byte of `into`.
pub(crate) fn mincore(range: Range<usize>, into: &mut [u8]) -> Result<(), Errno> {
    debug_assert!(into.len() * PAGE >= range.len());
    let buffer = into.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel writes a byte a page, and the buffer has that many.
    unsafe { call(general::__NR_mincore, [range.start, range.len(), buffer, 0, 0, 0]) }.map(drop)
}

/// Sleeps while a word of this process has a value, at most some milliseconds.
pub(crate) fn wait_while(word: &AtomicU32, value: u32, milliseconds: u32) {
    futex_wait(word, general::FUTEX_PRIVATE_FLAG, value, milliseconds);
}

/// As [`wait_while`], for a word that processes share.
pub(crate) fn wait_while_shared(word: &AtomicU32, value: u32, milliseconds: u32) {
    futex_wait(word, 0, value, milliseconds);
}

fn futex_wait(word: &AtomicU32, flags: u32, value: u32, milliseconds: u32) {
    let timeout = general::__kernel_timespec {
        tv_sec: i64::from(milliseconds / 1000),
        tv_nsec: i64::from(milliseconds % 1000) * 1_000_000,
    };
    let operation = (general::FUTEX_WAIT | flags) as usize;
    let (word, timeout) = (core::ptr::from_ref(word) as usize, &raw const timeout as usize);
    // SAFETY: the kernel reads the word and the timeout, which outlive the call.
    let _ = unsafe { call(general::__NR_futex, [word, operation, value as usize, timeout, 0, 0]) };
}

/// Wakes one thread that sleeps in [`wait_while`].
pub(crate) fn wake_one(word: &AtomicU32) {
    futex_wake(word, general::FUTEX_PRIVATE_FLAG);
}

/// Wakes one thread that sleeps in [`wait_while_shared`].
pub(crate) fn wake_one_shared(word: &AtomicU32) {
    futex_wake(word, 0);
}

fn futex_wake(word: &AtomicU32, flags: u32) {
    let operation = (general::FUTEX_WAKE | flags) as usize;
    // SAFETY: the kernel uses the address as a key only.
    let _ = unsafe { call(general::__NR_futex, [core::ptr::from_ref(word) as usize, operation, 1, 0, 0, 0]) };
}

/// Lets another thread run.
pub(crate) fn yield_now() {
    // SAFETY: the call takes no argument.
    let _ = unsafe { call(general::__NR_sched_yield, [0; 6]) };
}

/// A file descriptor of the descriptor table of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Descriptor(i32);

impl Descriptor {
    /// Takes a descriptor that nothing else owns.
    ///
    /// # Safety
    /// `number` is an open descriptor, and only the result closes it.
    pub(crate) const unsafe fn new(number: i32) -> Self {
        Self(number)
    }
}

#[cfg(feature = "std")]
impl std::os::fd::AsFd for Descriptor {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as this value exists.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to this value.
        let _ = unsafe { call(general::__NR_close, [self.0 as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Opens a userfaultfd for faults of user code and of the kernel, by the device or by the call.
///
/// # Errors
/// `EPERM` or `EACCES` without permission for faults of the kernel.
pub(crate) fn open_userfaultfd() -> Result<Descriptor, Errno> {
    let flags = general::O_CLOEXEC | general::O_NONBLOCK;
    let by_device = open(c"/dev/userfaultfd", general::O_RDWR | general::O_CLOEXEC)
        // SAFETY: USERFAULTFD_IOC_NEW takes flags and returns a descriptor.
        .and_then(|device| unsafe { call(general::__NR_ioctl, [device.0 as usize, 0xAA00, flags as usize, 0, 0, 0]) });
    // SAFETY: userfaultfd(2) takes flags only, and reads no memory.
    let number = by_device.or_else(|_| unsafe { call(general::__NR_userfaultfd, [flags as usize, 0, 0, 0, 0, 0]) })?;
    Ok(Descriptor(number as i32))
}

/// Opens a userfaultfd for faults of user code, which every user may.
pub(crate) fn open_user_userfaultfd() -> Result<Descriptor, Errno> {
    let flags = general::O_CLOEXEC | general::O_NONBLOCK | general::UFFD_USER_MODE_ONLY;
    // SAFETY: userfaultfd(2) takes flags only, and reads no memory.
    let number = unsafe { call(general::__NR_userfaultfd, [flags as usize, 0, 0, 0, 0, 0]) }?;
    Ok(Descriptor(number as i32))
}

/// Opens a file.
pub(crate) fn open(path: &core::ffi::CStr, flags: u32) -> Result<Descriptor, Errno> {
    let at = general::AT_FDCWD as isize as usize;
    // SAFETY: the path is a C string, which lives until the call returns.
    let number = unsafe { call(general::__NR_openat, [at, path.as_ptr() as usize, flags as usize, 0o600, 0, 0]) }?;
    Ok(Descriptor(number as i32))
}

/// Makes an ioctl(2) whose argument is the request's own structure.
///
/// # Safety
/// `T` is the structure of `request`, and what it asks for breaks no rule of the memory it names.
pub(crate) unsafe fn ioctl<T>(descriptor: &Descriptor, request: u32, argument: &mut T) -> Result<usize, Errno> {
    let argument = core::ptr::from_mut(argument).expose_provenance();
    // SAFETY: the caller passes the request's own structure, a live local.
    unsafe { call(general::__NR_ioctl, [descriptor.0 as usize, request as usize, argument, 0, 0, 0]) }
}

/// Reads from a descriptor into a value that any bytes make valid.
///
/// # Safety
/// Any bytes are a valid `T`.
pub(crate) unsafe fn read<T>(descriptor: &Descriptor, into: &mut [T]) -> Result<usize, Errno> {
    let (buffer, bytes) = (into.as_mut_ptr().expose_provenance(), size_of_val(into));
    // SAFETY: the kernel writes within the slice, and any bytes are valid there.
    unsafe { call(general::__NR_read, [descriptor.0 as usize, buffer, bytes, 0, 0, 0]) }
}

/// Reads `into.len()` bytes at an offset of a file.
///
/// # Errors
/// The errno; `EIO` at the end of the file.
pub(crate) fn read_at(descriptor: &Descriptor, into: &mut [u8], offset: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let (buffer, bytes) = (rest.as_mut_ptr().expose_provenance(), rest.len());
        // SAFETY: the kernel writes within the slice.
        match unsafe { call(general::__NR_pread64, [descriptor.0 as usize, buffer, bytes, offset + done, 0, 0]) } {
            Ok(0) => return Err(EIO),
            Ok(count) => done += count,
            Err(EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes pages one behind the other, at an offset of a file. Returns how many were written: the first
/// ones, at least one.
///
/// # Errors
/// The errno; `ENOSPC` if a part of a page was written.
pub(crate) fn write_pages_at(descriptor: &Descriptor, pages: &[&[u8; PAGE]], offset: usize) -> Result<usize, Errno> {
    let mut parts = [const { general::iovec { iov_base: core::ptr::null_mut(), iov_len: PAGE as u64 } }; WRITTEN];
    let count = pages.len().min(WRITTEN);
    for (part, page) in parts.iter_mut().zip(pages) {
        part.iov_base = page.as_ptr().cast_mut().cast();
    }
    loop {
        let arguments = [descriptor.0 as usize, parts.as_ptr().expose_provenance(), count, offset, 0, 0];
        // SAFETY: the kernel reads within the pages, which live until the call returns.
        match unsafe { call(general::__NR_pwritev, arguments) } {
            Ok(0..PAGE) => return Err(ENOSPC),
            Ok(bytes) => return Ok(bytes / PAGE),
            Err(EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until a descriptor is readable, or some milliseconds have passed.
pub(crate) fn poll(descriptor: &Descriptor, milliseconds: u32) -> Result<bool, Errno> {
    let mut entry = general::pollfd { fd: descriptor.0, events: general::POLLIN as i16, revents: 0 };
    let timeout = general::__kernel_timespec {
        tv_sec: i64::from(milliseconds / 1000),
        tv_nsec: i64::from(milliseconds % 1000) * 1_000_000,
    };
    let (entries, timeout) = (&raw mut entry, &raw const timeout);
    // SAFETY: the entry and the timeout are live locals; without a mask the signals stay as they are.
    let ready = unsafe { call(general::__NR_ppoll, [entries as usize, 1, timeout as usize, 0, 8, 0]) };
    match ready {
        Ok(count) => Ok(count > 0),
        Err(EINTR | EAGAIN) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The clock that does not jump, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let mut time = general::__kernel_timespec { tv_sec: 0, tv_nsec: 0 };
    let (clock, into) = (general::CLOCK_MONOTONIC as usize, &raw mut time as usize);
    // SAFETY: the kernel writes the time to a live local.
    let _ = unsafe { call(general::__NR_clock_gettime, [clock, into, 0, 0, 0, 0]) };
    time.tv_sec.cast_unsigned().saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.cast_unsigned())
}
