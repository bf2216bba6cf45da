//! The error type of this crate: each variant names the operation, its object and the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation on checkpoints.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The memory cannot be tracked, mapped or filled.
    #[error("cannot checkpoint the memory: {0}")]
    Memory(#[from] fieldstone_pages::Error),
    /// A file or directory of saves.
    #[error("cannot {operation} {}: {source}", path.display())]
    File {
        /// The operation, such as `write`.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A thread wrote to the memory during the stop, and copy before write is not possible here.
    #[error(
        "a thread wrote to the memory while the save took its instant; the last save is intact\n\
         try: let all writers hold the lock that the safe point takes, or allow userfaultfd \
         (sudo sysctl vm.unprivileged_userfaultfd=1)"
    )]
    WriterRan,
    /// Writers changed more than the stop may copy, in all rounds, and copy before write is not possible here.
    #[error(
        "the program writes faster than its pages are copied: {left_bytes} bytes were left, and the stop may copy \
         {limit_bytes}; the last save is intact\ntry: a longer stop_limit, or allow userfaultfd (sudo sysctl \
         vm.unprivileged_userfaultfd=1)"
    )]
    Outrun {
        /// Bytes of written pages after the last round.
        left_bytes: usize,
        /// Bytes that the stop may copy.
        limit_bytes: usize,
    },
    /// A save runs, of this checkpointer.
    #[error("another save of this memory runs: wait for it first")]
    Busy,
    /// No memory was given.
    #[error("there is no memory to save: give at least one")]
    NoMemory,
    /// There is no save.
    #[error("there is no save in {}", .0.display())]
    NoSave(PathBuf),
    /// The save was cancelled.
    #[error("the save was cancelled; the last save is intact")]
    Cancelled,
    /// Another process has finished a save of the same number.
    #[error("{} exists: another process has saved meanwhile\ntry: let one process save at a time", .0.display())]
    Taken(PathBuf),
    /// The process has pinned memory, whose writes by devices no save would have.
    #[error(
        "this process has pinned memory, as for buffers of io_uring or RDMA: if it is part of a save, what a device \
         writes there would be missing\ntry: builder.compare_pages(true), which compares all pages at the instant; or \
         builder.pinned_elsewhere(true), if the pinned memory is not part of the save"
    )]
    Pinned,
    /// A save is damaged, or is no save.
    #[error("{} is no whole save: {what}\ntry: an earlier save: move this file away", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// A save of a later version.
    #[error("{} cannot be restored here: {what}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What this build does not support.
        what: &'static str,
    },
    /// An increment whose parent is lost, or was replaced.
    #[error(
        "{} continues the save {parent:016x}, which is not beside it\ntry: restore that file, or an earlier save: move \
         this one away",
        path.display()
    )]
    MissingParent {
        /// The file of the increment.
        path: PathBuf,
        /// The identity of the parent.
        parent: u64,
    },
    /// A thread cannot be started.
    #[error("cannot start the thread of a save: {0}")]
    Thread(io::Error),
}

impl Error {
    pub(crate) fn file(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { operation, path, source }
    }

    pub(crate) fn damaged(path: &Path, what: &'static str) -> Self {
        Self::Damaged { path: path.to_owned(), what }
    }
}
