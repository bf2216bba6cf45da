//! What page walks cost a program on this machine, in nanoseconds, without any counter.
//!
//! ```text
//!   4 KiB pages   |---- load ----|-- walk --|     the same loads, in the same order, at the same places of an array of the
//!   2 MiB pages   |---- load ----|                same size; one after the other, again and again, first this one, then that
//!                                 \________/
//!                          the difference a load
//! ```
//! A walk has no one cost. Scattered loads that wait for each other pay all of it; independent ones overlap their walks; page by
//! page, walks find their entries in a line of the cache that the one before has read. So the program's own addresses are loaded in chains,
//! in which as many loads wait for another as of its walks do (`replay`), with as many other instructions between them as the program has
//! there (`others`), and its footprint page by page. `fieldstone_translation::Calibration` makes prices of the
//! differences, with the walks that a model counted. What is left on 2 MiB pages counts as theirs: beyond their own reach the
//! difference is what 4 KiB pages cost *more*.
//!
//! Both arrays are resident, and lie on the pages that they are for, by the kernel's word (`array`). The time is the thread's CPU
//! time. The first pair is not counted. Source: the pairing is that of `profile`; the interval is that of [`fieldstone_stats`].

mod array;
mod difference;
mod kernel;
mod others;
mod replay;

pub use difference::{Difference, Effort};
pub use replay::{Replayed, Waiting, replay};

#[cfg(test)]
mod tests;
