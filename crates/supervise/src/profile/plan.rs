//! What is to be measured, and how.

use std::path::PathBuf;
use std::time::Duration;

pub use fieldstone_report::Metric;
use fieldstone_wire::Mixture;

use fieldstone_translation::{Configuration, Machine};
pub use fieldstone_wire::trace::Plan as Bursts;

use crate::program::Program;
use crate::trace::Tracer;

/// A load on a server.
#[derive(Clone, Debug)]
pub struct Load {
    /// A shell command: a fixed piece of work.
    pub command: String,
    /// The port that the server opens when it is ready.
    pub port: u16,
    /// Requests that the load makes, where known.
    pub requests: Option<u64>,
}

/// A profile to take.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program.
    pub program: Program,
    /// Kinds of pages, the baseline ([`fieldstone_wire::PageKind::Small4k`]) first.
    pub kinds: Vec<Mixture>,
    /// Measured runs on each kind.
    pub runs: u32,
    /// When a run is taken for hanging.
    pub timeout: Duration,
    /// Standard input of each run; none is an empty one.
    pub stdin: Option<PathBuf>,
    /// What is compared.
    pub metric: Metric,
    /// Whether each run's standard output is compared too.
    pub check_output: bool,
    /// The only process to give a region, and to look at; the largest if there is none.
    pub process: Option<String>,
    /// For a program that does not end by itself.
    pub load: Option<Load>,
    /// What is traced and modelled in one more run, if anything.
    pub trace: Option<Tracing>,
}

/// A traced run, and what its accesses are run through.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// What traces.
    pub tracer: Tracer,
    /// How much of the run is recorded.
    pub bursts: Bursts,
    /// The processor that is modelled.
    pub machine: Machine,
    /// What it is modelled with, 4 KiB pages first.
    pub configurations: Vec<Configuration>,
    /// Whether allocations are recorded, to tell whose memory the walks are for.
    pub sites: bool,
    /// The traced run may take so long.
    pub timeout: Duration,
}
