//! What is to be measured, and how.

use std::path::PathBuf;
use std::time::Duration;

pub use fieldstone_report::Metric;
use fieldstone_wire::PageKind;

use crate::program::Program;

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
    /// Kinds of pages, the baseline ([`PageKind::Small4k`]) first.
    pub kinds: Vec<PageKind>,
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
}
