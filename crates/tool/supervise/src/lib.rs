//! Our side of a running program: find it, start it, follow it, measure it.
//!
//! ```text
//! program     which file a command names, and whether it can carry the agent
//! startable   why a program cannot be started
//! agent       where the agent's file lies
//! shared      records that injected code shares with us
//! session     the record shared with injected processes
//! pages       settings turned and pools filled for a run, and given back
//! standard_streams  which standard streams were closed when this command started
//! launch      starting under a treatment: untouched, small pages, region
//! vectors     arguments and environment as execve gets them
//! look, watch memory and pages over time, from the kernel's tables
//! clock       the clocks to go by
//! identity    the names and numbers of a process
//! sight       what was seen, put together for the reports
//! signals     passed on, or turned into an orderly end
//! calibrate   what a page walk costs here, by loads on pages of both sizes
//! symbols     names for the code that allocates
//! trace       a program traced, and simulated while it runs
//! stop        ending what was started: in time, gently first, nothing left behind
//! run         `fieldstone run --region`
//! collapse    huge pages from outside, where there can be no agent
//! profile     `fieldstone profile`
//! objects     whose memory an address is: variable, block, type
//! sharing     `fieldstone sharing`, and lines parted while a program runs
//! ```

pub mod agent;
mod attribution;
pub mod calibrate;
mod clock;
pub mod collapse;
pub mod error;
mod identity;
pub mod launch;
mod look;
pub mod objects;
pub mod outcome;
pub mod pages;
pub mod profile;
pub mod program;
pub mod run;
pub mod session;
mod shared;
pub mod sharing;
pub mod sight;
pub mod signals;
mod standard_streams;
mod startable;
mod stop;
pub mod symbols;
pub mod trace;
mod vectors;
pub mod watch;

pub use agent::AgentFile;
pub use error::{Error, Result};
pub use program::Program;
pub use session::{Also, RegionOptions};
