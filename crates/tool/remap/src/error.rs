//! Errors of this crate: one enum, each variant with its remedy where there is one.

use std::io;

use fieldstone_sys::process::trace_failure;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a process could not be remapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on the process failed.
    #[error("cannot {operation} process {pid}: {}", trace_failure(source))]
    Process {
        /// Process number.
        pid: u32,
        /// The operation, such as `read the mappings of`.
        operation: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// The process cannot be remapped, for the reason in `why`.
    #[error("process {pid} cannot be remapped: {why}")]
    Refused {
        /// Process number.
        pid: u32,
        /// The cause, and the remedy where there is one.
        why: String,
    },
    /// A system call failed.
    #[error(transparent)]
    Linux(#[from] fieldstone_sys::Error),
    /// A page cannot be moved.
    #[error("the page at {page:#x} cannot be remapped: {why}")]
    Page {
        /// Address of the page.
        page: u64,
        /// The cause.
        why: String,
    },
}

/// Ignores `NoSuchProcess`: the next wait reports the exit of that thread.
pub(crate) fn ignore_gone(result: fieldstone_sys::Result<()>) -> Result<()> {
    match result {
        Err(fieldstone_sys::Error::NoSuchProcess { .. }) => Ok(()),
        other => other.map_err(Into::into),
    }
}
