//! Statistics of measurements.
//!
//! ```text
//! estimate   a median and its interval, from order statistics; ratios of two sets; noise
//! interval   a value with bounds, and its arithmetic
//! rounds     contenders run alternately, and the ratios of their pairs
//! random     SplitMix64: seeded numbers for workloads and tests
//! ```

mod estimate;
mod interval;
pub mod random;
mod rounds;

pub use estimate::{Estimate, FEWEST_FOR_INTERVAL, median, noise, pairs_for};
pub use interval::Interval;
pub use rounds::{Rounds, order, pair};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
