//! Start a program under a treatment, monitor its memory, forward signals, end it within a limit.
//!
//! ```text
//! before     program           the file of a command; whether it can carry the agent
//!            exec_check        why a program cannot be started
//!            agent             installs the agent's file
//!            pages             kernel settings and huge-page pools, changed for a run
//! start      launch            untouched, on small pages, with a region, under an emulator
//!            exec_vectors      arguments and environment as execve gets them
//!            standard_streams  which standard streams were closed at the start
//!            shared_record     memory shared with injected code
//!            session           the record shared with processes that have a region
//! run        memory_monitor    samples the process tree in a thread
//!            memory_snapshot   one sample: mappings and pages of one process
//!            attribution       why memory is outside the region
//!            identity          names of a process, and its number in its pid namespace
//!            memory_history    all samples of all processes, for reports
//!            signals           selects how a command handles its signals: forwards them, or ends
//!            signals/forwarder waits for the program's end, stops and continues with it, and
//!                              forwards signals
//!            collapse          which memory of a running process is put on huge pages from outside
//! end        stop              SIGTERM, SIGKILL, time limit
//!            outcome           exit code or signal
//! command    run               `fieldstone run --region`, and with preloaded libraries
//! all        clock             the clocks, in nanoseconds
//!            error             errors, with remedies
//! ```

pub mod agent;
mod attribution;
pub mod clock;
pub mod collapse;
pub mod error;
pub mod exec_check;
mod exec_vectors;
pub mod identity;
pub mod launch;
pub mod memory_history;
pub mod memory_monitor;
mod memory_snapshot;
pub mod outcome;
pub mod pages;
pub mod program;
pub mod run;
pub mod session;
pub mod shared_record;
pub mod signals;
mod standard_streams;
pub mod stop;

pub use agent::AgentFile;
pub use error::{Error, Result};
pub use program::Program;
pub use session::{ExtraMemory, RegionOptions};
