//! The result of `fieldstone sharing`: the data behind the schema `fieldstone-sharing/1`.
//!
//! ```text
//!   Sharing ─┬─ findings ─┐  the line with its verdict, its cost, its object, the code, the remedy
//!            ├─ others  ──┘  lines that are no finding
//!            └─ threads      their names
//! ```
//! `place` is whose memory a line is, `saved` reads a file. [`crate::reports::sharing`] is the report.
//!
//! Invariants: numbers are finite; threads of lines may be missing in [`Sharing::threads`]; the verdict of a finding is one by
//! [`fieldstone_sharing::Verdict::is_finding`]. Weights are samples. Fields that a later version adds are skipped on reading, and
//! fields that an earlier version lacked are empty.

#[cfg(test)]
pub(crate) mod fixture;
mod place;
mod saved;

pub use place::{Kind, Place};
pub use saved::load;

use crate::profile::{Machine, Program};
use fieldstone_sharing::{Cost, Judged, Redesign, ignore};
use serde::{Deserialize, Serialize};

/// One look at a program: which lines its threads fight for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sharing {
    /// Always [`Sharing::SCHEMA`].
    pub schema: String,
    /// Version of the tool that looked, such as `0.1.0`.
    #[serde(default)]
    pub tool_version: String,
    /// When it began to look, in seconds since 1970-01-01 UTC.
    #[serde(default)]
    pub taken_at_unix_s: u64,
    /// Where.
    #[serde(default)]
    pub machine: Machine,
    /// The program; of a running one the command as the system tells it.
    pub program: Program,
    /// The running process that was looked at; none if the program was started for it.
    #[serde(default)]
    pub pid: Option<u32>,
    /// How long it was looked at, in seconds.
    #[serde(default)]
    pub duration_s: f64,
    /// How.
    #[serde(default)]
    pub sampling: Sampling,
    /// The threads that were seen.
    #[serde(default)]
    pub threads: Vec<Thread>,
    /// Lines whose bytes should be elsewhere, those that are ignored left out.
    pub findings: Vec<Found>,
    /// Lines that were looked at and are no finding.
    #[serde(default)]
    pub others: Vec<Found>,
    /// Findings that the ignore file kept back.
    #[serde(default)]
    pub ignored: u64,
    /// That file, if there was one.
    #[serde(default)]
    pub ignore_file: Option<String>,
    /// What could not be seen, a sentence each.
    #[serde(default)]
    pub unseen: Vec<String>,
    /// Why the user who looked cannot repair the program, and the command that allows it; `None` if a repair is possible.
    #[serde(default)]
    pub repair_unavailable: Option<String>,
}

/// How the threads were looked at.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// By what, such as `perf's software clock`.
    pub means: String,
    /// Samples a second that were asked for, of each thread that runs.
    pub hertz: f64,
    /// Samples taken.
    pub samples: u64,
    /// Samples that were lost.
    pub lost: u64,
    /// Accesses with an address that the samples showed.
    pub accesses: u64,
    /// Lines that several threads use, though not at the same time, as far as the samples tell.
    pub apart: u64,
}

/// A thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thread {
    /// The kernel's number.
    pub tid: u32,
    /// Its name (`/proc/PID/task/TID/comm`).
    pub name: String,
    /// The function that it began in, where that is known.
    pub start: Option<String>,
}

/// A line that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// What was seen, and the verdict.
    pub judged: Judged,
    /// What it costs at most.
    pub cost: Cost,
    /// Whose memory it is, in order of addresses; several where objects meet on the line.
    #[serde(default)]
    pub places: Vec<Place>,
    /// The code that touches it.
    #[serde(default)]
    pub code: Vec<Code>,
    /// What to change in the source, where the object's layout is known.
    #[serde(default)]
    pub redesign: Option<Redesign>,
    /// Why a repair leaves it as it is, in words; none if it could be repaired.
    #[serde(default)]
    pub refused: Option<String>,
    /// Sampled loads of it that found it modified in another processor's cache (HITM); 0 where the processor tells of none.
    #[serde(default)]
    pub contended: u64,
}

/// An instruction that touches a line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Code {
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
    /// It reads the line.
    pub reads: bool,
    /// It writes the line.
    pub writes: bool,
    /// The threads that were seen at it.
    pub threads: Vec<u32>,
    /// Samples at it that fell on the line.
    pub weight: f64,
}

impl Default for Sharing {
    /// A look at nothing, of this version's schema.
    fn default() -> Self {
        Self {
            schema: Self::SCHEMA.to_owned(),
            tool_version: String::new(),
            taken_at_unix_s: 0,
            machine: Machine::default(),
            program: Program::default(),
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

    /// Is there anything to tell: exit code 1?
    pub fn has_findings(&self) -> bool {
        !self.findings.is_empty()
    }
}

impl Found {
    /// Its names, as [`fieldstone_sharing::Ignore::find`] takes them: of its objects and of the places where they were
    /// allocated, of the functions that touch it, of the modules of both.
    pub fn names(&self) -> impl Iterator<Item = (ignore::Kind, &str)> {
        let objects = self.places.iter().flat_map(Place::names).map(|name| (ignore::Kind::Object, name));
        let functions = self.code.iter().map(|code| (ignore::Kind::Function, code.function.as_str()));
        let modules = self.places.iter().filter_map(|place| place.module.as_deref());
        let modules = modules.chain(self.code.iter().map(|code| code.module.as_str()));
        let all = objects.chain(functions).chain(modules.map(|name| (ignore::Kind::Module, name)));
        all.filter(|(_, name)| !name.is_empty())
    }
}
