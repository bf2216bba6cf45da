//! Saves in a directory, each of which contains what changed since the one before.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::file::{NewFile, open};
use crate::saved::{Part, Saved};
use crate::series::{self, Series, name_of};
use crate::sink::{Sink, SinkWriter};

/// A directory of saves, one file each: `0000000001.save` and so on. A save continues the one before,
/// or contains all pages.
///
/// Two processes may save to one directory. If they do so at the same time, one of the saves fails.
#[derive(Clone, Debug)]
pub struct Directory {
    path: Arc<Path>,
}

impl Directory {
    /// The directory at `path`, which is created if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created or read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path: PathBuf = path.into();
        fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        let directory = Self { path: path.into() };
        directory.names()?;
        Ok(directory)
    }

    /// The last save, with all that it continues.
    ///
    /// # Errors
    /// [`Error::NoSave`], [`Error::Damaged`], [`Error::MissingParent`] and [`Error::Unsupported`].
    pub fn last(&self) -> Result<Saved> {
        series::last(self)
    }

    /// Deletes the saves that the last `saves` ones do not need. Returns how many were deleted.
    ///
    /// The earliest save that is kept is merged with those that it continues, if the increments among them
    /// have reached half the size of the complete one. It is restored as before then. What was restored
    /// lazily from this directory stays readable.
    ///
    /// # Errors
    /// If a save cannot be read, written or deleted. Nothing that the last save needs is deleted.
    pub fn keep(&self, saves: usize) -> Result<usize> {
        series::keep(self, saves)
    }

    fn file(&self, number: u64) -> PathBuf {
        self.path.join(name_of(number))
    }
}

impl Series for Directory {
    fn names(&self) -> Result<Vec<String>> {
        let failed = || Error::file("read", &self.path);
        let entries = fs::read_dir(&self.path).map_err(failed())?;
        let name = |entry: std::io::Result<fs::DirEntry>| Ok(entry.map_err(failed())?.file_name().into_string().ok());
        entries.filter_map(|entry| name(entry).transpose()).collect()
    }

    fn open(&self, number: u64) -> Result<Part> {
        open(self.file(number))
    }

    fn create(&self, number: u64, id: u64, replaces: bool) -> Result<Box<dyn SinkWriter>> {
        Ok(Box::new(NewFile::create(&self.file(number), id, replaces)?))
    }

    fn delete_before(&self, number: u64) -> Result<()> {
        for path in self.numbers()?.into_iter().take_while(|&other| other < number).map(|other| self.file(other)) {
            match fs::remove_file(&path) {
                // Another process has deleted it.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                result => result.map_err(Error::file("delete", &path))?,
            }
        }
        Ok(())
    }

    fn no_save(&self) -> Error {
        Error::NoSave(self.path.to_path_buf())
    }
}

impl Sink for Directory {
    fn begin(&self, id: u64) -> Result<Box<dyn SinkWriter>> {
        series::begin(self, id)
    }

    fn continued(&self) -> Result<Option<(u64, u64)>> {
        series::continued(self)
    }
}
