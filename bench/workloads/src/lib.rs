//! What the measured programs share: sizes on the command line, a seeded generator, filled arrays, phase times, the verdict.
//!
//! The programs are plain single programs, one file or folder each in `src/bin`. They take their memory from the system
//! allocator through `Vec` and `Box`, so that the page kind is the only thing that a measurement changes. Each
//!
//! - draws everything from a fixed seed, so that two runs do the same work;
//! - checks its own result, and prints a checksum on stdout that is the same in each run;
//! - prints the time of its phases on stderr, a `phase: seconds` line each; `init` is the first touch of its memory;
//! - ends with 0 when the result is right, 1 when it is wrong, 2 when it could not run (arguments, memory).
//!
//! Kernels that other crates measure too are modules here: `blackscholes`, `game`, `gups`.
//!
//! Two kinds are not built by cargo: `rbtree.cpp`, and the programs for false sharing in `sharing`, C, since it matters for them
//! what a compiler keeps in registers at each level of optimisation: `counters` (and what looks like false sharing and is
//! none), `linear_regression`, `histogram`, `string_match`, `word_count`, `streamcluster`.
//!
//! `odd` and `mmap-stress` are not measured: they are what the tests of `profile` and `run` let loose on them.

pub mod blackscholes;
pub mod blocks;
mod error;
pub mod fill;
pub mod game;
pub mod gups;
pub mod phase;
pub mod size;
pub mod verdict;

pub use error::Error;
pub use fieldstone_stats::random;
