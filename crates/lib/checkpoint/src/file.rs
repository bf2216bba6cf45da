//! Saves in one file, each of which replaces the one before.

use std::fs::{self, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::saved::{Part, Saved, Source};
use crate::series::number_of;
use crate::sink::{Sink, SinkWriter};

/// Behind the name of a file that is not whole yet, before the number of its process and the id of the save.
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
        Saved::of(vec![open(self.path.to_path_buf())?])
    }
}

impl Sink for File {
    fn begin(&self, id: u64) -> Result<Box<dyn SinkWriter>> {
        Ok(Box::new(NewFile::create(&self.path, id, true)?))
    }

    /// A file holds one save, so each is complete.
    fn continued(&self) -> Result<Option<(u64, u64)>> {
        Ok(None)
    }
}

/// Opens a save.
///
/// # Errors
/// If it cannot be read, or is damaged.
pub(crate) fn open(path: PathBuf) -> Result<Part> {
    let file = fs::File::open(&path).map_err(Error::file("open", &path))?;
    let bytes = file.metadata().map_err(Error::file("read", &path))?.len();
    Part::open(Box::new(SavedFile { file, path: path.clone() }), bytes, path)
}

#[derive(Debug)]
struct SavedFile {
    file: fs::File,
    path: PathBuf,
}

impl Source for SavedFile {
    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(Error::file("read", &self.path))
    }
}

/// A file that gets its name when it is whole and durable.
pub(crate) struct NewFile {
    file: BufWriter<fs::File>,
    /// Its name until then.
    new: PathBuf,
    path: PathBuf,
    /// Whether it takes the place of a file that has its name.
    replaces: bool,
    is_finished: bool,
}

impl NewFile {
    /// # Errors
    /// If no file can be made in the directory.
    pub(crate) fn create(path: &Path, id: u64, replaces: bool) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        remove_of_ended(directory_of(path), &name);
        let new = path.with_file_name(format!("{name}{NEW}{}-{id:016x}", std::process::id()));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&new);
        let file = BufWriter::with_capacity(BUFFER, file.map_err(Error::file("create", &new))?);
        Ok(Self { file, new, path: path.to_owned(), replaces, is_finished: false })
    }

    /// Gives the file its name.
    fn rename(&self) -> std::io::Result<()> {
        if !self.replaces {
            match renameat_with(CWD, &self.new, CWD, &self.path, RenameFlags::NOREPLACE) {
                // The file system does not have this call.
                Err(Errno::INVAL | Errno::NOSYS) => {}
                result => return Ok(result?),
            }
        }
        fs::rename(&self.new, &self.path)
    }
}

impl SinkWriter for NewFile {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::file("write", &self.new))
    }

    fn finish(mut self: Box<Self>, manifest: &[u8]) -> Result<()> {
        self.write(manifest)?;
        self.file.flush().map_err(Error::file("write", &self.new))?;
        self.file.get_ref().sync_all().map_err(Error::file("sync", &self.new))?;
        self.rename().map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::Taken(self.path.clone()),
            _ => Error::file("rename", &self.new)(error),
        })?;
        self.is_finished = true;
        sync_directory(&self.path)
    }
}

/// Removes files that processes have begun and not finished, and that have ended. What cannot be removed
/// stays.
fn remove_of_ended(directory: &Path, name: &str) {
    // In a directory of saves each save has another number.
    let is_numbered = |name: &str| number_of(name).is_some();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let Some((stem, owner)) = found.to_str().and_then(|found| found.rsplit_once(NEW)) else { continue };
        let process = owner.split('-').next().unwrap_or_default();
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
