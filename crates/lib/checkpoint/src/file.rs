//! Saves in one file, each of which replaces the one before.

use std::fs::{self, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::saved::{Part, Saved, Source};
use crate::series::number_of;
use crate::sink::{Sink, SinkWriter};

/// Behind the name of a file that is not whole yet, before the number of its process and the id of the save.
/// Whoever writes it has locked it.
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
        match open(self.path.to_path_buf()) {
            Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Err(Error::NoSave(self.path.to_path_buf()))
            }
            opened => Saved::of(vec![opened?]),
        }
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
    directory: fs::File,
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
        let file = create_locked(&new).map_err(Error::file("create", &new))?;
        let directory = fs::File::open(directory_of(path)).map_err(|error| {
            let _ = fs::remove_file(&new);
            Error::file("open", directory_of(path))(error)
        })?;
        let file = BufWriter::with_capacity(BUFFER, file);
        Ok(Self { file, new, path: path.to_owned(), directory, replaces, is_finished: false })
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
        self.directory.sync_all().map_err(Error::file("sync", directory_of(&self.path)))
    }
}

/// Makes a file, and locks it.
fn create_locked(path: &Path) -> std::io::Result<fs::File> {
    loop {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        file.lock()?;
        // Another process may have removed it before it was locked.
        if file.metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Removes files that nobody writes any more, and that are not whole. What cannot be removed stays.
fn remove_of_ended(directory: &Path, name: &str) {
    // In a directory of saves each save has another number.
    let is_numbered = |name: &str| number_of(name).is_some();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let Some((stem, owner)) = found.to_str().and_then(|found| found.rsplit_once(NEW)) else { continue };
        let is_alike = stem == name || is_numbered(stem) && is_numbered(name);
        if !is_alike || !is_owner(owner) {
            continue;
        }
        let is_left = fs::File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if is_left {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether this is the number of a process and the id of a save.
fn is_owner(owner: &str) -> bool {
    owner.split_once('-').is_some_and(|(process, id)| {
        process.parse::<u32>().is_ok() && id.len() == 16 && u64::from_str_radix(id, 16).is_ok()
    })
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = fs::remove_file(&self.new);
        }
    }
}
