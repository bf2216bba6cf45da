//! What can go wrong at the door to Linux: one enum, each variant with the operation, what it was done to, and the way out.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::process::{Capability, has_capability};

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An operation on the system that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process ended, or never was.
    #[error("process {pid} is gone (it ended, or there never was one)")]
    NoSuchProcess {
        /// Its number.
        pid: u32,
    },
    /// The process may not be looked into by this user.
    #[error("process {pid} may not be looked into ({path}): {}", way_in(geteuid().is_root(), may_trace_all()), path = path.display())]
    ProcessDenied {
        /// Its number.
        pid: u32,
        /// The file that was refused.
        path: PathBuf,
    },
    /// A process's memory cannot be put on huge pages from outside.
    #[error("the memory of process {pid} cannot be put on huge pages from outside: {why}")]
    NotCollapsible {
        /// Its number.
        pid: u32,
        /// What stands in the way, and the way out.
        why: String,
    },
    /// A process's threads cannot be sampled by these means.
    #[error("the threads of process {pid} cannot be sampled by {means}: {why}")]
    NotSampled {
        /// Its number.
        pid: u32,
        /// What was tried.
        means: crate::sampling::Means,
        /// What stands in the way, and the way out.
        why: String,
    },
    /// A kernel file could not be opened, read or written.
    #[error("cannot {operation} {path}", path = path.display())]
    File {
        /// `open`, `read`, `write` and so on.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// A system call failed that has no path.
    #[error("{call} failed")]
    Call {
        /// The call, with the arguments that matter.
        call: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// A kernel file does not read as its documentation says.
    #[error("{path} reads unlike any kernel known here: {found:?}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The text that could not be understood.
        found: String,
    },
    /// A knob may not be turned by this user.
    #[error("{path} may not be written; `{remedy}` does it", path = path.display())]
    KnobDenied {
        /// The knob.
        path: PathBuf,
        /// The errno.
        source: io::Error,
        /// The command that sets it by hand.
        remedy: String,
    },
    /// Another Fieldstone holds the knob at another value.
    #[error("{path} is held at `{held}` by another fieldstone: wait for it to end", path = path.display())]
    KnobHeld {
        /// The knob.
        path: PathBuf,
        /// What it is held at.
        held: String,
    },
    /// A knob's path or value cannot travel to the restorer.
    #[error("{path} cannot be a knob: {why}", path = path.display())]
    KnobUnfit {
        /// The knob.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The process that restores the knobs has died, so they stay as they are.
    #[error("the restorer of knobs was killed; give back by hand: `{remedy}`")]
    RestorerGone {
        /// The command that restores by hand.
        remedy: String,
    },
}

/// Whether this process has the right to look into those of all users, as far as its user namespace goes.
fn may_trace_all() -> bool {
    has_capability(std::process::id(), Capability::SysPtrace) == Some(true)
}

/// What allows a process to be looked into that is closed to this user: by the causes that are left.
const fn way_in(is_root: bool, may_trace_all: bool) -> &'static str {
    if may_trace_all {
        "it is in another user namespace, or a security module guards it; run outside of the container"
    } else if is_root {
        "this root lacks CAP_SYS_PTRACE; run outside of the container, or start that with --cap-add SYS_PTRACE"
    } else {
        "run as its owner or as root, or see `fieldstone doctor`"
    }
}

impl Error {
    /// A failure on a file; a missing or forbidden file of a process becomes the variant that says so.
    pub(crate) fn file(operation: &'static str, path: impl AsRef<Path>, source: impl Into<io::Error>) -> Self {
        Self::File { operation, path: path.as_ref().to_owned(), source: source.into() }
    }

    /// A failure on a file of `/proc/PID`.
    ///
    /// ENOENT (at open) and ESRCH (at read) both mean that the process has ended.
    pub(crate) fn process_file(pid: u32, operation: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Self::NoSuchProcess { pid },
            Some(libc::EACCES | libc::EPERM) => Self::ProcessDenied { pid, path: path.to_owned() },
            _ => Self::File { operation, path: path.to_owned(), source },
        }
    }

    pub(crate) fn malformed(path: impl AsRef<Path>, found: impl Into<String>) -> Self {
        Self::Malformed { path: path.as_ref().to_owned(), found: found.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::way_in;

    #[test]
    fn root_is_not_told_to_be_root() {
        assert!(way_in(false, false).contains("as root"));
        for may_trace_all in [false, true] {
            let words = way_in(true, may_trace_all);
            assert!(!words.contains("as root") && words.contains("CAP_SYS_PTRACE") != may_trace_all, "{words}");
        }
    }
}
