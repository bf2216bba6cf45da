//! Memory from a file: a shared mapping. The kernel writes changed pages back and may drop pages
//! that it can read again.

#![allow(unsafe_code, reason = "mmap, madvise, msync and munmap have no safe form")]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;

use fieldstone_workloads::Error;

use super::pages::{PAGE, Page};

/// A mapping of a file without a name.
pub(super) struct MappedFile {
    start: NonNull<Page>,
    count: usize,
}

impl MappedFile {
    /// Maps `count` pages of a new file at `path`, and removes the path.
    ///
    /// # Errors
    /// [`Error::System`] if the file exists already, cannot be created or mapped.
    pub(super) fn create(path: &Path, count: usize) -> Result<Self, Error> {
        let failed = |call| move |source| Error::System { call, source };
        let file = File::options().read(true).write(true).create_new(true).open(path).map_err(failed("open"))?;
        fs::remove_file(path).map_err(failed("unlink"))?;
        let bytes = count * PAGE;
        file.set_len(bytes as u64).map_err(failed("ftruncate"))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(start.cast::<Page>()).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Ok(Self { start, count }),
            None => Err(Error::system("mmap")),
        }
    }

    /// Announces the next accesses: at random, so that the kernel reads no neighbours of a page, or in
    /// order.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(super) fn expect(&self, is_random: bool) -> Result<(), Error> {
        let advice = if is_random { libc::MADV_RANDOM } else { libc::MADV_SEQUENTIAL };
        // SAFETY: the range is the mapping of this object; the call changes no contents.
        let result = unsafe { libc::madvise(self.start.as_ptr().cast(), self.count * PAGE, advice) };
        if result == 0 { Ok(()) } else { Err(Error::system("madvise")) }
    }

    /// Writes changed pages to the file.
    ///
    /// # Errors
    /// [`Error::System`], for example without space on the disk.
    pub(super) fn write_back(&self) -> Result<(), Error> {
        // SAFETY: the range is the mapping of this object; the call changes no contents.
        let result = unsafe { libc::msync(self.start.as_ptr().cast(), self.count * PAGE, libc::MS_SYNC) };
        if result == 0 { Ok(()) } else { Err(Error::system("msync")) }
    }

    pub(super) fn pages(&self) -> &[Page] {
        // SAFETY: the mapping has `count` pages of atomic integers, for which any bytes are valid,
        // and lives as long as this object. No other process has the file.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping of this object, and no slice of it outlives the object.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.count * PAGE) };
    }
}
