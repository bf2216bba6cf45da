//! The data of a run with a bound on resident memory.

use serde::{Deserialize, Serialize};

use crate::GuardStats;

/// The counts of `fieldstone run --resident --stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PagingStats {
    /// [`PagingStats::SCHEMA`].
    pub schema: String,
    /// Version of the tool that ran the program.
    pub tool_version: String,
    /// The command.
    pub command: Vec<String>,
    /// The bound that the user gave.
    pub bound_bytes: u64,
    /// How the program ended.
    pub outcome: String,
    /// Each process, in the order of their starts.
    pub processes: Vec<PagedProcess>,
    /// All processes together, over time; empty if the run was not watched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<PagingSample>,
    /// The counts of guarded allocations; `None` without `--guard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardStats>,
}

impl PagingStats {
    /// The schema of this version.
    pub const SCHEMA: &str = "fieldstone-paging/1";
}

/// The state of all processes at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PagingSample {
    /// Milliseconds since the start of the program.
    pub t_ms: u64,
    /// Private bytes that are resident, paged or not.
    pub resident_bytes: u64,
    /// Bytes that pages take in all stores.
    pub stored_bytes: u64,
    /// Faults so far.
    pub faults: u64,
}

/// The counts of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PagedProcess {
    /// Its number, in its own pid namespace.
    pub pid: u32,
    /// The first 15 bytes of the program's name.
    pub name: String,
    /// Why the process has no bound, as an errno; 0 if it has one.
    pub refused_errno: u32,
    /// The most bytes of paged memory that were resident.
    pub peak_resident_bytes: u64,
    /// Private bytes that are not paged, when last counted.
    pub unpaged_bytes: u64,
    /// Pages that left memory.
    pub evicted_pages: u64,
    /// Pages among them that contained zeros only, and were stored nowhere.
    pub evicted_zero_pages: u64,
    /// Pages among them that had not changed since they came back, and were still stored.
    #[serde(default)]
    pub evicted_unchanged_pages: u64,
    /// Faults that were served.
    pub faults: u64,
    /// Faults among them at pages that were stored nowhere.
    pub first_accesses: u64,
    /// Attempts to evict a page that was locked, pinned, not writable, or shared with a child.
    pub unmovable_pages: u64,
    /// Attempts to store a page that no store took.
    pub refused_pages: u64,
    /// Pages that were damaged or could not be read.
    pub lost_pages: u64,
    /// Forked children that got all stored pages at once.
    pub children: u64,
    /// The stores, hottest first.
    pub stores: Vec<PageStore>,
    /// The functions that waited for pages, those with the most faults first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<FaultFunction>,
}

/// A function that waited for pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultFunction {
    /// Its name, or the place in its file.
    pub function: String,
    /// The source line with the most faults, like `src/a.c:12`, or the file of the code.
    pub place: String,
    /// Faults that were recorded in it.
    pub faults: u64,
    /// Faults that were recorded in all functions of the process: one in 32.
    pub of_faults: u64,
}

/// The counts of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageStore {
    /// Its name: `lz4`, `zstd`, `file` or `redis`.
    pub name: String,
    /// Pages that came back from it.
    pub loaded_pages: u64,
    /// Time to read them from the store, in nanoseconds.
    pub load_ns: u64,
    /// Bytes that its pages take at the end.
    pub bytes: u64,
}
