//! Programs run alternately: each round runs every contender once, in the order opposite to the round before.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_launch::Program;
use fieldstone_launch::launch::{Treatment, Wiring, launch};
use fieldstone_stats::{Estimate, FEWEST_FOR_INTERVAL, Rounds, median};

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

/// The ratio of the first contender to contender `other`, from the pairs of all rounds.
pub(crate) fn ratio_to(other: usize, times: &Rounds) -> Option<Estimate> {
    Estimate::of_median(&times.ratios(0, other))
}

/// The contender with the smallest median, the first left out.
pub(crate) fn best_peer(contenders: usize, times: &Rounds) -> usize {
    let seconds = |contender: usize| median(times.of(contender)).unwrap_or(f64::INFINITY);
    (1..contenders).min_by(|&a, &b| seconds(a).total_cmp(&seconds(b))).unwrap_or(0)
}

/// Runs rounds until the first contender's ratio to the best other one stands on one side of `limit`, or `most` time
/// has passed. One round before is not counted. `memory_bytes` are touched before each run, since a hypervisor takes
/// back what is free, and huge pages first.
pub(crate) fn hold(
    contenders: &[Contender],
    memory_bytes: u64,
    limit: Limit,
    most: Duration,
) -> anyhow::Result<Rounds> {
    for contender in contenders {
        time(contender, memory_bytes)?;
    }
    let since = Instant::now();
    let run = |contender: usize| time(&contenders[contender], memory_bytes);
    Rounds::run(contenders.len(), run, |times| {
        let enough = times.count() >= FEWEST_FOR_INTERVAL && times.is_balanced();
        let stands = enough && is_settled(limit, ratio_to(best_peer(contenders.len(), times), times));
        // Without an interval there is no verdict: six rounds are run, however long they take.
        stands || enough && since.elapsed() > most
    })
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
    let wiring = Wiring {
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
