//! Errors of reading a process's memory and mappings.

use std::io;

use fieldstone_wire::Cause;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a process's memory cannot be described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `/proc/PID/maps` cannot be read.
    #[error("cannot read the mappings of process {pid}: {}", Cause(source))]
    Mappings {
        /// The process.
        pid: u32,
        /// The errno.
        source: io::Error,
    },
    /// An operation of `fieldstone_sys` failed.
    #[error(transparent)]
    Linux(#[from] fieldstone_sys::Error),
}
