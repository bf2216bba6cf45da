//! Finds false sharing in a running program and repairs it: `fieldstone sharing`, `run --repair`
//! and `repair`.
//!
//! ```text
//!   samples ── sampled_code ─→ accesses ── line_monitor ─→ judged lines ── repairer ─→ moved pages
//!   (sys)      (one loop lap)              (`sharing`)                     (`remap`)
//! ```
//! | file | content |
//! |---|---|
//! | `sampled_code` | the accesses of a sample, from its registers and its decoded loop |
//! | `callers` | the callers of a sampled instruction, for loops whose body is a call |
//! | `hardware_samples` | addresses and cache hits from the processor's own samples |
//! | `budget` | the choice of samples that are analysed, within a share of a processor |
//! | `concurrency` | whether a thread runs at the same time as others |
//! | `line_monitor` | samples in, judged lines out |
//! | `detect` | detection without repair: the lines for the report |
//! | `memory_objects`, `instruction_names` | objects on a line, names of instructions |
//! | `session` | the loop of a repair, from the start to the end |
//! | `repairer` | moves pages, by findings (`selection`) and by rules (`requests`) |
//! | `page_trial`, `cooldown` | whether a moved page is a gain; the time to the next repair |
//! | `page_requests`, `rule_accesses` | bytes to isolate or watch; the accesses to watched bytes |
//! | `event`, `variable_names` | what a repair reports; the variables on contended lines |
//! | `helper_process` | `run --repair`: a program and the process that repairs it |
//! | `watchdog` | processes that put the program's memory back if the repairer dies |
//! | `available` | whether this user can repair programs |
//! | `repair_lock` | keeps a second repairer away from a process |
//! | `tuning` | all thresholds and intervals, with their reasons |
//!
//! Invariants: nothing is loaded into the program. The program is only sampled, and not traced,
//! until a page is moved.
//!
//! Source: Taylor, *Cachekata* (seed 002), chapters 4 and 5.
#![cfg(target_arch = "x86_64")]

mod available;
mod budget;
mod callers;
mod concurrency;
mod cooldown;
mod detect;
pub mod error;
mod event;
mod hardware_samples;
mod helper_process;
mod instruction_names;
mod line_monitor;
mod memory_objects;
mod page_requests;
mod page_trial;
mod repair_lock;
mod repairer;
mod rule_accesses;
mod sampled_code;
mod session;
mod tuning;
mod variable_names;
mod watchdog;

pub use available::{check_repair, check_run_repair};
pub use detect::{DetectOptions, Detection, detect, detect_in_program};
pub use error::{Error, Result};
pub use event::{RepairEvent, TimedEvent};
pub use helper_process::{RepairStats, run_repaired};
pub use line_monitor::SamplingStats;
pub use session::{RepairOptions, StopFlag, repair};
pub use variable_names::VariableNames;
pub use watchdog::{is_watchdog, run_watchdog};
