//! The store `file`: pages in a file without a name, which ends with the process.
//!
//! ```text
//! file    | page 0 | page 1 | ...        a key is the number of a page
//! used    a bit for each page of the file
//! ```
//! Pages that leave memory together get adjacent places, so that they are read together.

#![allow(unsafe_code, reason = "takes a descriptor, and a table of the arena")]

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general;

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::kernel::{self, Descriptor, PAGE};
use crate::lock::Lock;
use crate::store::{MAX_KEY, Page, Store, StoreError};

const WORDS: usize = (MAX_KEY as usize + 1) / 64;

/// Pages in an unnamed file of a directory.
#[derive(Debug)]
pub struct TempFile {
    file: Descriptor,
    used: &'static [AtomicU64; WORDS],
    /// Where the search for free pages begins.
    next: Lock<usize>,
    pages: AtomicU64,
    /// The memory of a store that a program made; unmapped last.
    _arena: Option<Arena>,
}

impl TempFile {
    /// Opens a file in `directory`. The descriptor belongs to the calling thread's table.
    pub(crate) fn open(arena: &Arena, directory: &CStr) -> Result<Self> {
        let flags = general::O_TMPFILE | general::O_RDWR | general::O_CLOEXEC;
        let file = kernel::open(directory, flags).map_err(|errno| Error::Store { store: "file", errno })?;
        // SAFETY: an array of numbers may have any bytes, zeros included.
        let used = unsafe { arena.place() }.ok_or(Error::Full { bytes: arena.range().len() })?;
        Ok(Self { file, used, next: Lock::new(0), pages: AtomicU64::new(0), _arena: None })
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
        let arena = Arena::reserve(WORDS * size_of::<AtomicU64>())?;
        let store = Self::open(&arena, &path)?;
        Ok(Self { _arena: Some(arena), ..store })
    }

    /// A run of at most `wanted` free pages, which are used from now on.
    fn take(&self, wanted: usize) -> Option<(usize, usize)> {
        let mut next = self.next.acquire();
        let is_used = |page: usize| self.used[page / 64].load(Ordering::Relaxed) >> (page % 64) & 1 == 1;
        let start = (*next..=MAX_KEY as usize).chain(0..*next).find(|&page| !is_used(page))?;
        let count = (start..=MAX_KEY as usize).take(wanted).take_while(|&page| !is_used(page)).count();
        for page in start..start + count {
            self.used[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
        self.pages.fetch_add(count as u64, Ordering::Relaxed);
        *next = start + count;
        Some((start, count))
    }

    fn release(&self, page: usize) {
        self.used[page / 64].fetch_and(!(1 << (page % 64)), Ordering::Relaxed);
        self.pages.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Store for TempFile {
    fn name(&self) -> &'static str {
        "file"
    }

    fn put(&self, pages: &[&Page], keys: &mut [u32]) -> core::result::Result<usize, StoreError> {
        let mut done = 0;
        while done < pages.len() {
            let Some((start, count)) = self.take(pages.len() - done) else {
                return if done == 0 { Err(StoreError::Full) } else { Ok(done) };
            };
            for index in 0..count {
                if let Err(errno) = kernel::write_at(&self.file, pages[done], (start + index) * PAGE) {
                    (start + index..start + count).for_each(|page| self.release(page));
                    return if done == 0 { Err(StoreError::Failed(errno)) } else { Ok(done) };
                }
                keys[done] = (start + index) as u32;
                done += 1;
            }
        }
        Ok(done)
    }

    fn get(&self, keys: &[u32], pages: &mut [Page]) -> core::result::Result<(), StoreError> {
        for (&key, page) in keys.iter().zip(pages) {
            kernel::read_at(&self.file, page, key as usize * PAGE).map_err(StoreError::Failed)?;
        }
        Ok(())
    }

    fn forget(&self, keys: &[u32]) {
        let mut next = self.next.acquire();
        for &key in keys {
            self.release(key as usize);
            *next = (*next).min(key as usize);
        }
    }

    fn bytes(&self) -> u64 {
        self.pages.load(Ordering::Relaxed) * PAGE as u64
    }
}
