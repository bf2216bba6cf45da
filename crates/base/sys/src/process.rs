//! Processes as a supervisor sees them: statistics, tree, inherited settings, exit status.
//!
//! One file each: [`stat()`] reads one process, [`descendants`] lists the tree, `control` sets what
//! children inherit, [`has_capability`] reads privileges, [`wait4`] reaps, [`ProcessMemory`] reads
//! and writes memory.

mod capability;
mod control;
mod memory;
mod stat;
mod tree;
mod wait;

pub use capability::{Capability, has_capability};
pub use control::{set_child_subreaper, set_parent_death_signal, set_thp_disabled, thp_disabled};
pub use memory::{ProcessMemory, trace_failure};
pub use stat::{Stat, State, comm, exe, has_ended, has_thp_disabled, parse_stat, stat};
pub use tree::{children, descendants, threads};
pub use wait::{ChildChange, ChildExit, is_child_running, wait_change, wait4};
