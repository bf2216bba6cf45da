//! Takes a workload's profiles: `fieldstone profile --trace` as a child, once for each modelled processor.
//!
//! The command is the one that lies beside this program, or in the path.

#![allow(unsafe_code, reason = "a child's death signal has to be set between fork and exec")]

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use fieldstone_report::{Profile, Saved};
use fieldstone_sys::process::set_parent_death_signal;
use rustix::process::Signal;

use crate::experiment::Outcome;
use crate::trial::Trial;

use super::folder::Folder;
use super::mariadb;
use super::profiles::{Processor, Profiles};
use super::reading::readings;
use super::server::{self, Started};
use super::workload::{Job, Workload};

/// What the machine lacks.
#[derive(Debug)]
pub(super) struct Missing(pub(super) String);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// Real runs on each kind of page: as many as an interval needs.
const RUNS: u32 = 6;
/// In a quick run.
const FEW_RUNS: u32 = 2;

/// Profiles a workload, and fills its rows.
///
/// # Errors
/// When the workload's own preparation fails. What the machine lacks, and a program that cannot be profiled on it, is a skip.
pub(super) fn measure(trial: &Trial, workload: &Workload) -> Result<Outcome> {
    let profiles = match take(trial, workload) {
        Ok(profiles) => profiles,
        Err(error) => match error.downcast::<Missing>() {
            Ok(Missing(reason)) => return Ok(Outcome::Skipped { reason }),
            Err(error) => return Err(error),
        },
    };
    let figures = readings(workload).iter().map(|reading| reading.figure(&profiles)).collect();
    Ok(Outcome::Measured { figures, alternately: true })
}

fn take(trial: &Trial, workload: &Workload) -> Result<Profiles> {
    let folder = Folder::new()?;
    let started = start(&workload.job, &folder)?;
    let runs = if trial.quick { FEW_RUNS } else { RUNS };
    // The real runs are this machine's, whatever is modelled: they are taken once.
    let here = profile(&folder, &started, Processor::Here, &["--pages", "thp", "--runs", &runs.to_string()])?;
    let paper = profile(&folder, &started, Processor::Paper, &["--pages", "4k", "--runs", "1"])?;
    Ok(Profiles { paper, here })
}

fn start(job: &Job, folder: &Folder) -> Result<Started> {
    let bundled = |command| Ok(Started { command, load: None });
    match job {
        Job::Bundled(command) => bundled(command.clone()),
        Job::Gups { bytes, .. } => {
            let updates = job.updates().unwrap_or_default();
            bundled(vec!["gups".to_owned(), bytes.to_string(), updates.to_string()])
        }
        Job::Memcached { operations } => server::memcached(folder.path(), *operations),
        Job::MariaDb { warehouses, transactions } => mariadb::prepare(folder, *warehouses, *transactions),
    }
}

/// One profile. The options say which real runs; the traced run records every access, since bursts of so short runs tell little.
fn profile(folder: &Folder, started: &Started, processor: Processor, options: &[&str]) -> Result<Profile> {
    let file = folder.path().join("profile.json");
    let program = fieldstone();
    let mut command = Command::new(&program);
    command.args(["profile", "--trace", "--full", "--tlb", processor.option(), "--metric", "cpu"]);
    command.args(options).arg("--json").arg(&file);
    if let Some(load) = &started.load {
        command.args(["--load", &load.command, "--ready", &load.port.to_string()]);
    }
    command.arg("--").args(&started.command).stdin(Stdio::null()).stdout(Stdio::null());
    let output = ends_with_us(&mut command).output().map_err(|error| {
        let program = program.display();
        Missing(format!("cannot start {program} ({error}): install it beside fieldstone-reproduce"))
    })?;
    let words = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0 | 1) => Ok(Saved::load_profile(&file)?),
        Some(_) => Err(Missing(format!("not profiled: {}", complaint(&words))).into()),
        None => bail!("fieldstone profile: {}; {}", words.trim(), output.status),
    }
}

/// What the command itself said last; a program's last words may stand below.
fn complaint(words: &str) -> &str {
    words.lines().filter_map(|line| line.strip_prefix("fieldstone: ")).next_back().unwrap_or("it said nothing").trim()
}

/// The command beside this program, or in the path.
fn fieldstone() -> PathBuf {
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join("fieldstone")));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("fieldstone"))
}

/// Has a child asked to end when we are gone.
pub(super) fn ends_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec one prctl is called, a bare system call.
    unsafe { command.pre_exec(|| set_parent_death_signal(Some(Signal::TERM.as_raw()))) }
}
