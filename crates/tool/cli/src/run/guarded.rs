//! `fieldstone run --guard`: starts a program with guarded heap objects, prints and saves what they
//! find.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use anyhow::bail;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use fieldstone_heap_errors::{GuardOptions, GuardedRun, Side};
use fieldstone_launch::launch::Injection;
use fieldstone_launch::{AgentFile, Program};
use fieldstone_report::saved::to_json_line;
use fieldstone_report::{GuardStats, HeapError};
use fieldstone_wire::Remedy;
use fieldstone_wire::guard::Sampling;

use crate::output::message;
use crate::size;
use crate::stats_file::OutputFile;

/// The guard agent, a shared library; empty in a cross build without a linker.
const AGENT: &[u8] = include_bytes!(env!("GUARD_AGENT"));

/// The largest number of allocations of a site per guarded one, unless the user gives one.
const INTERVAL: u32 = 5000;

/// Which objects are guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuardMode {
    sampling: Sampling,
    interval: u32,
}

impl FromStr for GuardMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sampled" => Ok(Self { sampling: Sampling::Budget, interval: INTERVAL }),
            "all" | "1/1" => Ok(Self { sampling: Sampling::All, interval: 1 }),
            _ => {
                let interval = text.strip_prefix("1/").and_then(|interval| interval.parse().ok());
                let interval = interval.filter(|interval| (2..=1 << 30).contains(interval));
                let interval = interval.ok_or("give `all`, or 1/N with N from 1 to 1073741824")?;
                Ok(Self { sampling: Sampling::Fixed, interval })
            }
        }
    }
}

impl GuardMode {
    fn name(self) -> String {
        match self.sampling {
            Sampling::All => "all".to_owned(),
            Sampling::Budget => "sampled".to_owned(),
            Sampling::Fixed => format!("1/{}", self.interval),
        }
    }

    /// Bytes that guarded objects may take in each process: 1 GiB for all, else 64 MiB.
    fn memory_bytes(self) -> u64 {
        if self.sampling == Sampling::All { 1 << 30 } else { 64 << 20 }
    }
}

/// The names of sides.
const SIDES: [&str; 3] = ["right", "left", "both"];

fn side_of(name: &str) -> Side {
    match name {
        "right" => Side::Right,
        "left" => Side::Left,
        _ => Side::Both,
    }
}

/// The options of `--guard`.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Guard heap objects: a sample for 2 to 6 % of processor time, `all`, or of each site one in N
    /// after its first
    #[arg(long, value_name = "all|1/N", num_args = 0..=1, require_equals = true, default_missing_value = "sampled")]
    guard: Option<GuardMode>,
    /// With --guard: limit the memory of guarded objects in each process; default: 64M, for all 1G
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "guard")]
    guard_memory: Option<u64>,
    /// With --guard: put objects at this side of their pages: right finds accesses past the end,
    /// left accesses before the start
    #[arg(long, value_name = "SIDE", value_parser = PossibleValuesParser::new(SIDES).map(|name| side_of(&name)), default_value = "both", requires = "guard")]
    guard_side: Side,
    /// With --guard: append each finding to FILE as a line of JSON
    #[arg(long, value_name = "FILE", requires = "guard")]
    guard_report: Option<PathBuf>,
    /// With --guard: report each place once and continue after a finding
    #[arg(long, requires = "guard")]
    keep_going: bool,
}

impl Arguments {
    /// Whether guards are requested.
    pub(super) fn is_given(&self) -> bool {
        self.guard.is_some()
    }

    /// Fails if guards are requested beside a repair.
    pub(super) fn check_without_repair(&self) -> anyhow::Result<()> {
        if self.is_given() {
            bail!(
                "cannot combine --repair with --guard: a repair moves pages of the heap, and guards need faults at \
                 their original addresses{}",
                Remedy(Some("fieldstone run --guard -- PROGRAM, and then fieldstone run --repair -- PROGRAM"))
            );
        }
        Ok(())
    }

    /// Starts to receive findings; `None` if no guards are requested.
    /// Guarded objects stay resident: by default they take at most a quarter of `bound`.
    pub(super) fn start(&self, program: &Program, bound: Option<u64>) -> anyhow::Result<Option<Guard>> {
        let Some(mode) = self.guard else { return Ok(None) };
        program.check_guardable()?;
        if AGENT.is_empty() || cfg!(not(target_arch = "x86_64")) {
            bail!("cannot guard a program on this machine: --guard works on x86-64 only");
        }
        let default = bound.map_or(u64::MAX, |bound| bound / 4).min(mode.memory_bytes()).max(SMALLEST_MEMORY);
        let memory_bytes = self.guard_memory.unwrap_or(default);
        if memory_bytes < SMALLEST_MEMORY {
            bail!("cannot use --guard-memory {memory_bytes}: the least is 1M");
        }
        let options = GuardOptions {
            sampling: mode.sampling,
            interval: mode.interval,
            memory_bytes,
            side: self.guard_side,
            keep_going: self.keep_going,
        };
        let open = |path| OutputFile::open(path, fs::File::options().append(true));
        let mut file = self.guard_report.as_deref().map(open).transpose()?;
        let has_findings = Arc::new(AtomicBool::new(false));
        let found = Arc::clone(&has_findings);
        let run = GuardedRun::start(&options, move |error| {
            found.store(true, SeqCst);
            print(error, &mut file);
        })?;
        let injection = run.injection(&AgentFile::install("guard", AGENT)?);
        Ok(Some(Guard { run, injection, mode, memory_bytes, has_findings }))
    }
}

/// The smallest memory of guarded objects: room for a few hundred.
const SMALLEST_MEMORY: u64 = 1 << 20;

/// A run with guards.
pub(super) struct Guard {
    run: GuardedRun,
    injection: Injection,
    mode: GuardMode,
    memory_bytes: u64,
    has_findings: Arc<AtomicBool>,
}

impl Guard {
    /// What loads the agent into the program.
    pub(super) fn injection(&self) -> Injection {
        self.injection.clone()
    }

    /// The counts of the run, after the program has ended with `outcome`, and whether a process found
    /// an error.
    pub(super) fn finish(mut self, program: &Program, outcome: String) -> (GuardStats, bool) {
        self.run.end();
        let stats = self.counts(program, outcome);
        let has_findings = self.has_findings.load(SeqCst) || stats.processes.iter().any(|process| process.findings > 0);
        (stats, has_findings)
    }

    /// The counts so far.
    pub(super) fn counts(&self, program: &Program, outcome: String) -> GuardStats {
        GuardStats {
            schema: GuardStats::SCHEMA.to_owned(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            command: program.command_line(),
            mode: self.mode.name(),
            memory_limit_bytes: self.memory_bytes,
            outcome,
            processes: self.run.counts(),
        }
    }
}

/// Prints a finding, and appends it to the file.
fn print(error: &HeapError, file: &mut Option<OutputFile>) {
    message(error.text());
    let Some(file) = file else { return };
    if let Err(error) = to_json_line(error).and_then(|line| file.append(&line)) {
        message(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_parsed() {
        let parse = |text: &str| text.parse::<GuardMode>().map(GuardMode::name);
        for (text, name) in [("all", "all"), ("1/1", "all"), ("1/5000", "1/5000"), ("sampled", "sampled")] {
            assert_eq!(parse(text), Ok(name.to_owned()));
        }
        for text in ["", "1/0", "2/3", "1/x", "1/99999999999", "none"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
