//! A database in a file that is closed, dropped from the page cache, and opened again.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result};
use fieldstone_store::Store;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use super::build::build;
use super::contents::Contents;

/// A folder on a disk: the temporary one is often in memory.
const FOLDER: &str = "/var/tmp";

/// A store in a temporary directory, with a database.
#[derive(Debug)]
pub(super) struct Database {
    /// `None` while it is closed.
    store: Option<Store>,
    path: PathBuf,
    /// Dropped last: it removes the file.
    _directory: TempDir,
}

impl Database {
    /// Makes a store with the contents.
    ///
    /// # Errors
    /// If the directory or the store cannot be made.
    pub(super) fn create(contents: &Contents) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("fieldstone-oo7").tempdir_in(FOLDER);
        let directory = directory.with_context(|| format!("cannot create a directory in {FOLDER}"))?;
        let path = directory.path().join("oo7.store");
        let store = Store::open(&path)?;
        build(&store, contents).context("cannot build the database of OO7")?;
        Ok(Self { store: Some(store), path, _directory: directory })
    }

    /// The open store.
    ///
    /// # Errors
    /// If it could not be opened again.
    pub(super) fn store(&self) -> Result<&Store> {
        self.store.as_ref().context("the store is closed")
    }

    /// Closes the store, drops its file from the page cache of the kernel, and opens it again. What the disk
    /// itself caches stays.
    ///
    /// # Errors
    /// If the file cannot be synced or opened.
    pub(super) fn reopen_cold(&mut self) -> Result<()> {
        self.store = None;
        let file = File::open(&self.path).with_context(|| format!("cannot open {}", self.path.display()))?;
        // Only pages without changes are dropped.
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        self.store = Some(Store::open(&self.path)?);
        Ok(())
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// If its size cannot be read.
    pub(super) fn file_bytes(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.path)?.len())
    }

    /// The path of the file.
    #[cfg(test)]
    pub(super) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Closes the store. The file stays until this is dropped.
    #[cfg(test)]
    pub(super) fn close(&mut self) {
        self.store = None;
    }
}
