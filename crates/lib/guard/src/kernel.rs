//! The system calls of guarded slots, made without libc.
//!
//! A preloaded library may replace libc's functions, and libc's calls change errno. So the calls
//! are made by the instruction itself (`fieldstone-syscall`). Each returns `Err` with the errno.

#![allow(unsafe_code, reason = "makes system calls")]

use core::ops::Range;

pub(crate) use fieldstone_syscall::Errno;
use fieldstone_syscall::call;
use linux_raw_sys::{errno, general};

/// The granularity of guards in bytes: a multiple of each page size that the architecture's kernels use.
pub(crate) const PAGE: usize = if cfg!(target_arch = "aarch64") { 65536 } else { 4096 };

/// The kernel does not know the operation, or it does not work for this memory.
pub(crate) const EINVAL: Errno = errno::EINVAL.cast_signed();

/// Advice to madvise(2) that this crate uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Advice {
    GuardInstall = general::MADV_GUARD_INSTALL,
    GuardRemove = general::MADV_GUARD_REMOVE,
    DontNeed = general::MADV_DONTNEED,
    /// Linux 5.18: also pages that are locked.
    DontNeedLocked = general::MADV_DONTNEED_LOCKED,
    NoHugePage = general::MADV_NOHUGEPAGE,
    PopulateWrite = general::MADV_POPULATE_WRITE,
}

/// The calling process, for calls that take a pidfd (Linux 6.15).
const PIDFD_SELF_THREAD_GROUP: usize = (-10_001_isize).cast_unsigned();

/// Maps fresh private anonymous memory without a reservation of swap space.
pub(crate) fn map(bytes: usize, is_accessible: bool) -> Result<usize, Errno> {
    let access = if is_accessible { general::PROT_READ | general::PROT_WRITE } else { general::PROT_NONE };
    let flags = general::MAP_PRIVATE | general::MAP_ANONYMOUS | general::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel chooses an unused range.
    unsafe { call(general::__NR_mmap, [0, bytes, access as usize, flags as usize, usize::MAX, 0]) }
}

/// Unmaps memory.
///
/// # Safety
/// The range was returned by [`map`], and nothing uses it any more.
pub(crate) unsafe fn unmap(range: Range<usize>) {
    // SAFETY: the caller owns the range. The call cannot fail for a whole mapping.
    let _ = unsafe { call(general::__NR_munmap, [range.start, range.len(), 0, 0, 0, 0]) };
}

/// Makes whole pages accessible, or inaccessible.
///
/// # Safety
/// The pages belong to the caller, and no reference to them exists if they become inaccessible.
pub(crate) unsafe fn protect(range: Range<usize>, is_accessible: bool) -> Result<(), Errno> {
    let access = if is_accessible { general::PROT_READ | general::PROT_WRITE } else { general::PROT_NONE };
    // SAFETY: the caller owns the pages.
    unsafe { call(general::__NR_mprotect, [range.start, range.len(), access as usize, 0, 0, 0]) }.map(|_| ())
}

/// madvise(2) on whole pages. Interrupted calls are repeated: the kernel handles a long range in
/// parts, which a signal or the fault of another thread may interrupt.
///
/// # Safety
/// The pages belong to the caller, who gives up their contents.
pub(crate) unsafe fn advise(range: Range<usize>, advice: Advice) -> Result<(), Errno> {
    loop {
        // SAFETY: the caller owns the pages.
        match unsafe { call(general::__NR_madvise, [range.start, range.len(), advice as usize, 0, 0, 0]) } {
            Err(code) if code == errno::EINTR.cast_signed() || code == errno::EAGAIN.cast_signed() => {}
            result => return result.map(|_| ()),
        }
    }
}

/// Pages for [`advise_each`]: an `iovec` of the kernel.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Pages {
    start: usize,
    bytes: usize,
}

impl From<Range<usize>> for Pages {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, bytes: range.len() }
    }
}

/// As [`advise`], on several ranges by one call of process_madvise(2). False if the kernel does not
/// know the call or did a part of it only.
///
/// # Safety
/// As [`advise`], for each range.
pub(crate) unsafe fn advise_each(ranges: &[Pages], advice: Advice) -> bool {
    let vector = ranges.as_ptr().expose_provenance();
    let args = [PIDFD_SELF_THREAD_GROUP, vector, ranges.len(), advice as usize, 0, 0];
    // SAFETY: the kernel reads a live array of iovecs. The caller owns the pages.
    let done = unsafe { call(general::__NR_process_madvise, args) };
    done == Ok(ranges.iter().map(|range| range.bytes).sum())
}

/// The calling thread's id.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: the call takes no argument.
    unsafe { call(general::__NR_gettid, [0; 6]) }.map_or(0, |id| id as u32)
}

/// Lets another thread run.
pub(crate) fn yield_now() {
    // SAFETY: the call takes no argument.
    let _ = unsafe { call(general::__NR_sched_yield, [0; 6]) };
}

/// The limit of the address space (`RLIMIT_AS`) in bytes; `None` if there is none.
pub(crate) fn address_space_limit() -> Option<usize> {
    let mut limit = [u64::MAX; 2];
    let (resource, into) = (general::RLIMIT_AS as usize, limit.as_mut_ptr().expose_provenance());
    // SAFETY: the call writes two 64-bit words, the soft and the hard limit, to a live array.
    unsafe { call(general::__NR_prlimit64, [0, resource, 0, into, 0, 0]) }.ok()?;
    usize::try_from(limit[0]).ok().filter(|&limit| limit != usize::MAX)
}
