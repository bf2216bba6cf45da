//! Compares programs by running them alternately: each round reverses the order of the one before.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_launch::Program;
use fieldstone_launch::launch::{ChildOptions, Treatment, launch};
use fieldstone_stats::{Estimate, Rounds, median};
use fieldstone_sys::warm::warm;

use crate::goals::Limit;
use crate::stop_rule::StopRule;

/// A variant in a comparison: a command with its environment.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Whether transparent huge pages are disabled.
    pub(crate) small_pages: bool,
}

/// The ratio of the first variant to variant `other`, from the pairs of all rounds.
pub(crate) fn ratio_to(other: usize, times: &Rounds) -> Option<Estimate> {
    Estimate::of_median(&times.ratios(0, other))
}

/// The index of the fastest variant by median, without the first one.
pub(crate) fn best_peer(variants: usize, times: &Rounds) -> usize {
    let seconds = |variant: usize| median(times.of(variant)).unwrap_or(f64::INFINITY);
    (1..variants).min_by(|&a, &b| seconds(a).total_cmp(&seconds(b))).unwrap_or(0)
}

/// Runs rounds until the ratio of the first variant to the best peer meets the [`StopRule`]. Drops
/// the first round. Touches `memory_bytes` before each run, because a hypervisor reclaims free
/// memory, huge pages first.
pub(crate) fn compare_programs(
    variants: &[Variant],
    memory_bytes: u64,
    limit: Limit,
    time_limit: Duration,
) -> anyhow::Result<Rounds> {
    for variant in variants {
        time(variant, memory_bytes)?;
    }
    let mut rule = StopRule::new(limit, time_limit).with_one_check();
    let run = |variant: usize| time(&variants[variant], memory_bytes);
    Rounds::run(variants.len(), run, |times| {
        rule.is_met(times.count(), &times.ratios(0, best_peer(variants.len(), times)))
    })
}

fn time(variant: &Variant, memory_bytes: u64) -> anyhow::Result<f64> {
    warm(memory_bytes);
    let seconds = if variant.small_pages { time_small(variant)? } else { time_plain(variant)? };
    Ok(seconds)
}

fn time_plain(variant: &Variant) -> anyhow::Result<f64> {
    let mut command = Command::new(&variant.command[0]);
    command.args(&variant.command[1..]).envs(variant.environment.iter().map(|(name, value)| (name, value)));
    let since = Instant::now();
    // Terminates: variants do a fixed amount of work.
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let seconds = since.elapsed().as_secs_f64();
    let output = output.with_context(|| format!("{} cannot be started", variant.name))?;
    if !output.status.success() {
        bail!("{} failed with {}: {}", variant.name, output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(seconds)
}

fn time_small(variant: &Variant) -> anyhow::Result<f64> {
    let program = Program::find(&variant.command)?;
    let wiring = ChildOptions {
        stdin: Stdio::null(),
        stdout: Stdio::null(),
        stderr: Stdio::null(),
        own_group: false,
        keeps_closed: false,
    };
    let mut running = launch(&program, &Treatment::SmallPages, wiring)?;
    // Terminates: variants do a fixed amount of work.
    let status = running.child.wait().with_context(|| format!("{} cannot be waited for", variant.name))?;
    let seconds = running.since.elapsed().as_secs_f64();
    if !status.success() {
        bail!("{} failed with {status}", variant.name);
    }
    Ok(seconds)
}
