//! Counts of samples.

use serde::{Deserialize, Serialize};

/// Counts of samples since the detector was opened. The names in JSON are part of the schema
/// `fieldstone-repair/1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingStats {
    /// Samples that were taken.
    pub samples: u64,
    /// Samples that were analysed.
    #[serde(rename = "walked")]
    pub analysed: u64,
    /// Samples that were skipped because only one thread was running.
    #[serde(rename = "alone")]
    pub single_threaded: u64,
    /// Analysed samples without a memory access.
    #[serde(rename = "blind")]
    pub without_access: u64,
    /// Accesses of the other analysed samples.
    pub accesses: u64,
    /// Samples that the kernel dropped because its buffers were full.
    pub lost: u64,
    /// Accesses and jumps from hardware samples; 0 where the processor has none.
    #[serde(rename = "told")]
    pub hardware_records: u64,
    /// Samples outside 64-bit code.
    pub unusable: u64,
    /// Number of times the kernel limited the rate of samples.
    pub throttled: u64,
    /// Number of pauses of sampling.
    pub pauses: u64,
    /// Number of times the process started another program by execve(2).
    pub execs: u64,
    /// Whether the program has ended.
    pub ended: bool,
}
