//! Takes a workload's profiles: `fieldstone profile --trace` as a child, once for each modelled processor.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use fieldstone_report::{Profile, SavedFile};

use crate::beside::{Missing, complaint, ends_with_us, fieldstone, no_fieldstone, outcome};
use crate::experiment::Outcome;
use crate::folder::Folder;
use crate::trial::Trial;

use super::mariadb;
use super::profiles::{Processor, Profiles};
use super::reading::readings;
use super::server::{self, Started};
use super::workload::{Job, Workload};

/// Real runs on each kind of page: as many as an interval needs.
const RUNS: u32 = 6;
/// In a quick run.
const FEW_RUNS: u32 = 2;

/// Profiles a workload, and fills its rows.
///
/// # Errors
/// When the workload's own preparation fails. What the machine lacks, and a program that cannot be profiled on it, is a skip.
pub(super) fn measure(trial: &Trial, workload: &Workload) -> Result<Outcome> {
    let figures = |profiles: Profiles| readings(workload).iter().map(|reading| reading.figure(&profiles)).collect();
    outcome(take(trial, workload).map(figures))
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

/// One profile. The options say which real runs; the traced run records every access, since bursts of such short runs show little.
fn profile(folder: &Folder, started: &Started, processor: Processor, options: &[&str]) -> Result<Profile> {
    let file = folder.path().join("profile.json");
    let mut command = Command::new(fieldstone());
    command.args(["profile", "--trace", "--full", "--tlb", processor.option(), "--metric", "cpu"]);
    command.args(options).arg("--json").arg(&file);
    if let Some(load) = &started.load {
        command.args(["--load", &load.command, "--ready", &load.port.to_string()]);
    }
    command.arg("--").args(&started.command).stdin(Stdio::null()).stdout(Stdio::null());
    let output = ends_with_us(&mut command).output().map_err(|error| no_fieldstone(&error))?;
    let words = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0 | 1) => Ok(SavedFile::load_profile(&file)?),
        Some(_) => Err(Missing(format!("not profiled: {}", complaint(&words))).into()),
        None => bail!("fieldstone profile: {}; {}", words.trim(), output.status),
    }
}
