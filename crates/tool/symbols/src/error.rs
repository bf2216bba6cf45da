//! Why a process's memory cannot be named.

use std::io;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a process's memory could not be named.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The list of its mappings cannot be read.
    #[error("cannot read the mappings of process {pid}: {source}")]
    Mappings {
        /// The process.
        pid: u32,
        /// The errno.
        source: io::Error,
    },
    /// The process's memory cannot be opened.
    #[error(transparent)]
    Memory(#[from] fieldstone_remap::Error),
    /// An operation of `fieldstone_sys` failed.
    #[error(transparent)]
    Linux(#[from] fieldstone_sys::Error),
}
