//! Start a program under a treatment, watch its memory, forward signals, end it in time.
//!
//! ```text
//! program     which file a command names, and whether it can carry the agent
//! startable   why a program cannot be started
//! agent       where the agent's file is
//! shared      records that this process shares with injected code
//! session     the record shared with processes that have a region
//! pages       kernel settings and huge-page pools that are held for a run
//! standard_streams  which standard streams were closed when this command started
//! launch      starts a program: untouched, on small pages, with a region, under an emulator
//! vectors     arguments and environment as execve gets them
//! look, watch memory and pages over time, from the kernel's tables
//! clock       the clocks that are used
//! identity    the names and numbers of a process
//! sight       all that was seen of a program's processes, for the reports
//! signals     forwarded to the program, or an orderly end
//! stop        ends the started processes: within a time limit, SIGTERM first
//! run         `fieldstone run --region`
//! collapse    huge pages for a process that carries no agent, from outside
//! ```

pub mod agent;
mod attribution;
pub mod clock;
pub mod collapse;
pub mod error;
mod identity;
pub mod launch;
mod look;
pub mod outcome;
pub mod pages;
pub mod program;
pub mod run;
pub mod session;
pub mod shared;
pub mod sight;
pub mod signals;
mod standard_streams;
pub mod startable;
pub mod stop;
mod vectors;
pub mod watch;

pub use agent::AgentFile;
pub use error::{Error, Result};
pub use program::Program;
pub use session::{Also, RegionOptions};
