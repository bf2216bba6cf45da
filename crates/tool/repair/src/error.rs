//! Errors of detection and repair, with the remedy where there is one.

use std::io;

use fieldstone_wire::Remedy;

/// The result of a fallible function of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why false sharing cannot be found or repaired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process that repairs a program was killed or has crashed. All pages of the program are
    /// back.
    #[error(
        "cannot continue the repair of process {pid}: the repairer ended by {outcome}; the program goes on unrepaired{}",
        Remedy(Some(format_args!("fieldstone attach --repair {pid}")))
    )]
    RepairerDied {
        /// How it ended: `signal 9 (SIGKILL)`.
        outcome: String,
        /// The process number of the program.
        pid: u32,
    },
    /// Another process repairs the process.
    #[error("cannot repair process {pid}: process {repairer} repairs it already{}", Remedy(Some(format_args!("kill {repairer}"))))]
    RepairRuns {
        /// The process number of the program.
        pid: u32,
        /// The process number of its repairer.
        repairer: u32,
    },
    /// This user may not repair programs on this machine.
    #[error("`fieldstone {command}` is unavailable to this user: {why}{}", Remedy(remedy.as_ref()))]
    RepairUnavailable {
        /// The command, without `fieldstone`.
        command: &'static str,
        /// The missing rights or kernel features.
        why: String,
        /// The shell command that allows it. `None` if there is none.
        remedy: Option<String>,
    },
    /// The program cannot be started or ended.
    #[error(transparent)]
    Launch(#[from] fieldstone_launch::Error),
    /// The symbols or objects of the program cannot be read.
    #[error(transparent)]
    Symbols(#[from] fieldstone_symbols::Error),
    /// The memory of the program cannot be remapped.
    #[error(transparent)]
    Remap(#[from] fieldstone_remap::Error),
    /// A rule or an option is invalid.
    #[error(transparent)]
    Sharing(#[from] fieldstone_sharing::Error),
    /// An operation of `fieldstone_sys` failed.
    #[error(transparent)]
    Linux(#[from] fieldstone_sys::Error),
}

impl Error {
    /// Wraps the error of a system call with the name of the operation.
    pub(crate) fn system(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| fieldstone_launch::Error::system(operation)(source).into()
    }
}
