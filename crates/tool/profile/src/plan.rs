//! Configure a profile: the program, the kinds of pages, the load, the trace.

use std::path::PathBuf;
use std::time::Duration;

pub use fieldstone_report::Metric;
use fieldstone_wire::Mixture;

use fieldstone_translation::{Configuration, Machine};
use fieldstone_wire::trace::Plan as BurstPlan;

use crate::trace::QemuTracer;
use fieldstone_launch::program::Program;
use fieldstone_launch::session::ExtraMemory;

/// The load of a server.
#[derive(Clone, Debug)]
pub struct ServerLoad {
    /// A shell command that does a fixed amount of work.
    pub command: String,
    /// The port that the server opens when it is ready.
    pub port: u16,
    /// Number of requests in the load, if known.
    pub requests: Option<u64>,
}

/// The configuration of a profile.
#[derive(Clone, Debug)]
pub struct ProfilePlan {
    /// The program and its arguments.
    pub program: Program,
    /// Kinds of pages; the baseline ([`fieldstone_wire::PageKind::Small4k`]) is first.
    pub kinds: Vec<Mixture>,
    /// Measured runs per kind.
    pub runs: u32,
    /// Time limit of a run; a longer run counts as hung.
    pub timeout: Duration,
    /// File for the standard input of each run; empty input if `None`.
    pub stdin: Option<PathBuf>,
    /// The quantity to compare.
    pub metric: Metric,
    /// Whether to compare the standard output of the runs.
    pub check_output: bool,
    /// Name of the only process with a region, which is also the primary process; the largest
    /// process if `None`.
    pub process: Option<String>,
    /// Other memory to place on the requested pages.
    pub also: ExtraMemory,
    /// The load, for a server that does not end by itself.
    pub load: Option<ServerLoad>,
    /// The traced run and its models, if requested.
    pub trace: Option<TraceOptions>,
}

/// Which accesses of a traced run are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceCoverage {
    /// All accesses.
    Full,
    /// Bursts of consecutive accesses.
    Bursts(BurstPlan),
    /// All accesses of a short run; bursts of a longer one, dense enough to cover each of its
    /// phases.
    Automatic,
}

/// Longest run, in seconds of CPU time, that [`TraceCoverage::Automatic`] records in full.
const FULL_TRACE_MAX_S: f64 = 2.0;
/// Initial and maximum accesses per burst, and the divisor of the part that only warms up the
/// models.
const BURST: u64 = 1_000_000;
const MAX_BURST: u64 = 4_000_000;
const WARM_UP_DIVISOR: u64 = 4;
/// Initial and maximum accesses from burst to burst. The number of accesses of a run is unknown in
/// advance: a memory-bound run does ten times fewer per second, and still needs enough bursts.
const PERIOD: u64 = 2_000_000;
const MAX_PERIOD: u64 = 20_000_000;
/// Where the walk rate is this many times the average, all accesses are recorded: at most a quarter
/// of the run.
const MAX_RATE_RATIO: u64 = 4;

const fn uniform_bursts(burst: u64, period: u64) -> BurstPlan {
    BurstPlan { burst, longest_burst: burst, warm_up: burst / WARM_UP_DIVISOR, period, longest: period, haste: 0 }
}

impl TraceCoverage {
    /// Bursts of `burst` accesses, one every `period` accesses.
    #[must_use]
    pub fn bursts(burst: u64, period: u64) -> Self {
        Self::Bursts(uniform_bursts(burst, period))
    }

    /// The burst plan for a run of `native_s` seconds of CPU time. A server is never recorded in
    /// full, because its clients would time out.
    pub(super) fn bursts_for(self, native_s: Option<f64>, is_server: bool) -> BurstPlan {
        match (self, native_s) {
            (Self::Full, _) => BurstPlan::default(),
            (Self::Bursts(bursts), _) => bursts,
            (Self::Automatic, Some(native_s)) if native_s <= FULL_TRACE_MAX_S && !is_server => BurstPlan::default(),
            (Self::Automatic, _) if is_server => uniform_bursts(BURST, MAX_PERIOD),
            (Self::Automatic, _) => BurstPlan {
                burst: BURST,
                longest_burst: MAX_BURST,
                warm_up: BURST / WARM_UP_DIVISOR,
                period: PERIOD,
                longest: MAX_PERIOD,
                haste: MAX_RATE_RATIO,
            },
        }
    }
}

/// The options of a traced run and its models.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// The tracer.
    pub tracer: QemuTracer,
    /// Which accesses are recorded.
    pub recording: TraceCoverage,
    /// The modelled processor.
    pub machine: Machine,
    /// Whether it differs from the processor of this machine.
    pub foreign: bool,
    /// Modelled configurations, 4 KiB pages first.
    pub configurations: Vec<Configuration>,
    /// Whether to record allocations, which attributes walks to allocation sites.
    pub sites: bool,
    /// Time limit of the traced run.
    pub timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_is_recorded_in_full_and_a_longer_one_in_bursts() {
        let automatic = |native_s, is_server| TraceCoverage::Automatic.bursts_for(native_s, is_server);
        assert_eq!(automatic(Some(1.9), false), BurstPlan::default());
        let long = automatic(Some(4.0), false);
        assert_eq!((long.burst, long.warm_up, long.period, long.longest), (BURST, BURST / 4, PERIOD, MAX_PERIOD));
        assert_eq!(automatic(None, false), long);
        assert_eq!(automatic(Some(0.1), true).period, MAX_PERIOD, "the clients of a server have time limits");
    }

    #[test]
    fn an_explicit_coverage_overrides_the_automatic_one() {
        assert_eq!(TraceCoverage::Full.bursts_for(Some(600.0), true), BurstPlan::default());
        let bursts = TraceCoverage::bursts(4000, 9000).bursts_for(Some(0.1), false);
        assert_eq!((bursts.burst, bursts.warm_up, bursts.period), (4000, 1000, 9000));
    }
}
