//! The file of a store, opened to read only: for checks, statistics and dumps.
//!
//! ```text
//! file ─→ header ─→ log ─→ pages that the log changes, in memory
//! page ─→ one of those, verified by the check in the log, or else the page of the file
//! ```
//! Invariants: nothing is written; a shared lock (flock(2)) keeps stores from opening the file.
//! Cost: the log is read, and the pages that it changes stay in memory.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::extent::Extent;
use crate::finding::{Finding, Lost};
use crate::frames::MOST_PAGES;
use crate::header::Header;
use crate::log::BLOCK;
use crate::page::{MAP, PAGE, Page, is_sealed, kind};
use crate::recovery::{Replayed, absolute, header_copies, read_header, read_log};
use crate::space::{GROUP, is_used};
use crate::storage::{DiskFile, Storage, Unreadable, read_extent, read_page};

/// A file of a store that no [`crate::Store`] has open. It is read and never changed; commits that
/// are only in its log are read from there. Stores cannot open the file until this is dropped.
#[derive(Debug)]
pub struct StoreFile {
    pub(crate) path: PathBuf,
    pub(crate) storage: Box<dyn Storage>,
    pub(crate) header: Header,
    pub(crate) log: Replayed,
    /// What is wrong with the header and the log.
    pub(crate) findings: Vec<Finding>,
}

impl StoreFile {
    /// Opens a file and reads its log.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if a store has it open, [`ErrorKind::Corrupt`] without a header that can
    /// be used, [`ErrorKind::Version`] and [`ErrorKind::Io`] (also if it is no regular file). A
    /// damaged log is no error: see [`StoreFile::check`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = absolute(path.as_ref())?;
        let file = open_to_read(&path)?;
        Self::read(path, Box::new(DiskFile::to_read(file)))
    }

    /// Reads the header and the log.
    pub(crate) fn read(path: PathBuf, storage: Box<dyn Storage>) -> Result<Self> {
        let header = read_header(&path, &*storage)?;
        let mut findings = Vec::from_iter(copy_finding(&*storage, &header));
        let (log, damage) = read_log(&path, &*storage, &header)?;
        findings.extend(damage);
        Ok(Self { path, storage, header, log, findings })
    }

    /// Pages of the file after recovery.
    pub(crate) fn end(&self) -> u32 {
        self.log.end.min(MOST_PAGES)
    }

    /// Whether a page of this number can belong to a tree.
    pub(crate) fn is_node_place(&self, number: u32) -> bool {
        let first = self.header.first();
        number > first && number < self.end() && !(number - first).is_multiple_of(GROUP)
    }

    /// Reads a page as recovery leaves it. Its contents are not verified further. The error is what
    /// is wrong.
    pub(crate) fn page(&self, number: u32, page: &mut Page) -> std::result::Result<(), String> {
        if let Some(error) = self.log.unreadable.get(&number) {
            return Err(cannot_read(error));
        }
        if let Some(changed) = self.log.pages.get(&number) {
            *page = **changed;
            let is_right = is_sealed(page, number, self.header.store);
            return if is_right { Ok(()) } else { Err("its check is not the one that the log has for it".to_owned()) };
        }
        read_page(&*self.storage, number, self.header.store, page).map_err(what_is_wrong)
    }

    /// Whether an extent is where one can be.
    pub(crate) fn is_extent_place(&self, extent: Extent) -> bool {
        let first = self.header.first();
        extent.is_possible() && extent.start > first && extent.pages().end <= self.end() && {
            let index = (extent.start - first) % GROUP;
            index > 0 && index + extent.pages().len() as u32 <= GROUP
        }
    }

    /// Reads a large value. The error is what is wrong.
    pub(crate) fn extent(&self, extent: Extent) -> std::result::Result<Vec<u8>, String> {
        let mut contents = vec![0; extent.bytes as usize];
        read_extent(&*self.storage, extent, &mut contents).map_err(what_is_wrong)?;
        Ok(contents)
    }

    /// Reads the map of a group: its first page.
    pub(crate) fn map(&self, number: u32, page: &mut Page) -> std::result::Result<(), String> {
        self.page(number, page)?;
        if kind(page) == MAP && is_used(page, 0) {
            return Ok(());
        }
        Err("it is not a map of pages in use".to_owned())
    }

    /// The maps, by their page numbers.
    pub(crate) fn maps(&self) -> impl Iterator<Item = u32> + use<> {
        (self.header.first()..self.end()).step_by(GROUP as usize)
    }
}

fn what_is_wrong(error: Unreadable) -> String {
    match error {
        Unreadable::Io(error) => cannot_read(&error),
        Unreadable::Wrong(what) => what.to_owned(),
    }
}

fn cannot_read(error: &io::Error) -> String {
    format!("it cannot be read: {error}")
}

/// Opens a file to read, with a lock that others who read can have as well.
fn open_to_read(path: &Path) -> Result<File> {
    let failed = |error: io::Error| Error::opening(path, &error);
    // A pipe would wait for its writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Error::new(ErrorKind::Io, path, "it is not a regular file").with_remedy("the file of a store"));
    }
    let file = File::open(path).map_err(failed)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::new(ErrorKind::Busy, path, "a program has the store open")
            .with_remedy("stop the program that has it open, or use a copy made by Store::backup")),
        Err(TryLockError::Error(error)) => Err(Error::io(path, "lock the store", &error)),
    }
}

/// What is wrong with the copy of the header that is not in use.
fn copy_finding(storage: &dyn Storage, header: &Header) -> Option<Finding> {
    let page = (header.epoch + 1) % 2;
    let what = match header_copies(storage)[page as usize] {
        Ok(other) if (other.store, other.log_pages) == (header.store, header.log_pages) => return None,
        Ok(_) => "this copy of the header is of another store",
        // A new store has one copy only.
        Err(_) if header.epoch == 1 && is_zero(storage, page * PAGE as u64) => return None,
        Err(_) => "this copy of the header is damaged; the other copy is whole, and the next opening writes this one",
    };
    Some(Finding { offset: page * PAGE as u64, what: what.to_owned(), lost: Lost::Nothing })
}

fn is_zero(storage: &dyn Storage, offset: u64) -> bool {
    let mut bytes = [0; BLOCK];
    storage.read(&mut bytes, offset).is_ok() && bytes == [0; BLOCK]
}
