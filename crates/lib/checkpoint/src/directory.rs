//! Saves in a directory, each of which contains what changed since the one before.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::file::NewFile;
use crate::format::Identity;
use crate::saved::{Saved, SavedFile};
use crate::sink::{Sink, SinkWriter};

/// A directory of saves, one file each: `0000000001.save` and so on. A save continues the one before,
/// or contains all pages.
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
        directory.numbers()?;
        Ok(directory)
    }

    /// The last save, with all that it continues.
    ///
    /// # Errors
    /// [`Error::NoSave`], [`Error::Damaged`], [`Error::MissingParent`] and [`Error::Unsupported`].
    pub fn last(&self) -> Result<Saved> {
        let numbers = self.numbers()?;
        let Some(&last) = numbers.last() else { return Err(Error::NoSave(self.path.to_path_buf())) };
        let mut chain = vec![SavedFile::open(self.file(last))?];
        let mut earlier = numbers.iter().rev().skip(1);
        while let Some(parent) = chain.last().map(|file| file.manifest.parent).filter(Identity::is_some) {
            let mut opened = earlier.by_ref().filter_map(|&number| SavedFile::open(self.file(number)).ok());
            let Some(found) = opened.find(|file| file.identity == parent) else {
                let path = chain.pop().map_or_else(PathBuf::new, |file| file.path);
                return Err(Error::MissingParent { path, parent: parent.id });
            };
            chain.push(found);
        }
        chain.reverse();
        Saved::of(chain)
    }

    /// Deletes the saves that the last `saves` ones do not need. Returns how many were deleted.
    ///
    /// # Errors
    /// If a save cannot be read or deleted. Nothing that the last save needs is deleted.
    pub fn keep(&self, saves: usize) -> Result<usize> {
        let numbers = self.numbers()?;
        let kept = &numbers[numbers.len().saturating_sub(saves.max(1))..];
        let Some(&first) = kept.first() else { return Ok(0) };
        // The chain of the earliest save that is kept begins at a complete save.
        let mut begin = first;
        for &number in numbers.iter().rev().skip_while(|&&number| number > first) {
            begin = number;
            if !SavedFile::open(self.file(number))?.manifest.parent.is_some() {
                break;
            }
        }
        let unneeded: Vec<_> = numbers.iter().take_while(|&&number| number < begin).collect();
        for &&number in &unneeded {
            let path = self.file(number);
            fs::remove_file(&path).map_err(Error::file("delete", &path))?;
        }
        Ok(unneeded.len())
    }

    fn file(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:010}.save"))
    }

    /// The numbers of the saves, in order.
    fn numbers(&self) -> Result<Vec<u64>> {
        let entries = fs::read_dir(&self.path).map_err(Error::file("read", &self.path))?;
        let number = |name: &str| name.strip_suffix(".save")?.parse::<u64>().ok();
        let mut numbers = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Error::file("read", &self.path))?;
            numbers.extend(entry.file_name().to_str().and_then(number));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

impl Sink for Directory {
    fn begin(&self) -> Result<Box<dyn SinkWriter>> {
        let next = self.numbers()?.last().map_or(1, |last| last + 1);
        Ok(Box::new(NewFile::create(&self.file(next))?))
    }

    fn continued(&self) -> Result<Option<(u64, u64)>> {
        let Some(&last) = self.numbers()?.last() else { return Ok(None) };
        let last = SavedFile::open(self.file(last)).ok();
        Ok(last.map(|file| (file.identity.id, file.identity.digest)))
    }
}
