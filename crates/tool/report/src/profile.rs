//! The result of `fieldstone profile`: the data behind the schema `fieldstone-profile/1`.
//!
//! ```text
//!   round 0           round 1           ...
//!   4k thp hugetlb    hugetlb thp 4k         position counts 0, 1, 2, ... through the whole sequence
//!   └── pairs ──┘     └── pairs ──┘          a pair: one run of a kind, one of the baseline, same round
//! ```
//!
//! Invariants: every `MeasuredRun::kind` names an entry of [`Profile::kinds`]; numbers are finite (JSON
//! knows no NaN: one would be written as `null` and refused on reading). Fields that a later
//! version adds are skipped on reading, and fields that an earlier version lacked are empty; a
//! change of meaning changes the schema string.

use crate::footprint::Footprint;
use crate::resident::Resident;
use crate::translation::Translation;
use serde::{Deserialize, Serialize};

/// One profile: the measurements of a program that was run alternately on several page kinds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Always [`Profile::SCHEMA`].
    pub schema: String,
    /// Version of the tool that measured, such as `0.1.0`.
    #[serde(default)]
    pub tool_version: String,
    /// When the first run began, in seconds since 1970-01-01 UTC.
    #[serde(default)]
    pub taken_at_unix_s: u64,
    /// Where it was measured.
    #[serde(default)]
    pub machine: MachineRecord,
    /// What was measured.
    pub program: ProfiledProgram,
    /// Which number of a run is compared.
    pub metric: Metric,
    /// The page kind that the others are compared with: `4k`.
    pub baseline: String,
    /// The requested page kinds, the baseline first, those that the machine lacks included.
    pub kinds: Vec<RequestedKind>,
    /// Every measured run, in the order in which they ran.
    pub samples: Vec<MeasuredRun>,
    /// One unmeasured warm-up run a kind, watched while it ran.
    #[serde(default)]
    pub footprints: Vec<Footprint>,
    /// Resident memory on each kind, compared with the baseline.
    #[serde(default)]
    pub resident: Vec<Resident>,
    /// Problems around the measurement, a sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Behaviour of the program that a user must know.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// The result of a traced run, if one was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translation: Option<Translation>,
}

impl Profile {
    /// Schema string of this version.
    pub const SCHEMA: &'static str = "fieldstone-profile/1";

    /// The kind called `name`, if it was requested.
    pub fn kind(&self, name: &str) -> Option<&RequestedKind> {
        self.kinds.iter().find(|kind| kind.name == name)
    }

    /// The footprint of the kind called `name`, if one was taken.
    pub fn footprint(&self, name: &str) -> Option<&Footprint> {
        self.footprints.iter().find(|footprint| footprint.kind == name)
    }
}

/// The properties of the machine that the numbers depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineRecord {
    /// `uname -sr`, such as `Linux 6.18.0`.
    pub kernel: String,
    /// `uname -m`, such as `x86_64`.
    pub architecture: String,
    /// Model name of the processor.
    pub cpu: String,
    /// Processors that the program could run on.
    pub cpus: u32,
    /// Memory of the machine, or the control group's limit where that is smaller.
    pub memory_bytes: u64,
    /// Swap space of the machine.
    pub swap_bytes: u64,
    /// The chosen word of `/sys/kernel/mm/transparent_hugepage/enabled`: `always`, `madvise`,
    /// `never`.
    pub thp_enabled: String,
    /// Whether there is a hypervisor. The host's page size then has an effect that cannot be
    /// measured.
    pub virtual_machine: bool,
}

/// The program and its load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfiledProgram {
    /// Program and arguments, as given.
    pub command: Vec<String>,
    /// Name of the process of the tree whose memory was measured.
    #[serde(default)]
    pub primary: String,
    /// Shell command that loads the program, if it is a server.
    #[serde(default)]
    pub load: Option<String>,
    /// Port that is open when the server is ready.
    #[serde(default)]
    pub ready_port: Option<u16>,
    /// Requests of one load, where known: values are then shown for each request too.
    #[serde(default)]
    pub requests: Option<u64>,
}

/// Which number of a run is compared. Each is in seconds, and lower is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Time from start to end of the program.
    Time,
    /// User and system time of the program and its children.
    Cpu,
    /// Time that the load took. The load is a fixed piece of work, so less time is more throughput.
    Throughput,
}

impl Metric {
    /// What the value is, for a heading: `time`, `CPU time`, `load time`.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Cpu => "CPU time",
            Self::Throughput => "load time",
        }
    }
}

/// A requested page kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedKind {
    /// `4k`, `folio-64k`, `thp`, `hugetlb` or `hugetlb-1g`.
    pub name: String,
    /// Why it could not be measured, and the remedy; none if it was.
    #[serde(default)]
    pub unavailable: Option<String>,
}

/// One measured run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRun {
    /// Page kind that it ran on.
    pub kind: String,
    /// Round, from 0.
    pub round: u32,
    /// Place in the whole sequence of measured runs, from 0.
    pub position: u32,
    /// Time from start to end, in seconds.
    pub wall_s: f64,
    /// Time in user mode, children included, in seconds.
    pub user_s: f64,
    /// Time in the kernel, children included, in seconds.
    pub system_s: f64,
    /// The metric, in seconds; lower is better.
    pub value: f64,
    /// Page faults served from memory.
    #[serde(default)]
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    #[serde(default)]
    pub major_faults: u64,
    /// Largest resident size of any process of the tree.
    #[serde(default)]
    pub max_resident_bytes: u64,
    /// How it ended: `exit 0`, `signal 11 (SIGSEGV)`, `timeout`.
    pub outcome: String,
    /// Hash of what it wrote to standard output: 16 hexadecimal digits, if output was checked.
    #[serde(default)]
    pub output_hash: Option<String>,
}

/// How a later run differed from the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Difference {
    /// Its exit code or signal.
    End,
    /// What it wrote to standard output.
    Output,
    /// It took less than a tenth of the processor time.
    Time,
}

/// Behaviour of the program that a user must know. A finding of a later version is read as
/// `Unknown`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
pub enum Finding {
    /// Runs on the same kind printed different output: it cannot be compared between kinds.
    OutputVaries {
        /// The kind.
        kind: String,
    },
    /// All runs of this kind printed the same output, which differs from that of the baseline.
    OutputDiffers {
        /// The kind.
        kind: String,
    },
    /// Runs did not end as the program usually does on the baseline.
    Failed {
        /// The kind.
        kind: String,
        /// How they ended, as in [`MeasuredRun::outcome`].
        outcome: String,
        /// How many did.
        runs: u32,
    },
    /// Runs were stopped because they took longer than the limit.
    TimedOut {
        /// The kind.
        kind: String,
        /// The limit, in seconds.
        limit_s: f64,
        /// How many were.
        runs: u32,
    },
    /// A later run on the baseline differed from the very first run, so that runs cannot be
    /// compared.
    NotRepeatable {
        /// What differed.
        what: Difference,
        /// Number of the first run that differs. The very first run is number 1, warm-up runs
        /// included.
        run: u32,
        /// The very first run in words: how it ended, or its processor time.
        first: String,
        /// The same of that later run.
        later: String,
    },
    /// The traced run failed.
    NotTraced {
        /// Why.
        why: String,
    },
    /// A finding that this version does not know.
    #[serde(other)]
    Unknown,
}
