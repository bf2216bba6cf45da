//! Finds false sharing in a running program and repairs it: `fieldstone sharing`, `run --repair`
//! and `attach --repair`.
//!
//! ```text
//!   samples ── sampled_code ─→ accesses ── line_detector ─┬→ judged lines ── repairer ─→ moved pages
//!   (sys)      (one loop lap)              (`sharing`)    │                  (`remap`)
//!                                                         └→ detection_session ─→ report
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `detection_session` | `fieldstone sharing`: which judged lines are reported, with their objects |
//! | `repair_session` | the loop of a repair; when sampling pauses |
//! | `line_detector` | counts accesses per line; judges which lines are shared falsely |
//! | `sampled_code` | the accesses of a sample, from its registers and its decoded loop |
//! | `callers` | the callers of a sampled instruction, by its stack |
//! | `hardware_samples` | addresses and cache hits from the processor's own samples |
//! | `budget` | which samples are analysed, within a share of a processor |
//! | `concurrency` | whether a thread runs at the same time as others |
//! | `memory_objects` | which variables, heap blocks and stacks are on a line (from `symbols`) |
//! | `instruction_names` | names of the instructions that access a line |
//! | `repairer` | which pages move, by findings (`selection`) or rules (`requests`); `remap` checks whether a page can move |
//! | `repairer/restore`, `repairer/trials` | restores a page, with the reason; acts on a trial's result |
//! | `page_trial` | whether a moved page is a gain |
//! | `cooldown` | the time to the next repair after a failed one |
//! | `page_requests` | which bytes rules or the program isolate or watch |
//! | `rule_accesses` | counts the accesses to watched bytes |
//! | `event`, `event_names` | what a repair reports; its variables and code by name |
//! | `helper_process` | `run --repair`: a program and the process that repairs it |
//! | `watchdog` | processes that restore the program's memory if the repairer dies |
//! | `available` | whether this user can repair programs |
//! | `repair_lock` | keeps a second repairer away from a process |
//! | `tuning` | all thresholds and intervals, with their reasons |
//! | `error` | errors of detection and repair, with remedies |
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
mod detection_session;
pub mod error;
mod event;
mod event_names;
mod hardware_samples;
mod helper_process;
mod instruction_names;
mod line_detector;
mod memory_objects;
mod page_requests;
mod page_trial;
mod repair_lock;
mod repair_session;
mod repairer;
mod rule_accesses;
mod sampled_code;
mod tuning;
mod watchdog;

pub use available::{check_repair, check_run_repair};
pub use detection_session::{DetectOptions, Detection, detect, detect_in_program};
pub use error::{Error, Result};
pub use event::{RepairEvent, TimedEvent};
pub use event_names::EventNames;
pub use helper_process::{RepairStats, run_repaired};
pub use line_detector::SamplingStats;
pub use repair_session::{RepairOptions, StopFlag, repair};
pub use watchdog::{is_watchdog, run_watchdog};
