//! What can go wrong in a measured program.

/// Why a program ends with something else than 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size on the command line that is no size.
    #[error("'{text}' is not a size: {reason}; give bytes or a number with K, M, G or T, such as 512M")]
    Size {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An argument that parses, but that the program cannot work with.
    #[error("{what}")]
    Argument {
        /// What it is and what would do.
        what: String,
    },
    /// The allocator refused.
    #[error("no memory for {bytes} bytes: ask for a smaller size, or lift the limit (ulimit -v, the container's)")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A system call failed that has to work here.
    #[error("{call} failed: {source}")]
    System {
        /// The call, as its man page names it.
        call: &'static str,
        /// The errno.
        source: std::io::Error,
    },
    /// The program ran and its own check failed: memory did not keep what was written, or the program is wrong.
    #[error("wrong result: {what}")]
    Wrong {
        /// What was found and what was expected.
        what: String,
    },
}

impl Error {
    /// A failed check, `what` found and expected.
    pub fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong { what: what.into() }
    }

    /// The system call `call`, just failed, with its errno.
    #[must_use]
    pub fn system(call: &'static str) -> Self {
        Self::System { call, source: std::io::Error::last_os_error() }
    }
}
