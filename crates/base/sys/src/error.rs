//! The error type of this crate: each variant names the operation, its object and the remedy.

use std::io;
use std::path::{Path, PathBuf};

use fieldstone_wire::Remedy;
use rustix::process::geteuid;

use crate::process::{Capability, has_capability, trace_failure};

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed system operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process has ended or never existed.
    #[error("process {pid} does not exist (it has ended, or it never existed)")]
    NoSuchProcess {
        /// The process id.
        pid: u32,
    },
    /// This user may not read the process.
    #[error("cannot read process {pid} ({path}): {}", denial(), path = path.display())]
    ProcessDenied {
        /// The process id.
        pid: u32,
        /// The refused file.
        path: PathBuf,
    },
    /// The memory of a process could not be opened, read or written.
    #[error("cannot {operation} the memory of process {pid}: {}", trace_failure(source))]
    ProcessMemory {
        /// The process id.
        pid: u32,
        /// `open`, `read` or `write`.
        operation: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// Memory of the process cannot be collapsed into huge pages.
    #[error("cannot collapse the memory of process {pid} into huge pages: {why}")]
    NotCollapsible {
        /// The process id.
        pid: u32,
        /// The cause and the remedy.
        why: String,
    },
    /// Threads of the process cannot be sampled by this method.
    #[error("cannot sample the threads of process {pid} by {method}: {why}")]
    NotSampled {
        /// The process id.
        pid: u32,
        /// The method that was tried.
        method: crate::sampling::method::SamplingMethod,
        /// The cause and the remedy.
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
    /// A system call without a path failed.
    #[error("{call} failed")]
    Call {
        /// The call, with its relevant arguments.
        call: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// A kernel file does not have the documented format.
    #[error("cannot parse {path}: unknown format: {found:?}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The text that cannot be parsed.
        found: String,
    },
    /// This user may not write a kernel setting.
    #[error("cannot write {path}: permission denied{}", Remedy(Some(remedy)), path = path.display())]
    KnobDenied {
        /// The setting's file.
        path: PathBuf,
        /// The command that sets it by hand.
        remedy: String,
    },
    /// Another Fieldstone process holds the setting at another value.
    #[error("cannot write {path}: another fieldstone process holds it at `{held}` until it ends", path = path.display())]
    KnobBusy {
        /// The setting's file.
        path: PathBuf,
        /// The value it is held at.
        held: String,
    },
    /// A path or value that the restorer's protocol cannot carry.
    #[error("cannot set {path}: {why}", path = path.display())]
    InvalidKnob {
        /// The setting's file.
        path: PathBuf,
        /// The cause.
        why: &'static str,
    },
    /// The restorer process was killed, so the settings keep their present values.
    #[error("cannot restore kernel settings: the restorer process was killed{}", Remedy(Some(remedy)))]
    RestorerKilled {
        /// The command that restores the value by hand.
        remedy: String,
    },
}

/// Whether this process may trace processes of all users, within its user namespace.
fn may_trace_all() -> bool {
    has_capability(std::process::id(), Capability::SysPtrace) == Some(true)
}

/// Why this user may not read or trace a process, and the remedy.
pub(crate) fn denial() -> String {
    denial_of(geteuid().is_root(), may_trace_all())
}

/// The same by the rights of a user: the causes that remain.
fn denial_of(is_root: bool, may_trace_all: bool) -> String {
    let (why, remedy) = if may_trace_all {
        ("it is in another user namespace, or a security module protects it", "the same command outside the container")
    } else if is_root {
        (
            "root lacks CAP_SYS_PTRACE here",
            "the same command outside the container, or start the container with --cap-add SYS_PTRACE",
        )
    } else {
        ("only its owner, with kernel.yama.ptrace_scope 0, and root may trace it", "the same command with sudo")
    };
    format!("{why}{}", Remedy(Some(remedy)))
}

impl Error {
    /// A failure on a file.
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
    use super::denial_of;

    #[test]
    fn root_is_not_advised_to_become_root() {
        assert!(denial_of(false, false).contains("\ntry: the same command with sudo"));
        for may_trace_all in [false, true] {
            let words = denial_of(true, may_trace_all);
            assert!(!words.contains("sudo") && words.contains("CAP_SYS_PTRACE") != may_trace_all, "{words}");
            assert!(words.contains("\ntry: the same command outside the container"), "{words}");
        }
    }
}
