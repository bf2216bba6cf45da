//! What can go wrong: one enum, each variant with the operation, what it was done to, and the way out.

use std::io;
use std::ops::Range;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An operation on pages that failed. Making and reading one allocates nothing, so that it may be met in a signal handler.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{call} of {bytes} bytes at {address:#x} failed: {source}{}", remedy(call, source))]
    System {
        /// The call, with the request that matters.
        call: &'static str,
        /// Where.
        address: usize,
        /// How much.
        bytes: usize,
        /// The errno.
        source: io::Error,
    },
    /// A range is not of whole pages, or not inside.
    #[error("bytes {} to {} are not whole pages of {page_bytes} bytes inside {bytes} bytes: round to pages", range.start, range.end)]
    Range {
        /// What was asked for, in bytes from the start of the memory.
        range: Range<usize>,
        /// The memory's size.
        bytes: usize,
        /// The memory's page size.
        page_bytes: usize,
    },
    /// No mechanism of this machine can do it.
    #[error("{what} is not to be had here: {why}; `fieldstone doctor` lists what is")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// What stands in the way.
        why: &'static str,
    },
    /// The process was forked after the memory was made: in the child it is plain memory.
    #[error("the memory was made before a fork: in the child it is plain memory, without traps; make it anew there")]
    Forked,
    /// What was to fill a page has another size.
    #[error("{bytes} bytes cannot fill a page of {page_bytes}: give a whole page")]
    Fill {
        /// What was given.
        bytes: usize,
        /// What a page has.
        page_bytes: usize,
    },
}

/// What helps, where the errno tells.
fn remedy(call: &str, error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) if call.starts_with("mprotect") => {
            " (each protected piece is a mapping of its own: protect longer pieces, or raise vm.max_map_count)"
        }
        Some(libc::ENOMEM) => {
            " (no memory, or a limit: see `ulimit -v`, the cgroup's memory.max, vm.overcommit_memory)"
        }
        Some(libc::EPERM) if call == "PAGEMAP_SCAN" => {
            " (the program has mapped other memory over a part of it: track the new mapping, or do not replace tracked memory)"
        }
        Some(libc::EOWNERDEAD) => {
            " (the thread that keeps the descriptors has ended: do not end threads that the program did not start)"
        }
        Some(libc::EBUSY) => " (another userfaultfd has this memory, or another thread has the page)",
        _ => "",
    }
}

impl Error {
    pub(crate) fn system(call: &'static str, address: usize, bytes: usize, source: impl Into<io::Error>) -> Self {
        Self::System { call, address, bytes, source: source.into() }
    }

    /// The errno behind it, if a system call failed.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::System { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}
