//! The error type of this crate.

use crate::kernel::{ECHILD, EINVAL, EIO, ENOMEM, ENOSYS, EOPNOTSUPP, Errno};
use crate::store::StoreError;

/// A failed operation. Creating one does not allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused memory.
    #[error(
        "cannot map {bytes} bytes: errno {errno}\ntry: a larger limit (ulimit -v, ulimit -d, the memory.max of the cgroup)"
    )]
    Map {
        /// The size of the last attempt.
        bytes: usize,
        /// The errno of mmap(2).
        errno: Errno,
    },
    /// No userfaultfd for faults of the kernel.
    #[error(
        "cannot open a userfaultfd for faults of the kernel: errno {errno}\ntry: sysctl vm.unprivileged_userfaultfd=1"
    )]
    Userfaultfd {
        /// The errno; `EOPNOTSUPP` before Linux 6.8.
        errno: Errno,
    },
    /// A store cannot be opened.
    #[error("cannot open the page store {store}: errno {errno}")]
    Store {
        /// Its name.
        store: &'static str,
        /// The errno.
        errno: Errno,
    },
    /// No userfaultfd at all, not even for faults of user code.
    #[error("cannot open a userfaultfd: errno {errno}\ntry: {}", remedy(*errno))]
    NoUserfaultfd {
        /// The errno; `EOPNOTSUPP` before Linux 6.8.
        errno: Errno,
    },
    /// The thread that serves faults cannot be started.
    #[error(
        "cannot start the thread that serves faults: errno {errno}\ntry: a larger limit of threads (ulimit -u, pids.max of the cgroup)"
    )]
    Thread {
        /// The errno.
        errno: Errno,
    },
    /// An option has a value that cannot work.
    #[error("cannot use {value} as {option}: {why}")]
    Option {
        /// The method of the builder.
        option: &'static str,
        /// Its argument; the number of stores.
        value: usize,
        /// The reason.
        why: &'static str,
    },
    /// A range of bytes is not inside the memory, or not whole pages where that is required.
    #[error("cannot use bytes {} to {}: they are not {} {bytes} bytes", start, end, if *needs_pages { "whole pages inside" } else { "inside" })]
    Range {
        /// The first byte, from the start of the memory.
        start: usize,
        /// The byte behind the last one.
        end: usize,
        /// The size of the memory in bytes.
        bytes: usize,
        /// Whether the range must be whole pages.
        needs_pages: bool,
    },
    /// The process was forked after the memory was created: the child does not have it.
    #[error("cannot control memory that was created before a fork: the child does not have it")]
    Forked,
    /// A store did not return a page, or not the contents that were stored.
    #[error("cannot bring back the page at byte {page} from the store {store}: {error}")]
    Load {
        /// The name of the store.
        store: &'static str,
        /// The page, in bytes from the start of the memory.
        page: usize,
        /// The cause.
        error: StoreError,
    },
    /// The pager's own memory is used up.
    #[error("cannot page more memory: the pager's own {bytes} bytes are used up")]
    Full {
        /// The size of the pager's memory.
        bytes: usize,
    },
}

impl Error {
    /// The errno of the kernel; the nearest one for an error that is found before a system call.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::Map { errno, .. }
            | Self::Userfaultfd { errno }
            | Self::NoUserfaultfd { errno }
            | Self::Thread { errno }
            | Self::Store { errno, .. }
            | Self::Load { error: StoreError::Failed(errno), .. } => errno,
            Self::Option { .. } | Self::Range { .. } => EINVAL,
            Self::Forked => ECHILD,
            Self::Load { .. } => EIO,
            Self::Full { .. } => ENOMEM,
        }
    }
}

/// What makes a userfaultfd available.
const fn remedy(errno: Errno) -> &'static str {
    match errno {
        ENOSYS => "a kernel with CONFIG_USERFAULTFD",
        EOPNOTSUPP => "Linux 6.8 or later",
        _ => "a system-call filter (seccomp, of the container) that allows userfaultfd(2)",
    }
}

/// The result type of this crate.
pub type Result<T> = core::result::Result<T, Error>;
