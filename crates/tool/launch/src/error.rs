//! Why a program cannot be started, watched or ended: one enum, each variant with the remedy.

use std::io;
use std::path::PathBuf;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a program could not be started, watched or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such program.
    #[error(
        "there is no program called {name:?}: not in the path, and not among the bundled workloads{hint}",
        hint = not_found_hint(name, suggestion.as_deref())
    )]
    NotFound {
        /// The name as given.
        name: String,
        /// A file of that name that is not in the path.
        suggestion: Option<String>,
    },
    /// The file exists and cannot be started.
    #[error("cannot start {path}: {why}{remedy}", path = .path.display(), remedy = second_line(remedy.as_deref()))]
    NotRunnable {
        /// The file that the user named.
        path: PathBuf,
        /// What is wrong with it, or with its interpreter.
        why: String,
        /// What to do instead.
        remedy: Option<String>,
    },
    /// The program cannot carry the region agent.
    #[error("{path} cannot be given a region: it is {what}. {remedy}", path = .path.display())]
    Refused {
        /// The file, or the interpreter of the script.
        path: PathBuf,
        /// Set-user-id, static, 32-bit and so on.
        what: &'static str,
        /// What does work.
        remedy: &'static str,
    },
    /// The kernel could not start it.
    #[error("cannot start {path}: {source}", path = .path.display())]
    Start {
        /// The file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The file for the standard input cannot be opened.
    #[error("cannot read {path} for the standard input: {source}", path = .path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The agent's file is not where it should be and cannot be put anywhere.
    #[error(
        "the region agent cannot be placed: {why}; set FIELDSTONE_AGENT_DIR to a directory that can be written and executed from, with no space, colon or comma in its path"
    )]
    Agent {
        /// What failed, and where.
        why: String,
    },
    /// The page kind is not available.
    #[error("pages of kind {kind} are not available: {why}")]
    PageKind {
        /// The kind's name.
        kind: &'static str,
        /// Why, and the command that changes it.
        why: String,
    },
    /// The user ended it.
    #[error("stopped by {signal}; every child was ended and every setting restored")]
    Interrupted {
        /// The signal's name.
        signal: &'static str,
        /// Its number.
        number: i32,
    },
    /// A system call failed.
    #[error("cannot {operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// An operation of `fieldstone_sys` failed.
    #[error(transparent)]
    Linux(#[from] fieldstone_sys::Error),
}

impl Error {
    /// Wraps an errno with what was tried.
    pub fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { operation, source }
    }
}

/// What a user may have meant who named no program.
fn not_found_hint(name: &str, suggestion: Option<&str>) -> String {
    match suggestion {
        Some(path) => format!("; did you mean {path}?"),
        None if name.starts_with('-') => "; nor is it an option of ours: --help lists them".to_owned(),
        None => String::new(),
    }
}

/// A remedy as the second line of a message; empty without one.
#[must_use]
pub fn second_line(remedy: Option<&str>) -> String {
    remedy.map_or_else(String::new, |remedy| format!("\ntry: {remedy}"))
}
