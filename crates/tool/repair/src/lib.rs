//! `fieldstone sharing` and `run --repair`: who fights for which cache line in a running program, and an end to it.
//!
//! ```text
//!   samples of registers ── around ──→ accesses ── watcher ──→ lines, judged ── repairer ──→ pages moved, trials
//!   (sys::sampling)        one lap of the loop    (the `sharing` crate)        (the `remap` crate)
//! ```
//! | file | |
//! |---|---|
//! | `around` | a sample's accesses: the loop around it, decoded once, walked with its registers |
//! | `callers` | the calls that a sample was taken in, for laps that are counted there |
//! | `heard` | what the processor told beside: addresses, hits on modified lines |
//! | `budget` | how many samples are walked, so that looking on stays cheap |
//! | `company` | whether a thread runs beside others: what it does alone is not walked |
//! | `watcher` | samples in, lines out |
//! | `available` | whether this user can repair programs at all |
//! | `asked` | what the program or a file of rules asks for |
//! | `repairer` | findings in, pages moved; repairs that are not worth it taken back |
//! | `trials` | whether one is: what it costs, how fast threads get on with it and without |
//! | `cooldown` | how long a page is left alone after a repair of it has failed |
//! | `find`, `owners`, `code` | looking on only: what was found, whose memory it is, names of instructions |
//! | `follow` | one thread that does both until the program ends or it is told to let go |
//! | `beside` | a program started, and that thread in a process beside it |
//! | `watchdog` | processes that put the program's memory back when the repairer dies |
//!
//! Nothing is loaded into the program. It is not traced before something is found: until then it is only sampled.
//!
//! Source: Taylor, *Cachekata* (seed 002), chapters 4 and 5.
#![cfg(target_arch = "x86_64")]

mod around;
mod asked;
mod available;
mod beside;
mod budget;
mod callers;
mod code;
mod company;
mod cooldown;
pub mod error;
mod find;
mod follow;
mod heard;
mod owners;
mod repairer;
mod trials;
mod watchdog;
mod watcher;

pub use available::{check_repair, check_run_repair};
pub use beside::{RepairStats, run};
pub use error::{Error, Result};
pub use find::{Look, Looked, look_on, look_on_program};
pub use follow::{Event, Happened, Manner, Stop, repair};
pub use repairer::{Did, Repairer, Undone};
pub use watchdog::{is_watchdog, run_watchdog};
pub use watcher::{Seen, Watcher};
