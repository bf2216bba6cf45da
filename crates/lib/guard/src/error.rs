//! The error type of this crate.

/// A failed operation. Creating one does not allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused memory, also at the smallest size that this crate can use.
    #[error(
        "cannot map {bytes} bytes: errno {errno}\ntry: a larger limit (ulimit -v, ulimit -d, the memory.max of the cgroup)"
    )]
    Map {
        /// The size of the last attempt.
        bytes: usize,
        /// The errno of mmap(2).
        errno: i32,
    },
    /// A heap would grow above its limit.
    #[error("cannot add {bytes} bytes to a heap: its limit is {limit} bytes\ntry: a larger BumpBuilder::limit")]
    Limit {
        /// The bytes to add.
        bytes: usize,
        /// The limit, in whole pages.
        limit: usize,
    },
    /// An option has a value that cannot work.
    #[error("cannot use {value} as {option}: {why}")]
    Option {
        /// The method of the builder.
        option: &'static str,
        /// Its argument.
        value: usize,
        /// The reason.
        why: &'static str,
    },
    /// The handler of faults could not be installed.
    #[error("cannot install a handler of SIGSEGV: errno {errno}")]
    Signal {
        /// The errno of sigaction(2).
        errno: i32,
    },
    /// The heap is full, and its owner did not make room.
    #[error("cannot allocate {bytes} bytes: the heap is full\ntry: on_full with a handler that calls grow or reset")]
    Full {
        /// The size of the request.
        bytes: usize,
    },
}

/// The result type of this crate.
pub type Result<T> = core::result::Result<T, Error>;
