//! Saves in one file, each of which replaces the one before.

use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::saved::{Saved, SavedFile};
use crate::sink::{Sink, SinkWriter};

/// Behind the name of a file that is not whole yet, before the number of its process.
const NEW: &str = ".new-";
/// Bytes that are written at one time.
const BUFFER: usize = 1 << 20;

/// One file, which always contains the last whole save.
///
/// A save is written to a new file beside it, synced, and renamed; then the directory is synced.
#[derive(Clone, Debug)]
pub struct File {
    path: Arc<Path>,
}

impl File {
    /// The file at `path`, which need not exist yet.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into().into() }
    }

    /// Its save.
    ///
    /// # Errors
    /// [`Error::NoSave`] without one, [`Error::Damaged`] and [`Error::Unsupported`].
    pub fn last(&self) -> Result<Saved> {
        if !self.path.exists() {
            return Err(Error::NoSave(self.path.to_path_buf()));
        }
        Saved::of(vec![SavedFile::open(self.path.to_path_buf())?])
    }
}

impl Sink for File {
    fn begin(&self) -> Result<Box<dyn SinkWriter>> {
        Ok(Box::new(NewFile::create(&self.path)?))
    }

    /// A file holds one save, so each is complete.
    fn continued(&self) -> Result<Option<(u64, u64)>> {
        Ok(None)
    }
}

/// A file that gets its name when it is whole and durable.
pub(crate) struct NewFile {
    file: BufWriter<fs::File>,
    /// Its name until then.
    new: PathBuf,
    path: PathBuf,
    is_finished: bool,
}

impl NewFile {
    /// # Errors
    /// If no file can be made in the directory.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        remove_of_ended(directory_of(path), &name);
        let new = path.with_file_name(format!("{name}{NEW}{}", std::process::id()));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&new);
        let file = BufWriter::with_capacity(BUFFER, file.map_err(Error::file("create", &new))?);
        Ok(Self { file, new, path: path.to_owned(), is_finished: false })
    }
}

impl SinkWriter for NewFile {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::file("write", &self.new))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.file.flush().map_err(Error::file("write", &self.new))?;
        self.file.get_ref().sync_all().map_err(Error::file("sync", &self.new))?;
        fs::rename(&self.new, &self.path).map_err(Error::file("rename", &self.new))?;
        self.is_finished = true;
        sync_directory(&self.path)
    }
}

/// Removes files that processes have begun and not finished, and that have ended. What cannot be removed
/// stays.
fn remove_of_ended(directory: &Path, name: &str) {
    // In a directory of saves each save has another number.
    let is_numbered = |name: &str| name.strip_suffix(".save").is_some_and(|number| number.parse::<u64>().is_ok());
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let Some((stem, process)) = found.to_str().and_then(|found| found.rsplit_once(NEW)) else { continue };
        let is_alike = stem == name || is_numbered(stem) && is_numbered(name);
        let has_ended = process.parse::<u32>().is_ok_and(|process| !Path::new(&format!("/proc/{process}")).exists());
        if is_alike && has_ended {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the names in the directory of a file durable.
fn sync_directory(path: &Path) -> Result<()> {
    let parent = directory_of(path);
    let synced = fs::File::open(parent).and_then(|directory| directory.sync_all());
    synced.map_err(Error::file("sync", parent))
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = fs::remove_file(&self.new);
        }
    }
}
