//! Receives the memory errors that the guard agent finds in a program, and names their stacks.
//!
//! ```text
//! agent ── FindingCell in a memfd ──→ receiver   waits for findings in a thread
//!                                        │
//!          /proc/PID/maps, files  ──→ stacks     addresses to functions and lines
//!          instruction            ──→ access     bytes of the access
//!                                        ▼
//!                             fieldstone_report::HeapError ──→ the command prints and saves it
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `receiver` | the settings of a run, also how many first objects of a site are guarded (`FIRST_OF_SITE`) |
//! | `stacks` | the functions and lines of a stack |
//! | `access` | the bytes of an access |
//!
//! The process that found an error waits meanwhile, at most 10 s, so its files are still mapped.

mod access;
mod receiver;
mod stacks;

pub use fieldstone_guard::Side;
pub use receiver::{GuardOptions, GuardedRun};
pub use stacks::{ProcessMaps, StackNames};
