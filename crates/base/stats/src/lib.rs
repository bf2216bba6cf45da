//! Statistics of measurements.
//!
//! ```text
//! random    SplitMix64: seeded numbers for workloads, tests and resampling
//! ```

pub mod random;
