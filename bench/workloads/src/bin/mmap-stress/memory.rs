//! The C library's memory calls by number and address, errno as a value. Nothing here knows what the answer should be.

#![allow(unsafe_code, reason = "the calls under test make, move and unmake memory")]

use crate::model::PAGE;
use std::{fmt, os::fd::RawFd};

/// An errno.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// The right to make the calls. Its methods are safe to call because of what its maker promised.
#[derive(Clone, Copy)]
pub(crate) struct Memory(());

/// What one mmap asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) protection: i32,
    pub(crate) flags: i32,
    /// A file and an offset in it, for a mapping of a file.
    pub(crate) file: Option<(RawFd, i64)>,
}

fn last() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn done(result: i32) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(last()) }
}

impl Memory {
    /// # Safety
    /// Every address later given to a method that writes, unmaps, moves or protects must have come from a [`Self::map`],
    /// [`Self::remap`] or [`Self::sbrk`] of this process, and not be given back since (or be known to be unmapped); so no
    /// Rust object lies there.
    pub(crate) const unsafe fn claim() -> Self {
        Self(())
    }

    /// mmap.
    pub(crate) fn map(self, request: Request) -> Result<usize, Errno> {
        let Request { address, bytes, protection, flags, file } = request;
        let (fd, offset) = file.unwrap_or((-1, 0));
        // SAFETY: by `claim`: a fixed address is the model's own memory; without MAP_FIXED nothing existing is touched.
        let result = unsafe { libc::mmap(address as *mut libc::c_void, bytes, protection, flags, fd, offset) };
        if result == libc::MAP_FAILED { Err(last()) } else { Ok(result as usize) }
    }

    /// munmap.
    pub(crate) fn unmap(self, address: usize, bytes: usize) -> Result<(), Errno> {
        // SAFETY: by `claim`: the range is the model's own or unmapped.
        done(unsafe { libc::munmap(address as *mut libc::c_void, bytes) })
    }

    /// mprotect.
    pub(crate) fn protect(self, address: usize, bytes: usize, protection: i32) -> Result<(), Errno> {
        // SAFETY: by `claim`: the range is the model's own or unmapped.
        done(unsafe { libc::mprotect(address as *mut libc::c_void, bytes, protection) })
    }

    /// madvise.
    pub(crate) fn advise(self, address: usize, bytes: usize, advice: i32) -> Result<(), Errno> {
        // SAFETY: by `claim`: the range is the model's own or unmapped, so advice that drops contents drops only the model's.
        done(unsafe { libc::madvise(address as *mut libc::c_void, bytes, advice) })
    }

    /// mremap; `to` is used with MREMAP_FIXED.
    pub(crate) fn remap(self, old: usize, bytes: usize, new: usize, flags: i32, to: usize) -> Result<usize, Errno> {
        // SAFETY: by `claim`: the old range, and the target with MREMAP_FIXED, are the model's own.
        let result = unsafe { libc::mremap(old as *mut libc::c_void, bytes, new, flags, to as *mut libc::c_void) };
        if result == libc::MAP_FAILED { Err(last()) } else { Ok(result as usize) }
    }

    /// mincore of one page; the answer itself is dropped.
    pub(crate) fn resident(self, address: usize) -> Result<(), Errno> {
        let mut answer = 0_u8;
        // SAFETY: one page is asked for and one byte written; the range itself is only looked up.
        done(unsafe { libc::mincore(address as *mut libc::c_void, PAGE, &raw mut answer) })
    }

    /// msync of one page, asynchronous.
    pub(crate) fn sync(self, address: usize) -> Result<(), Errno> {
        // SAFETY: msync changes no contents.
        done(unsafe { libc::msync(address as *mut libc::c_void, PAGE, libc::MS_ASYNC) })
    }

    /// sbrk; the break before.
    pub(crate) fn sbrk(self, delta: isize) -> Result<usize, Errno> {
        // SAFETY: the caller gives back only what it took in the same step, before malloc could take memory above it.
        let result = unsafe { libc::sbrk(delta) };
        if result as isize == -1 { Err(last()) } else { Ok(result as usize) }
    }

    /// pread from `file` into memory: the kernel writes it.
    pub(crate) fn read_file(self, file: RawFd, address: usize, bytes: usize, at: i64) -> Result<usize, Errno> {
        // SAFETY: by `claim`: the range is the model's own; where it is not writable the kernel answers EFAULT.
        usize::try_from(unsafe { libc::pread(file, address as *mut libc::c_void, bytes, at) }).map_err(|_| last())
    }

    /// A copy of the page at `address`, which the model says is readable; where it is not, the fault handler ends the process.
    pub(crate) fn read(self, address: usize) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        // SAFETY: by `claim` the page is the model's own; `page` is as long.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, page.as_mut_ptr(), PAGE) };
        page
    }

    /// Writes `bytes` at `address`, which the model says is writable.
    pub(crate) fn write(self, address: usize, bytes: &[u8]) {
        // SAFETY: by `claim` the range is the model's own, so no Rust object lies there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }
}
