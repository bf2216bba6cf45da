//! The error type of the measured programs.

/// Why a program ends with an exit code other than 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid size on the command line.
    #[error("'{text}' is not a size: {reason}; give bytes or a number with K, M, G or T, such as 512M")]
    Size {
        /// The argument.
        text: String,
        /// The cause.
        reason: &'static str,
    },
    /// An argument that parses but is not supported.
    #[error("{what}")]
    Argument {
        /// The argument and the remedy.
        what: String,
    },
    /// The allocator failed.
    #[error("cannot allocate {bytes} bytes: use a smaller size, or raise the limit (ulimit -v, the container's)")]
    Memory {
        /// Bytes requested.
        bytes: usize,
    },
    /// A system call failed.
    #[error("{call} failed: {source}")]
    System {
        /// The call's name in its man page.
        call: &'static str,
        /// The errno.
        source: std::io::Error,
    },
    /// The program's own check failed: memory lost its contents, or the program is wrong.
    #[error("wrong result: {what}")]
    Wrong {
        /// The value found and the value expected.
        what: String,
    },
}

impl Error {
    /// A failed check; `what` names the values found and expected.
    pub fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong { what: what.into() }
    }

    /// The error of the system call `call`, which has just failed.
    #[must_use]
    pub fn system(call: &'static str) -> Self {
        Self::System { call, source: std::io::Error::last_os_error() }
    }
}
