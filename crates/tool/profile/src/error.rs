//! Errors of profiling and tracing. Each message names the cause and, where there is one, the
//! remedy.

use std::io;

use fieldstone_report::shell;
use fieldstone_wire::Remedy;

/// The result of each fallible operation in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a program cannot be profiled or traced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program cannot be traced.
    #[error("cannot trace: {why}")]
    Tracer {
        /// What is missing, and the remedy.
        why: String,
    },
    /// The server did not open its port in time.
    #[error("port {port} was not opened within {waited_s:.0} s ({state}){}{stderr}", Remedy(Some("another port in --ready, or a longer --timeout")), stderr = last_lines(.stderr))]
    NotReady {
        /// The port.
        port: u16,
        /// How long the profiler waited, in seconds.
        waited_s: f64,
        /// Whether the server still runs.
        state: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// The port is open before the server starts.
    #[error(
        "port {port} is open before the program has started: another server uses it{}",
        Remedy(Some("stop that server, or use another port in both commands"))
    )]
    PortTaken {
        /// The port.
        port: u16,
    },
    /// The load command failed.
    #[error("the load {command:?} ended with {outcome}{}{stderr}", Remedy(Some(format_args!("sh -c {}", shell::quote(command)))), stderr = last_lines(.stderr))]
    Load {
        /// The command.
        command: String,
        /// How it ended.
        outcome: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// The baseline's warm-up run failed, so there is nothing to compare with.
    #[error("the program fails even on 4 KiB pages: {outcome}{}{stderr}", Remedy(Some(remedy)), stderr = last_lines(.stderr))]
    Baseline {
        /// How it ended.
        outcome: String,
        /// What the user can change.
        remedy: &'static str,
        /// The end of its standard error.
        stderr: String,
    },
    /// The program cannot be started, watched or stopped.
    #[error(transparent)]
    Launch(#[from] fieldstone_launch::Error),
    /// An operation of `fieldstone_sys` failed.
    #[error(transparent)]
    Linux(#[from] fieldstone_sys::Error),
}

impl Error {
    /// Adds the operation to an operating-system error.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| fieldstone_launch::Error::system(operation)(source).into()
    }

    /// The page kind is not available.
    pub(crate) fn page_kind(kind: &'static str, why: String) -> Self {
        fieldstone_launch::Error::PageKind { kind, why }.into()
    }

    /// Whether the user interrupted the operation.
    #[must_use]
    pub const fn is_interrupt(&self) -> bool {
        matches!(self, Self::Launch(fieldstone_launch::Error::Interrupted { .. }))
    }
}

fn last_lines(stderr: &str) -> String {
    if stderr.trim().is_empty() { String::new() } else { format!("\nthe end of its stderr:\n{}", stderr.trim_end()) }
}
