//! Makes a file that has its name only once it is whole and durable.
//!
//! ```text
//! fieldstone-store-PID-RANDOM.new: created exclusively, locked ─→ written, synced ─→ renamed ─→ directory synced
//! ```
//! Invariants: the rename replaces no file. No other thread or process has the temporary file: its name is
//! random and it is created exclusively. The lock (flock(2)) ends with its process, so a temporary file
//! without a lock is abandoned, and the next new file in the same directory removes it.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

/// The names of temporary files. They do not contain the name of the new file, which may have 255 bytes.
const PREFIX: &str = "fieldstone-store-";
const SUFFIX: &str = ".new";
/// Attempts to find an unused name.
const ATTEMPTS: usize = 16;

/// A file to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewFile<'a> {
    pub(crate) path: &'a Path,
    /// Its permissions, from which the file mode creation mask (umask) removes some.
    pub(crate) mode: u32,
    /// Whether the file that is returned is locked like an open store, so that no one else can open it.
    pub(crate) is_locked: bool,
}

impl NewFile<'_> {
    /// Makes the file with the contents that `write` gives it.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if there is a file of this name, and those of `write`. No file stays then.
    pub(crate) fn make(self, write: impl FnOnce(&File) -> Result<()>) -> Result<File> {
        let failed = |error: io::Error| Error::making(self.path, "make the file", &error);
        // Without this, all contents would be written before the rename fails.
        if fs::symlink_metadata(self.path).is_ok() {
            return Err(exists(self.path));
        }
        let directory = directory(self.path);
        remove_abandoned(directory);
        let (file, temporary) =
            create_temporary(directory, self.mode).map_err(|error| Error::creating(self.path, directory, &error))?;
        write(&file)?;
        file.sync_all().map_err(failed)?;
        rename(&temporary.0, self.path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => exists(self.path),
            _ => failed(error),
        })?;
        if !self.is_locked {
            // Where files cannot be locked, there is no lock to release.
            let _ = file.unlock();
        }
        drop(temporary);
        sync_directory(directory).map_err(failed)?;
        Ok(file)
    }
}

fn exists(path: &Path) -> Error {
    Error::new(ErrorKind::Exists, path, "the file exists").with_remedy("another name, or move the file away")
}

/// The directory of a file.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The name of a temporary file, which is removed when this is dropped. After a rename nothing has this name.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Creates a temporary file and locks it.
fn create_temporary(directory: &Path, mode: u32) -> io::Result<(File, Temporary)> {
    let mut failed = Errno::EXIST.into();
    for attempt in 0..ATTEMPTS {
        let (process, random) = (std::process::id(), RandomState::new().hash_one(attempt));
        let path = directory.join(format!("{PREFIX}{process}-{random:016x}{SUFFIX}"));
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(mode).custom_flags(flags(OFlags::NOFOLLOW));
        let file = match options.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                failed = error;
                continue;
            }
            Err(error) => return Err(error),
        };
        let temporary = Temporary(path);
        // Without a lock the file still works: other threads and processes remove only files that they can lock.
        let _ = file.lock();
        // Another process may have removed it before it was locked.
        if file.metadata()?.nlink() > 0 {
            return Ok((file, temporary));
        }
    }
    Err(failed)
}

const fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

/// Renames a file, unless there is one of the new name.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] then, and those of the calls.
fn rename(old: &Path, new: &Path) -> io::Result<()> {
    match renameat_with(CWD, old, CWD, new, RenameFlags::NOREPLACE) {
        // The file system or the kernel cannot rename without replacing.
        Err(Errno::INVAL | Errno::NOSYS) => link(old, new),
        renamed => Ok(renamed?),
    }
}

/// Gives a file a second name, unless there is a file of that name. The caller removes the first one.
fn link(old: &Path, new: &Path) -> io::Result<()> {
    fs::hard_link(old, new)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    let directory = rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::fsync(directory)?)
}

/// Removes the temporary files of processes that have ended.
fn remove_abandoned(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let is_temporary = entry.file_name().to_str().is_some_and(is_temporary_name);
        if is_temporary && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            remove_unlocked(&entry.path());
        }
    }
}

fn is_temporary_name(name: &str) -> bool {
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)?.split_once('-'));
    parts.is_some_and(|(process, random)| {
        let is_number = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
        is_number && random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Removes a file, unless a thread or process has locked it.
fn remove_unlocked(path: &Path) {
    let options = flags(OFlags::NOFOLLOW | OFlags::NONBLOCK);
    let Ok(file) = File::options().read(true).custom_flags(options).open(path) else { return };
    if file.try_lock().is_ok() {
        // The lock is held until the name is gone: see `create_temporary`.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    fn make(path: &Path, contents: &str) -> Result<File> {
        let new = NewFile { path, mode: 0o666, is_locked: false };
        new.make(|file| io::Write::write_all(&mut &*file, contents.as_bytes()).map_err(|_| exists(path)))
    }

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn one_of_several_threads_makes_a_file() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let (path, start) = (folder.path().join(round.to_string()), Barrier::new(4));
            let made = std::thread::scope(|scope| {
                let threads = ["0", "1", "2", "3"].map(|number| {
                    let (path, start) = (&path, &start);
                    scope.spawn(move || {
                        start.wait();
                        make(path, &number.repeat(10_000)).map(|_| number).map_err(|error| error.kind())
                    })
                });
                threads.map(|thread| thread.join().unwrap())
            });
            assert!(made.iter().flat_map(|made| made.err()).all(|kind| kind == ErrorKind::Exists), "{made:?}");
            let made: Vec<&str> = made.into_iter().flatten().collect();
            assert!(made.len() == 1 && fs::read_to_string(&path).unwrap() == made[0].repeat(10_000), "{made:?}");
        }
        assert_eq!(names(folder.path()).len(), 20, "temporary files stay");
    }

    #[test]
    fn a_temporary_file_is_removed_if_and_only_if_its_process_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (locked, temporary) = create_temporary(folder.path(), 0o600).unwrap();
        let abandoned = folder.path().join("fieldstone-store-1-0123456789abcdef.new");
        let others = ["fieldstone-store-1.new", "fieldstone-store-x-0123456789abcdef.new", "a.store.1.new"];
        fs::write(&abandoned, "half").unwrap();
        others.iter().for_each(|name| fs::write(folder.path().join(name), "other").unwrap());
        make(&folder.path().join("new"), "whole").unwrap();
        assert!(!abandoned.exists() && temporary.0.exists());
        assert!(others.iter().all(|name| folder.path().join(name).exists()));
        drop(locked);
        make(&folder.path().join("newer"), "whole").unwrap();
        assert!(!temporary.0.exists());
    }

    #[test]
    fn a_file_is_not_replaced_without_the_flag_of_the_rename_either() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new, other] = ["old", "new", "other"].map(|name| folder.path().join(name));
        fs::write(&old, "old").unwrap();
        fs::write(&new, "new").unwrap();
        assert_eq!(link(&old, &new).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        link(&old, &other).unwrap();
        assert_eq!([&new, &other].map(|path| fs::read_to_string(path).unwrap()), ["new", "old"]);
    }

    #[test]
    fn a_failed_write_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let new = NewFile { path: &path, mode: 0o666, is_locked: true };
        assert!(new.make(|_| Err(exists(&path))).is_err());
        assert_eq!(names(folder.path()), [""; 0]);
    }
}
