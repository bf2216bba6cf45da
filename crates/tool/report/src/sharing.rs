//! The result of `fieldstone sharing`: the data behind the schema `fieldstone-sharing/1`.
//!
//! ```text
//!   Sharing ─┬─ findings ─┐  the line with its verdict, its cost, its object, the code, the remedy
//!            ├─ others  ──┘  lines that are no finding
//!            └─ threads      their names
//! ```
//! `place` is whose memory a line is, `saved` reads a file. [`crate::reports::sharing`] is the
//! report.
//!
//! Invariants: numbers are finite; threads of lines may be missing in [`Sharing::threads`]; the
//! verdict of a finding is one by [`fieldstone_sharing::Verdict::is_finding`]. Weights are samples.
//! Fields that a later version adds are skipped on reading, and fields that an earlier version
//! lacked are empty.

#[cfg(test)]
pub(crate) mod fixture;
mod place;
mod saved;

pub use place::{MemoryKind, MemoryOwner};
pub use saved::load;

use crate::profile::{MachineRecord, ProfiledProgram};
use fieldstone_sharing::{JudgedLine, LineCost, Redesign, ignore};
use serde::{Deserialize, Serialize};

/// A sampled program: the cache lines that its threads contend for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sharing {
    /// Always [`Sharing::SCHEMA`].
    pub schema: String,
    /// Version of the tool, such as `0.1.0`.
    #[serde(default)]
    pub tool_version: String,
    /// When sampling began, in seconds since 1970-01-01 UTC.
    #[serde(default)]
    pub taken_at_unix_s: u64,
    /// The machine.
    #[serde(default)]
    pub machine: MachineRecord,
    /// The program; of a running process the command of `/proc/PID/cmdline`.
    pub program: ProfiledProgram,
    /// The running process that was sampled; `None` if the program was started for it.
    #[serde(default)]
    pub pid: Option<u32>,
    /// How long it was sampled, in seconds.
    #[serde(default)]
    pub duration_s: f64,
    /// How it was sampled.
    #[serde(default)]
    pub sampling: Sampling,
    /// The threads with samples.
    #[serde(default)]
    pub threads: Vec<SampledThread>,
    /// Lines with false sharing, except ignored ones.
    pub findings: Vec<LineReport>,
    /// Other lines with samples of several threads.
    #[serde(default)]
    pub others: Vec<LineReport>,
    /// Number of findings that the ignore file names.
    #[serde(default)]
    pub ignored: u64,
    /// The ignore file, if there was one.
    #[serde(default)]
    pub ignore_file: Option<String>,
    /// What sampling could not see, a sentence each.
    #[serde(default)]
    pub unseen: Vec<String>,
    /// Why this user cannot repair the program, and the command that allows it; `None` if a repair
    /// is possible.
    #[serde(default)]
    pub repair_unavailable: Option<String>,
}

/// How the threads were sampled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// The source of samples, such as `perf's software clock`.
    pub means: String,
    /// Requested samples per second of each running thread.
    pub hertz: f64,
    /// Samples taken.
    pub samples: u64,
    /// Samples that were lost.
    pub lost: u64,
    /// Accesses of the samples that have an address.
    pub accesses: u64,
    /// Lines that several threads use, as far as the samples show not at the same time.
    pub apart: u64,
}

/// A thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SampledThread {
    /// The kernel's number.
    pub tid: u32,
    /// Its name (`/proc/PID/task/TID/comm`).
    pub name: String,
    /// The function that it began in, where that is known.
    pub start: Option<String>,
}

/// A sampled cache line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LineReport {
    /// The accesses to it, and the verdict.
    pub judged: JudgedLine,
    /// An upper bound of its cost.
    pub cost: LineCost,
    /// The objects on the line, in order of addresses.
    #[serde(default)]
    pub places: Vec<MemoryOwner>,
    /// The code that accesses it.
    #[serde(default)]
    pub code: Vec<SampledInstruction>,
    /// What to change in the source, where an object's layout is known: the layout that separates
    /// the most contended members of this line.
    #[serde(default)]
    pub redesign: Option<Redesign>,
    /// The new layouts of the other contended objects on the line, in the same order.
    #[serde(default)]
    pub other_redesigns: Vec<Redesign>,
    /// Why a repair does not change it, in words; `None` if it could be repaired.
    #[serde(default)]
    pub refused: Option<String>,
    /// Sampled loads of it that found it modified in another processor's cache (HITM); 0 where the
    /// processor records none.
    #[serde(default)]
    pub contended: u64,
}

/// An instruction that accesses a line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SampledInstruction {
    /// Its address, less where its module was loaded: as `objdump` shows it.
    pub ip: u64,
    /// The function, where a symbol names it.
    pub function: String,
    /// Its source file, where debug information names it.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The program or library that it is in.
    pub module: String,
    /// Whether it reads the line.
    pub reads: bool,
    /// Whether it writes the line.
    pub writes: bool,
    /// The threads with samples at it.
    pub threads: Vec<u32>,
    /// Samples at it that access the line.
    pub weight: f64,
}

impl Default for Sharing {
    /// A report without samples, of this version's schema.
    fn default() -> Self {
        Self {
            schema: Self::SCHEMA.to_owned(),
            tool_version: String::new(),
            taken_at_unix_s: 0,
            machine: MachineRecord::default(),
            program: ProfiledProgram::default(),
            pid: None,
            duration_s: 0.0,
            sampling: Sampling::default(),
            threads: Vec::new(),
            findings: Vec::new(),
            others: Vec::new(),
            ignored: 0,
            ignore_file: None,
            unseen: Vec::new(),
            repair_unavailable: None,
        }
    }
}

impl Sharing {
    /// Schema string of this version.
    pub const SCHEMA: &'static str = "fieldstone-sharing/1";

    /// Whether there is a finding: exit code 1.
    pub fn has_findings(&self) -> bool {
        !self.findings.is_empty()
    }
}

impl LineReport {
    /// The new layouts of all contended objects on the line, the best first.
    pub fn redesigns(&self) -> impl Iterator<Item = &Redesign> {
        self.redesign.iter().chain(&self.other_redesigns)
    }

    /// Its names for [`fieldstone_sharing::Ignore::find`]: of its objects and the functions that
    /// allocated them, of the functions that access it, of the modules of both.
    pub fn names(&self) -> impl Iterator<Item = (ignore::NameKind, &str)> {
        let objects = self.places.iter().flat_map(MemoryOwner::names).map(|name| (ignore::NameKind::Object, name));
        let functions = self.code.iter().map(|code| (ignore::NameKind::Function, code.function.as_str()));
        let modules = self.places.iter().filter_map(|place| place.module.as_deref());
        let modules = modules.chain(self.code.iter().map(|code| code.module.as_str()));
        let all = objects.chain(functions).chain(modules.map(|name| (ignore::NameKind::Module, name)));
        all.filter(|(_, name)| !name.is_empty())
    }
}
