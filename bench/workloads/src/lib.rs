//! The code shared by the measured programs: sizes, a seeded generator, filled arrays, phase times,
//! exit codes.
//!
//! Each program is a file or folder in `src/bin`. Programs take memory from the system allocator
//! through `Vec` and `Box`, so that a measurement changes only the page kind. Each program
//!
//! - draws all random numbers from a fixed seed, so that two runs do the same work;
//! - checks its result, and prints a checksum on stdout that is the same in each run;
//! - prints the time of its phases on stderr, one line `phase: seconds` each; `init` is the first
//!   touch of its memory;
//! - exits with 0 if the result is right, 1 if it is wrong, 2 if it cannot run (arguments, memory).
//!
//! | module | what it does or decides |
//! |---|---|
//! | `blackscholes` | option prices; also measured by other crates |
//! | `game` | Connect Four; also measured by other crates |
//! | `gups` | random updates; also measured by other crates |
//! | `blocks` | random use of the C allocator with checked contents |
//! | `fill` | filled arrays, for page faults before the measured kernel |
//! | `phase` | prints the time of each phase |
//! | `size` | parses sizes: `64K`, `2GiB` |
//! | `verdict` | prints the checksum; selects the exit code |
//! | `error` | the error type of the programs |
//!
//! Two kinds are not built by cargo: `rbtree.cpp`, and the C programs for false sharing in
//! `sharing`, which are built at several optimisation levels: `counters` (with patterns that only
//! look like false sharing), `linear_regression`, `histogram`, `string_match`, `word_count`,
//! `streamcluster`.
//!
//! `odd` and `mmap-stress` are not measured: the tests of `profile` and `run` use them.

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
