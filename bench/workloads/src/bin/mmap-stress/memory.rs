//! The C library's memory calls with plain addresses and errno as a value. Nothing here knows the
//! expected results.

#![allow(unsafe_code, reason = "the calls under test map, move and unmap memory")]

use crate::model::PAGE;
use std::{fmt, os::fd::RawFd};

/// An error number of the C library.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// The permission to make the calls. Its methods are safe because of the guarantee given to
/// [`Self::claim`].
#[derive(Clone, Copy)]
pub(crate) struct MemoryCalls(());

/// The arguments of one mmap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) protection: i32,
    pub(crate) flags: i32,
    /// A file and an offset in it, for a mapping of a file.
    pub(crate) file: Option<(RawFd, i64)>,
}

fn last_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn check_status(result: i32) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

impl MemoryCalls {
    /// # Safety
    /// Every address passed to a method that writes, unmaps, moves or protects must come from
    /// [`Self::map`], [`Self::remap`] or [`Self::sbrk`] of this process. It must not have been
    /// released since, unless it is known to be unmapped. So no Rust object is at such an address.
    pub(crate) const unsafe fn claim() -> Self {
        Self(())
    }

    /// mmap.
    pub(crate) fn map(self, request: Request) -> Result<usize, Errno> {
        let Request { address, bytes, protection, flags, file } = request;
        let (fd, offset) = file.unwrap_or((-1, 0));
        // SAFETY: by the guarantee of `claim`, a fixed address is memory of the model; without
        // MAP_FIXED no existing memory changes.
        let result = unsafe { libc::mmap(address as *mut libc::c_void, bytes, protection, flags, fd, offset) };
        if result == libc::MAP_FAILED { Err(last_error()) } else { Ok(result as usize) }
    }

    /// munmap.
    pub(crate) fn unmap(self, address: usize, bytes: usize) -> Result<(), Errno> {
        // SAFETY: by the guarantee of `claim`, the range is memory of the model or unmapped.
        check_status(unsafe { libc::munmap(address as *mut libc::c_void, bytes) })
    }

    /// mprotect.
    pub(crate) fn protect(self, address: usize, bytes: usize, protection: i32) -> Result<(), Errno> {
        // SAFETY: by the guarantee of `claim`, the range is memory of the model or unmapped.
        check_status(unsafe { libc::mprotect(address as *mut libc::c_void, bytes, protection) })
    }

    /// madvise.
    pub(crate) fn advise(self, address: usize, bytes: usize, advice: i32) -> Result<(), Errno> {
        // SAFETY: by the guarantee of `claim`, the range is memory of the model or unmapped, so
        // advice drops only its contents.
        check_status(unsafe { libc::madvise(address as *mut libc::c_void, bytes, advice) })
    }

    /// mremap; `to` is used only with MREMAP_FIXED.
    pub(crate) fn remap(self, old: usize, bytes: usize, new: usize, flags: i32, to: usize) -> Result<usize, Errno> {
        // SAFETY: by the guarantee of `claim`, the old range, and the target with MREMAP_FIXED, are
        // memory of the model.
        let result = unsafe { libc::mremap(old as *mut libc::c_void, bytes, new, flags, to as *mut libc::c_void) };
        if result == libc::MAP_FAILED { Err(last_error()) } else { Ok(result as usize) }
    }

    /// mincore of one page, without its result.
    pub(crate) fn resident(self, address: usize) -> Result<(), Errno> {
        let mut is_resident = 0_u8;
        // SAFETY: the kernel writes one byte to `is_resident`, for one page; it does not change the
        // range.
        check_status(unsafe { libc::mincore(address as *mut libc::c_void, PAGE, &raw mut is_resident) })
    }

    /// msync of one page, asynchronous.
    pub(crate) fn sync(self, address: usize) -> Result<(), Errno> {
        // SAFETY: msync with MS_ASYNC changes no contents.
        check_status(unsafe { libc::msync(address as *mut libc::c_void, PAGE, libc::MS_ASYNC) })
    }

    /// sbrk; returns the previous break.
    pub(crate) fn sbrk(self, delta: isize) -> Result<usize, Errno> {
        // SAFETY: the caller lowers the break only over memory of the same step, before malloc can
        // take memory above it.
        let result = unsafe { libc::sbrk(delta) };
        if result as isize == -1 { Err(last_error()) } else { Ok(result as usize) }
    }

    /// pread from `file` into memory, so the kernel writes the memory.
    pub(crate) fn read_file(self, file: RawFd, address: usize, bytes: usize, at: i64) -> Result<usize, Errno> {
        // SAFETY: by the guarantee of `claim`, the range is memory of the model; the kernel returns
        // EFAULT where it is not writable.
        usize::try_from(unsafe { libc::pread(file, address as *mut libc::c_void, bytes, at) }).map_err(|_| last_error())
    }

    /// Copies the page at `address`, which is readable in the model. If it is not, the fault
    /// handler ends the process.
    pub(crate) fn read(self, address: usize) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        // SAFETY: by the guarantee of `claim`, the source is a page of the model; `page` has the
        // same length.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, page.as_mut_ptr(), PAGE) };
        page
    }

    /// Writes `bytes` at `address`, which is writable in the model.
    pub(crate) fn write(self, address: usize, bytes: &[u8]) {
        // SAFETY: by the guarantee of `claim`, the range is memory of the model, so no Rust object
        // is there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }
}
