//! The output of `fieldstone run --pid --stats FILE`: the data behind the schema
//! `fieldstone-collapse/1`.

use serde::{Deserialize, Serialize};

/// One pass over the memory of a running process, and of its children if requested.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Collapse {
    /// Always [`Collapse::SCHEMA`].
    pub schema: String,
    /// Version of the tool.
    #[serde(default)]
    pub tool_version: String,
    /// The processes, the one that was named first.
    pub processes: Vec<CollapsedProcess>,
}

impl Collapse {
    /// Schema string of this version.
    pub const SCHEMA: &'static str = "fieldstone-collapse/1";
}

/// The result for one process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CollapsedProcess {
    /// Process id.
    pub pid: u32,
    /// Name (`/proc/PID/comm`).
    pub name: String,
    /// How long it took, in seconds, where that was recorded.
    pub duration_s: Option<f64>,
    /// Its memory before the pass.
    pub before: Tally,
    /// Its memory after the pass.
    pub after: Tally,
    /// Aligned ranges of 2 MiB that were put on a huge page each.
    pub moved_ranges: u64,
    /// Their bytes that were in memory before.
    pub moved_bytes: u64,
    /// What stayed on small pages, an entry for each reason.
    pub left: Vec<UncollapsedMemory>,
    /// Ranges of 2 MiB that were not tried, since the pass was stopped.
    pub not_reached_ranges: u64,
    /// Whether the process ended during the pass.
    pub ended: bool,
}

/// A process's private anonymous read-write memory: the heap, mappings, stacks, zeroed data. Its
/// files' data is not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// In memory.
    pub resident_bytes: u64,
    /// Of it, on huge pages, including those of the hugetlb pool.
    pub huge_bytes: u64,
}

/// Memory that stayed on small pages for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncollapsedMemory {
    /// The reason.
    pub reason: String,
    /// Ranges of 2 MiB, or less at a mapping's end.
    pub ranges: u64,
    /// Their bytes that were in memory.
    pub bytes: u64,
}
