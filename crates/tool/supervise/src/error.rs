//! What can go wrong on our side of a running program: one enum, each variant with the way out.

use std::io;
use std::path::PathBuf;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What somebody meant who named no program.
fn not_found_hint(name: &str, suggestion: Option<&str>) -> String {
    match suggestion {
        Some(path) => format!("; did you mean {path}?"),
        None if name.starts_with('-') => "; nor is it an option of ours: --help lists them".to_owned(),
        None => String::new(),
    }
}

/// A line with the remedy, or nothing where there is none.
fn try_first(remedy: Option<&str>) -> String {
    remedy.map(|command| format!("\ntry: {command}")).unwrap_or_default()
}

/// Why a program could not be started, followed or measured.
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
    /// The process that repairs a program was killed, or has crashed. The program's memory is as it was.
    #[error(
        "cannot go on repairing process {pid}: the repairer ended by {outcome}; the program goes on unrepaired\ntry: fieldstone attach --repair {pid}"
    )]
    RepairerDied {
        /// How it ended: `signal 9 (SIGKILL)`.
        outcome: String,
        /// The program.
        pid: u32,
    },
    /// This user may not repair programs on this machine.
    #[error("`fieldstone {command}` is unavailable to this user: {why}{remedy}", remedy = try_first(remedy.as_deref()))]
    RepairUnavailable {
        /// The command, without `fieldstone`.
        command: &'static str,
        /// What is missing.
        why: String,
        /// The shell command that allows it, where there is one.
        remedy: Option<String>,
    },
    /// The standard input is not there.
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
    /// The program cannot be traced.
    #[error("cannot trace: {why}")]
    Tracer {
        /// What is missing, and the remedy.
        why: String,
    },
    /// The page kind is not to be had.
    #[error("pages of kind {kind} are not to be had: {why}")]
    PageKind {
        /// The kind's name.
        kind: &'static str,
        /// Why, and the command that changes it.
        why: String,
    },
    /// The server never opened its port.
    #[error("port {port} was not opened within {waited_s:.0} s ({state}); check --ready, or allow more by --timeout{stderr}", stderr = told(.stderr))]
    NotReady {
        /// The port.
        port: u16,
        /// How long it was waited for.
        waited_s: f64,
        /// What the server was doing.
        state: String,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// Somebody else has the port.
    #[error(
        "port {port} is open before the program has started: another server has it; stop that one, or use another port in both commands"
    )]
    PortTaken {
        /// The port.
        port: u16,
    },
    /// The load command failed.
    #[error("the load {command:?} ended with {outcome}: fix the command (it runs under `sh -c`){stderr}", stderr = told(.stderr))]
    Load {
        /// The command.
        command: String,
        /// How it ended.
        outcome: String,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// No run of the baseline came to a good end, so nothing can be compared.
    #[error("the program does not end well even on 4 KiB pages: {outcome}; run it by hand first{stderr}", stderr = told(.stderr))]
    Baseline {
        /// How it ended.
        outcome: String,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// The user ended it.
    #[error("stopped by {signal}; every child was ended and every setting given back")]
    Interrupted {
        /// The signal's name.
        signal: &'static str,
        /// Its number.
        number: i32,
    },
    /// An operation of the system failed.
    #[error("cannot {operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// It cannot be remapped.
    #[error(transparent)]
    Remap(#[from] fieldstone_remap::Error),
    /// Lines cannot be counted so.
    #[error(transparent)]
    Sharing(#[from] fieldstone_sharing::Error),
    /// Linux' door is closed.
    #[error(transparent)]
    Linux(#[from] fieldstone_sys::Error),
}

impl Error {
    /// Wraps an errno with what was tried.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { operation, source }
    }
}

/// A remedy as the second line of a message.
fn second_line(remedy: Option<&str>) -> String {
    remedy.map_or_else(String::new, |remedy| format!("\ntry: {remedy}"))
}

fn told(stderr: &str) -> String {
    if stderr.trim().is_empty() { String::new() } else { format!("\nits last words:\n{}", stderr.trim_end()) }
}
