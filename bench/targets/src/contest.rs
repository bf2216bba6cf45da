//! Programs run alternately: each round runs every contender once, in the order opposite to the round before.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_report::stats::{Estimate, FEWEST_FOR_INTERVAL};
use fieldstone_launch::Program;
use fieldstone_launch::launch::{Treatment, ChildOptions, launch};

use fieldstone_sys::warm::warm;

use crate::cell::is_settled;
use crate::goals::Limit;

/// A command that takes part, with its environment.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Whether it runs without transparent huge pages.
    pub(crate) small_pages: bool,
}

/// Seconds of each contender's runs, by round.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub(crate) names: Vec<&'static str>,
    pub(crate) seconds: Vec<Vec<f64>>,
}

impl Times {
    /// Pairwise ratios of the first contender to contender `other`.
    pub(crate) fn ratio_to(&self, other: usize) -> Option<Estimate> {
        let pairs = self.seconds[0].iter().zip(&self.seconds[other]);
        let ratios: Vec<f64> = pairs.map(|(own, theirs)| own / theirs).collect();
        Estimate::of_median(&ratios)
    }

    /// The other contender with the smallest median.
    pub(crate) fn best_peer(&self) -> usize {
        let median = |times: &[f64]| Estimate::of_median(times).map_or(f64::INFINITY, |found| found.median);
        let others = 1..self.seconds.len();
        others.min_by(|&a, &b| median(&self.seconds[a]).total_cmp(&median(&self.seconds[b]))).unwrap_or(0)
    }
}

/// Runs rounds until the first contender's ratio to the best other one stands on one side of `limit`, or `most` time
/// has passed. One round before is not counted. `memory_bytes` are touched before each run, since a hypervisor takes
/// back what is free, and huge pages first.
pub(crate) fn hold(contenders: &[Contender], memory_bytes: u64, limit: Limit, most: Duration) -> anyhow::Result<Times> {
    let mut times = Times {
        names: contenders.iter().map(|contender| contender.name).collect(),
        seconds: vec![Vec::new(); contenders.len()],
    };
    for contender in contenders {
        time(contender, memory_bytes)?;
    }
    let since = Instant::now();
    for round in 0.. {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let seconds = time(&contenders[index], memory_bytes)?;
            times.seconds[index].push(seconds);
        }
        let enough = round + 1 >= FEWEST_FOR_INTERVAL && (round + 1) % 2 == 0;
        let stands = enough && is_settled(limit, times.ratio_to(times.best_peer()));
        // Without an interval there is no verdict: six rounds are run, however long they take.
        if stands || enough && since.elapsed() > most {
            break;
        }
    }
    Ok(times)
}

fn time(contender: &Contender, memory_bytes: u64) -> anyhow::Result<f64> {
    warm(memory_bytes);
    let seconds = if contender.small_pages { time_small(contender)? } else { time_plain(contender)? };
    Ok(seconds)
}

fn time_plain(contender: &Contender) -> anyhow::Result<f64> {
    let mut command = Command::new(&contender.command[0]);
    command.args(&contender.command[1..]).envs(contender.environment.iter().map(|(name, value)| (name, value)));
    let since = Instant::now();
    // Contenders do a fixed amount of work, and end.
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let seconds = since.elapsed().as_secs_f64();
    let output = output.with_context(|| format!("{} cannot be started", contender.name))?;
    if !output.status.success() {
        bail!("{} failed with {}: {}", contender.name, output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(seconds)
}

fn time_small(contender: &Contender) -> anyhow::Result<f64> {
    let program = Program::find(&contender.command)?;
    let wiring = ChildOptions {
        stdin: Stdio::null(),
        stdout: Stdio::null(),
        stderr: Stdio::null(),
        own_group: false,
        keeps_closed: false,
    };
    let mut running = launch(&program, &Treatment::SmallPages, wiring)?;
    // The contender does a fixed amount of work, and ends.
    let status = running.child.wait().with_context(|| format!("{} cannot be waited for", contender.name))?;
    let seconds = running.since.elapsed().as_secs_f64();
    if !status.success() {
        bail!("{} failed with {status}", contender.name);
    }
    Ok(seconds)
}
