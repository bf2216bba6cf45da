//! Errors of starting, monitoring and ending a program, each with its remedy.

use std::io;
use std::path::PathBuf;

use fieldstone_wire::{Cause, Remedy};

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a program cannot be started, monitored or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such program.
    #[error("there is no program called {name:?}: {}", not_found(name, suggestion.as_deref()))]
    NotFound {
        /// The name as given.
        name: String,
        /// A file of that name in the current directory.
        suggestion: Option<String>,
    },
    /// The file exists but cannot be started.
    #[error("cannot start {path}: {why}{}", Remedy(remedy.as_ref()), path = .path.display())]
    NotRunnable {
        /// The file that the user named.
        path: PathBuf,
        /// The defect of the file or of its interpreter.
        why: String,
        /// A command that may help.
        remedy: Option<String>,
    },
    /// The program cannot carry the region agent.
    #[error("cannot give {path} a region: it is {property}{}", Remedy(remedy.as_ref()), path = .path.display())]
    NoRegion {
        /// The file, or the interpreter of the script.
        path: PathBuf,
        /// The property that prevents it: set-user-id, static, 32-bit and so on.
        property: &'static str,
        /// An alternative.
        remedy: Option<&'static str>,
    },
    /// The program cannot load an agent.
    #[error("cannot {operation} {path}: it is {property} and loads no agent{}", Remedy(Some(remedy)), path = .path.display())]
    NoAgent {
        /// What the agent does: `guard`, `bound the memory of`.
        operation: &'static str,
        /// The file, or the interpreter of the script.
        path: PathBuf,
        /// The property that prevents it: set-user-id, static, 32-bit and so on.
        property: &'static str,
        /// An alternative.
        remedy: &'static str,
    },
    /// The argument vectors are invalid.
    #[error("cannot start {path}: {}", Cause(source), path = .path.display())]
    Start {
        /// The file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The file for standard input cannot be opened.
    #[error("cannot read {path} for the standard input: {}", Cause(source), path = .path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The agent's file cannot be installed.
    #[error(
        "cannot install the region agent: {why}{}",
        Remedy(Some(
            "set FIELDSTONE_AGENT_DIR to a writable directory that is not mounted noexec, with no space, colon or comma in its path"
        ))
    )]
    Agent {
        /// The directories that were tried, each with its error.
        why: String,
    },
    /// The page kind is not available.
    #[error("pages of kind {kind} are not available: {why}")]
    PageKind {
        /// The kind's name.
        kind: &'static str,
        /// The cause, and the command that removes it.
        why: String,
    },
    /// The user ended the command.
    #[error("stopped by {signal}; every child was ended and every setting restored")]
    Interrupted {
        /// The signal's name.
        signal: &'static str,
        /// Its number.
        number: i32,
    },
    /// A system call failed.
    #[error("cannot {operation}: {}", Cause(source))]
    System {
        /// The operation, in the infinitive without `to`.
        operation: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// An operation of `fieldstone_sys` failed.
    #[error(transparent)]
    Linux(#[from] fieldstone_sys::Error),
}

impl Error {
    /// Wraps an errno with the operation that failed.
    pub fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { operation, source }
    }
}

/// Why a name is no program, and the remedy.
fn not_found(name: &str, suggestion: Option<&str>) -> String {
    if name.contains('/') {
        return "there is no such file".to_owned();
    }
    let why = "not in the path, and not among the bundled workloads";
    match suggestion {
        None if name.starts_with('-') => {
            format!("{why}; nor is it an option of fieldstone{}", Remedy(Some("fieldstone help")))
        }
        Some(path) => format!("{why}{}", Remedy(Some(path))),
        None => format!("{why}{}", Remedy(Some(format_args!("the path of its file, as in ./{name}")))),
    }
}
