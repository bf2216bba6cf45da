//! The error type of this crate: each message names the file and the remedy.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A call of the system failed.
    Io,
    /// Another store has the file open.
    Busy,
    /// The file is there already.
    Exists,
    /// The file is damaged, or is no store.
    Corrupt,
    /// The file was written by a later version.
    Version,
    /// The file system or the store has no room.
    Full,
    /// A write to the file failed. The store can be read; it takes writes again after it is opened again.
    Poisoned,
    /// The store was opened before a fork, and this is the child.
    Forked,
    /// The snapshot is older than the versions of pages that are kept in memory.
    TooOld,
    /// A table has other types of keys or values, or an object has another type or other fields.
    Type,
    /// A key or a value is too large, or a size in the options of a store is outside of its range.
    TooLarge,
    /// There is no memory or address space.
    Memory,
    /// There is no such object or root, or no file and none is to be made.
    Absent,
    /// The store is larger than the window of a snapshot or transaction, which has reached objects in more
    /// pages than that.
    Window,
}

/// A failed operation on a store.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{}: {}{}",
    path.display(),
    message(lead, *page, what),
    remedy.as_ref().map(|remedy| format!("\ntry: {remedy}")).unwrap_or_default()
)]
pub struct Error {
    kind: ErrorKind,
    path: PathBuf,
    what: String,
    page: Option<u32>,
    /// The beginning of the message.
    lead: &'static str,
    remedy: Option<Cow<'static, str>>,
    os_error: Option<i32>,
}

impl Error {
    /// What kind of error it is.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file of the store.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The page that is damaged.
    #[must_use]
    pub const fn page(&self) -> Option<u32> {
        self.page
    }

    /// What failed: the text without the path and the remedy.
    #[must_use]
    pub fn message(&self) -> String {
        message(self.lead, self.page, &self.what)
    }

    /// What to do about it, if something is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// The error number (errno) of the system call that failed, if one did. The message has its text, so
    /// there is no [`std::error::Error::source`].
    #[must_use]
    pub const fn os_error(&self) -> Option<i32> {
        self.os_error
    }

    /// The error of the commit of a transaction in which an operation has failed with this one.
    pub(crate) fn of_commit(self) -> Self {
        let lead = if self.lead == DAMAGED { OF_DAMAGED_COMMIT } else { OF_COMMIT };
        Self { lead, ..self }
    }

    /// What is wrong, without the place in the file.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    pub(crate) fn new(kind: ErrorKind, path: &Path, what: impl Into<String>) -> Self {
        Self { kind, path: path.to_owned(), what: what.into(), page: None, lead: "", remedy: None, os_error: None }
    }

    /// A failed call of the system, without a remedy.
    fn call(kind: ErrorKind, path: &Path, operation: &str, source: &io::Error) -> Self {
        let os_error = source.raw_os_error();
        Self { os_error, ..Self::new(kind, path, format!("cannot {operation}: {source}")) }
    }

    pub(crate) fn with_remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    pub(crate) fn corrupt(path: &Path, page: Option<u32>, what: &str) -> Self {
        let file = quoted(path);
        Self { page, lead: DAMAGED, ..Self::new(ErrorKind::Corrupt, path, what) }.with_remedy(format!(
            "look at it with `fieldstone store check {file}`; restore a backup, or save what can be read with \
             `fieldstone store dump --salvage {file}`"
        ))
    }

    /// The file has no header of a store.
    pub(crate) fn no_store(path: &Path) -> Self {
        Self::new(ErrorKind::Corrupt, path, "it is no store")
            .with_remedy("another file; or a backup, if it was a store")
    }

    /// A failed call of the system while a file is made.
    pub(crate) fn making(path: &Path, operation: &str, source: &io::Error) -> Self {
        let error = Self::io(path, operation, source);
        match remedy_of_full(source) {
            Some(remedy) => error.with_remedy(format!("{remedy}; no file was made")),
            None => error,
        }
    }

    /// The error of a file that cannot be created in this directory.
    pub(crate) fn creating(path: &Path, directory: &Path, source: &io::Error) -> Self {
        let error = Self::making(path, &format!("create a file in {}", directory.display()), source);
        if source.kind() == io::ErrorKind::NotFound {
            error.with_remedy(format!("make the directory with `mkdir -p {}`", quoted(directory)))
        } else {
            error
        }
    }

    /// The error of a file that cannot be opened.
    pub(crate) fn opening(path: &Path, source: &io::Error) -> Self {
        if source.kind() == io::ErrorKind::NotFound && is_link(path) {
            let what = "cannot open the store: the symbolic link leads to a file that is absent";
            let remedy = "make its file system available, or remove the link";
            let os_error = source.raw_os_error();
            return Self { os_error, ..Self::new(ErrorKind::Io, path, what) }.with_remedy(remedy);
        }
        Self::io(path, "open the store", source)
    }

    /// A failed call of the system.
    pub(crate) fn io(path: &Path, operation: &str, source: &io::Error) -> Self {
        let (kind, remedy) = match remedy_of_full(source) {
            Some(remedy) => {
                (ErrorKind::Full, Some(format!("{remedy}; nothing of this transaction is in the store").into()))
            }
            None => (ErrorKind::Io, remedy_of_call(source).map(Cow::Borrowed)),
        };
        Self { remedy, ..Self::call(kind, path, operation, source) }
    }

    /// A failed write or sync, after which the store takes no more writes. [`ErrorKind::Full`] would mean
    /// that the store is as before, so a full file system is [`ErrorKind::Poisoned`] here.
    pub(crate) fn poisoned(path: &Path, operation: &str, source: &io::Error) -> Self {
        let (kind, remedy) = match remedy_of_full(source) {
            Some(remedy) => {
                let then = "then close the store and open it again: nothing can be written before, and all commits \
                            that returned are there";
                (ErrorKind::Poisoned, Cow::Owned(format!("{remedy}, {then}")))
            }
            None => (ErrorKind::Io, Cow::Borrowed(REOPEN)),
        };
        Self::call(kind, path, operation, source).with_remedy(remedy)
    }
}

/// How the message of damage begins.
const DAMAGED: &str = "the store is damaged: ";
/// How the message of a commit begins, if an operation of the transaction failed, or found damage.
const OF_COMMIT: &str = "an operation of the transaction failed, so it cannot be committed: ";
const OF_DAMAGED_COMMIT: &str =
    "an operation of the transaction failed, so it cannot be committed: the store is damaged: ";
/// What to do after a failed write.
pub(crate) const REOPEN: &str = "close the store and open it again: all commits that returned are there";

/// What to do about a call that failed because there is no room for the file; `None` for another cause.
fn remedy_of_full(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded => Some("free space on the file system"),
        FileTooLarge => Some("raise the limit of file sizes (`ulimit -f`), or use a file system for larger files"),
        _ => None,
    }
}

/// What to do about a call that failed for another cause, if something is known.
fn remedy_of_call(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => Some("raise the limit of open files (`ulimit -n`), or close some"),
        Errno::NFILE => Some("raise the limit of open files of the machine (`sysctl fs.file-max`)"),
        Errno::ISDIR => Some("the path of a file in this directory"),
        Errno::NOTDIR => Some("another path: a part of this one before the last `/` is no directory"),
        _ => None,
    }
}

/// Whether a path is a symbolic link, wherever it leads.
fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
}

/// The text of an error. That of damage begins with its place.
fn message(lead: &str, page: Option<u32>, what: &str) -> String {
    let place = page.map(|page| format!("page {page} at byte {}: ", u64::from(page) * 4096)).unwrap_or_default();
    format!("{lead}{place}{what}")
}

/// A path as a word of a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+,:@%".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_of_damage_names_the_path_as_a_word_of_a_shell() {
        let remedy = |path: &str| Error::corrupt(Path::new(path), None, "x").remedy().unwrap().to_owned();
        assert!(remedy("/a/b.store").starts_with("look at it with `fieldstone store check /a/b.store`; restore"));
        assert!(remedy("/it's here").ends_with("`fieldstone store dump --salvage '/it'\\''s here'`"));
    }

    #[test]
    fn a_full_disk_leaves_no_new_file_and_a_store_as_before() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let (path, of) = (Path::new("a"), |error: Error| error.remedy().unwrap().to_owned());
        assert!(of(Error::making(path, "make the store", &full)).ends_with("; no file was made"));
        assert!(of(Error::io(path, "write", &full)).ends_with("; nothing of this transaction is in the store"));
        assert_eq!(Error::making(path, "x", &io::ErrorKind::NotFound.into()).remedy(), None);
    }

    #[test]
    fn the_remedy_of_a_limit_names_the_limit() {
        let path = Path::new("a");
        let remedy = |errno: Errno| Error::io(path, "write", &errno.into()).remedy().unwrap_or_default().to_owned();
        assert!(remedy(Errno::MFILE).contains("`ulimit -n`") && remedy(Errno::NFILE).contains("fs.file-max"));
        let large = io::Error::from(Errno::FBIG);
        let errors = [
            Error::io(path, "write", &large),
            Error::making(path, "write", &large),
            Error::poisoned(path, "write", &large),
        ];
        for error in errors {
            let remedy = error.remedy().unwrap();
            assert!(remedy.contains("`ulimit -f`") && !remedy.contains("free space"), "{remedy}");
        }
    }
}
