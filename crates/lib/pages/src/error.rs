//! The error type of this crate: each variant names the operation, its object and the remedy.

use std::io;
use std::ops::Range;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation on pages. Creating and inspecting one does not allocate, so signal handlers
/// may do both.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {call} {bytes} bytes at {address:#x}: {source}{}", remedy(call, source))]
    System {
        /// The call, with the relevant request.
        call: &'static str,
        /// Start address.
        address: usize,
        /// Size in bytes.
        bytes: usize,
        /// The errno.
        source: io::Error,
    },
    /// A range is not page-aligned, or not inside the memory.
    #[error("bytes {} to {} are not whole pages of {page_bytes} bytes inside {bytes} bytes: round to whole pages", range.start, range.end)]
    Range {
        /// The requested range, in bytes from the start of the memory.
        range: Range<usize>,
        /// Size of the memory in bytes.
        bytes: usize,
        /// Page size of the memory in bytes.
        page_bytes: usize,
    },
    /// No mechanism of this machine supports it.
    #[error("{what} is not supported here: {why}; `fieldstone doctor` lists what is")]
    Unsupported {
        /// The requested operation.
        what: &'static str,
        /// The cause.
        why: &'static str,
    },
    /// The process was forked after the region was created: in the child the memory is plain.
    #[error(
        "the memory was created before a fork: in the child it is plain memory, without traps; create it again there"
    )]
    Forked,
    /// The contents for a page have another size.
    #[error("{bytes} bytes cannot fill a page of {page_bytes}: pass a whole page")]
    Fill {
        /// Size of the contents.
        bytes: usize,
        /// Size of a page.
        page_bytes: usize,
    },
}

/// The remedy for an errno, if known.
fn remedy(call: &str, error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) if call.starts_with("mprotect") => {
            " (each separately protected range is its own mapping: protect longer ranges, or raise vm.max_map_count)"
        }
        Some(libc::ENOMEM) => {
            " (no memory, or a limit: see `ulimit -v`, the cgroup's memory.max, vm.overcommit_memory)"
        }
        Some(libc::EPERM) if call == "PAGEMAP_SCAN" => {
            " (the program has mapped other memory over a part of it: track the new mapping, or do not replace tracked memory)"
        }
        Some(libc::EOWNERDEAD) => {
            " (the thread that keeps the descriptors has ended: do not end threads that the program did not create)"
        }
        Some(libc::EBUSY) => " (another userfaultfd has registered this memory, or another thread uses the page)",
        _ => "",
    }
}

impl Error {
    pub(crate) fn system(call: &'static str, address: usize, bytes: usize, source: impl Into<io::Error>) -> Self {
        Self::System { call, address, bytes, source: source.into() }
    }

    /// The errno of a failed system call.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::System { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}
