//! The error type of this crate.

use crate::kernel::Errno;

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
    /// The pager's own memory is used up.
    #[error("cannot page more memory: the pager's own {bytes} bytes are used up")]
    Full {
        /// The size of the pager's memory.
        bytes: usize,
    },
}

impl Error {
    /// The errno of the kernel; `ENOMEM` when the pager's own memory is used up.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::Map { errno, .. } | Self::Userfaultfd { errno } | Self::Store { errno, .. } => errno,
            Self::Full { .. } => crate::kernel::ENOMEM,
        }
    }
}

/// The result type of this crate.
pub type Result<T> = core::result::Result<T, Error>;
