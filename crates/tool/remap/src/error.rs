//! What can go wrong in another process: one enum, each variant with the way out.

use std::io;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The errno, and the way out where there is one.
fn reason(source: &io::Error) -> String {
    const RIGHT: &str = "it takes the right to trace it (its owner with kernel.yama.ptrace_scope 0, or root)";
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!("{source}; {RIGHT}"),
        Some(libc::ENOENT | libc::ESRCH) => {
            "it has ended, there never was one, or it is a thread of the kernel".to_owned()
        }
        _ => source.to_string(),
    }
}

/// Why a process could not be remapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on the process failed.
    #[error("cannot {operation} process {pid}: {}", reason(source))]
    Process {
        /// Its number.
        pid: u32,
        /// Such as `read the memory of`.
        operation: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// It cannot be remapped, whatever the user does.
    #[error("process {pid} cannot be remapped: {why}")]
    Refused {
        /// Its number.
        pid: u32,
        /// What stands in the way, and the way out where there is one.
        why: String,
    },
    /// The system refused something.
    #[error(transparent)]
    Linux(#[from] fieldstone_sys::Error),
    /// A page cannot be moved.
    #[error("the page at {page:#x} cannot be remapped: {why}")]
    Page {
        /// Its address.
        page: u64,
        /// What stands in the way.
        why: String,
    },
}
