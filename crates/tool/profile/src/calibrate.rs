//! Measure the cost of page walks on this machine by timing loads, without hardware counters.
//!
//! ```text
//!   4 KiB pages   |---- load ----|-- walk --|     the same loads, in the same order,
//!   2 MiB pages   |---- load ----|                in arrays of the same size, alternately
//!                                 \________/
//!                          the difference per load
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `difference` | the time per load on small and on huge pages; when the measurement ends |
//! | `load_sequence` | which loads are timed, and in which order |
//! | `replay` | the same for the addresses of a program |
//! | `filler` | instructions between two loads |
//! | `array` | an array on pages of one kind, verified |
//!
//! The cost of a walk depends on its context. Dependent loads pay all of it, and independent walks
//! overlap. Page by page, most walks find their entry in a cache line that the walk before has
//! read. So the replay uses:
//! - the program's addresses, with its share of dependent loads (`load_sequence`, `replay`);
//! - as many instructions per load as the program has (`filler`);
//! - and the same footprint page by page.
//!
//! `fieldstone_translation::Calibration` computes prices from the differences and the simulated
//! walks. Beyond the reach of the TLBs for 2 MiB pages, the difference is the extra cost of 4 KiB
//! pages only.
//!
//! Invariants: both arrays are resident on their kind of page, verified by smaps (`array`). Times
//! are thread CPU time, and the first pair is dropped. The interval is that of
//! [`fieldstone_stats`].

mod array;
mod difference;
mod filler;
mod load_sequence;
mod replay;

pub use difference::{Effort, LoadDifference};
pub use replay::{PhaseDependence, ReplayResult, replay};

#[cfg(test)]
mod tests;
