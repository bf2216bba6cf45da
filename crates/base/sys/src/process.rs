//! Processes as a supervisor sees them: statistics, tree, inherited settings, exit status.
//!
//! | file | what it reads or does |
//! |---|---|
//! | `stat` | [`stat()`]: the resource usage and parent of one process |
//! | `tree` | [`descendants`] of a process |
//! | `control` | what children inherit |
//! | `capability` | [`has_capability`]: privileges |
//! | `wait` | [`wait4`]: the exit status of a child |
//! | `memory` | [`ProcessMemory`]: memory of another process |

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
