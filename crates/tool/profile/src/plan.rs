//! What is to be measured, and how.

use std::path::PathBuf;
use std::time::Duration;

pub use fieldstone_report::Metric;
use fieldstone_wire::Mixture;

use fieldstone_translation::{Configuration, Machine};
use fieldstone_wire::trace::Plan as Bursts;

use crate::trace::Tracer;
use fieldstone_launch::program::Program;
use fieldstone_launch::session::Also;

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
    /// What else is to lie on the pages asked for.
    pub also: Also,
    /// For a program that does not end by itself.
    pub load: Option<Load>,
    /// What is traced and modelled in one more run, if anything.
    pub trace: Option<Tracing>,
}

/// How much of a traced run is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// All of it.
    Full,
    /// Bursts.
    Bursts(Bursts),
    /// All of a short run; of a longer one bursts, close enough to see each of its phases.
    Fitting,
}

/// A run of so many seconds of processor time, and no longer, is recorded in full where nothing else is asked for.
const SHORT_S: f64 = 2.0;
/// Accesses of a burst, at first and at most, and the part of it that only warms the models up.
const BURST: u64 = 1_000_000;
const LONGEST_BURST: u64 = 4_000_000;
const WARM_UP: u64 = 4;
/// Accesses from burst to burst, at first and at most. How many accesses a run makes is not known before: one that waits for memory
/// makes ten times fewer a second than one that does not, and has to have enough bursts too.
const PERIOD: u64 = 2_000_000;
const LONGEST: u64 = 20_000_000;
/// Where there are so many times the walks of the run's average, all is recorded: that can be no more than such a part of the run.
const HASTE: u64 = 4;

const fn even(burst: u64, period: u64) -> Bursts {
    Bursts { burst, longest_burst: burst, warm_up: burst / WARM_UP, period, longest: period, haste: 0 }
}

impl Recording {
    /// Bursts of `burst` accesses, `period` from start to start.
    #[must_use]
    pub fn bursts(burst: u64, period: u64) -> Self {
        Self::Bursts(even(burst, period))
    }

    /// What to ask the tracer for, for a run that takes `native_s` of processor time. Who waits for a server would not wait for all.
    pub(super) fn fitted(self, native_s: Option<f64>, serves: bool) -> Bursts {
        match (self, native_s) {
            (Self::Full, _) => Bursts::default(),
            (Self::Bursts(bursts), _) => bursts,
            (Self::Fitting, Some(native_s)) if native_s <= SHORT_S && !serves => Bursts::default(),
            (Self::Fitting, _) if serves => even(BURST, LONGEST),
            (Self::Fitting, _) => Bursts {
                burst: BURST,
                longest_burst: LONGEST_BURST,
                warm_up: BURST / WARM_UP,
                period: PERIOD,
                longest: LONGEST,
                haste: HASTE,
            },
        }
    }
}

/// A traced run, and what its accesses are run through.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// What traces.
    pub tracer: Tracer,
    /// How much of the run is recorded.
    pub recording: Recording,
    /// The processor that is modelled.
    pub machine: Machine,
    /// Whether it is another one than that of this machine.
    pub foreign: bool,
    /// What it is modelled with, 4 KiB pages first.
    pub configurations: Vec<Configuration>,
    /// Whether allocations are recorded, to tell whose memory the walks are for.
    pub sites: bool,
    /// The traced run may take so long.
    pub timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_is_recorded_in_full_and_a_longer_one_in_enough_bursts() {
        let fitted = |native_s, serves| Recording::Fitting.fitted(native_s, serves);
        assert_eq!(fitted(Some(1.9), false), Bursts::default());
        let some = fitted(Some(4.0), false);
        assert_eq!((some.burst, some.warm_up, some.period, some.longest), (BURST, BURST / 4, PERIOD, LONGEST));
        assert_eq!(fitted(None, false), some);
        assert_eq!(fitted(Some(0.1), true).period, LONGEST, "a server's clients do not wait for ever");
    }

    #[test]
    fn what_is_asked_for_is_done() {
        assert_eq!(Recording::Full.fitted(Some(600.0), true), Bursts::default());
        let asked = Recording::bursts(4000, 9000).fitted(Some(0.1), false);
        assert_eq!((asked.burst, asked.warm_up, asked.period), (4000, 1000, 9000));
    }
}
