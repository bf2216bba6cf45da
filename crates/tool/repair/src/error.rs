//! Why false sharing cannot be found or repaired: one enum, each variant with the remedy.

use std::io;

use fieldstone_launch::error::second_line;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why false sharing could not be found or repaired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process that repairs a program was killed or has crashed. The program's memory is as it was before.
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
    #[error("`fieldstone {command}` is unavailable to this user: {why}{remedy}", remedy = second_line(remedy.as_deref()))]
    RepairUnavailable {
        /// The command, without `fieldstone`.
        command: &'static str,
        /// What is missing.
        why: String,
        /// The shell command that allows it, where there is one.
        remedy: Option<String>,
    },
    /// The program cannot be started, watched or ended.
    #[error(transparent)]
    Launch(#[from] fieldstone_launch::Error),
    /// The program's symbols or objects cannot be read.
    #[error(transparent)]
    Symbols(#[from] fieldstone_symbols::Error),
    /// The program's memory cannot be remapped.
    #[error(transparent)]
    Remap(#[from] fieldstone_remap::Error),
    /// A rule or an option is wrong.
    #[error(transparent)]
    Sharing(#[from] fieldstone_sharing::Error),
    /// An operation of `fieldstone_sys` failed.
    #[error(transparent)]
    Linux(#[from] fieldstone_sys::Error),
}

impl Error {
    /// Wraps an errno with what was tried.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| fieldstone_launch::Error::system(operation)(source).into()
    }
}
