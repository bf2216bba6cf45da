//! The store `file`: pages in a file without a name, which ends with the process.

use core::ffi::CStr;

use linux_raw_sys::general;

use crate::arena::Arena;
use crate::device::{Device, DeviceStore};
use crate::error::{Error, Result};
use crate::kernel::{self, Descriptor, PAGE};
use crate::store::{Page, StoreError};

/// Pages in an unnamed file of a directory.
pub type TempFile = DeviceStore<UnnamedFile>;

/// A file without a name. A page's place is its number times the page size.
#[derive(Debug)]
pub struct UnnamedFile(Descriptor);

impl TempFile {
    /// Opens a file in `directory`. The descriptor belongs to the calling thread's table.
    pub(crate) fn open(arena: &Arena, directory: &CStr) -> Result<Self> {
        Self::in_arena(arena, UnnamedFile::open(directory)?)
    }

    /// Opens a file in `directory`. It has no name, and ends with the store or the process.
    ///
    /// # Errors
    /// If the directory does not exist, may not be written, or is of a file system without such
    /// files (`O_TMPFILE`).
    #[cfg(feature = "std")]
    pub fn in_dir(directory: impl AsRef<std::path::Path>) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let refused = Error::Store { store: "file", errno: kernel::ENOENT };
        let path = std::ffi::CString::new(directory.as_ref().as_os_str().as_bytes()).map_err(|_| refused)?;
        Self::new(UnnamedFile::open(&path)?)
    }
}

impl UnnamedFile {
    fn open(directory: &CStr) -> Result<Self> {
        let flags = general::O_TMPFILE | general::O_RDWR | general::O_CLOEXEC;
        kernel::open(directory, flags).map(Self).map_err(|errno| Error::Store { store: "file", errno })
    }
}

impl Device for UnnamedFile {
    fn name(&self) -> &'static str {
        "file"
    }

    fn write(&self, first: u32, pages: &[&Page]) -> core::result::Result<usize, StoreError> {
        let mut done = 0;
        while done < pages.len() {
            match kernel::write_pages_at(&self.0, &pages[done..], (first as usize + done) * PAGE) {
                Ok(count) => done += count,
                Err(errno) if done == 0 => return Err(StoreError::Failed(errno)),
                Err(_) => return Ok(done),
            }
        }
        Ok(done)
    }

    fn read(&self, numbers: &[u32], pages: &mut [Page]) -> core::result::Result<(), StoreError> {
        let mut rest = pages;
        for run in numbers.chunk_by(|&one, &next| next == one + 1) {
            let (pages, others) = rest.split_at_mut(run.len());
            let at = run[0] as usize * PAGE;
            kernel::read_at(&self.0, pages.as_flattened_mut(), at).map_err(StoreError::Failed)?;
            rest = others;
        }
        Ok(())
    }
}
