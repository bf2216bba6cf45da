//! Measures the profiles of a workload: `fieldstone profile --trace` as a child, once per modelled
//! processor.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use fieldstone_report::{Profile, SavedFile};

use crate::experiment::SampleOutcome;
use crate::folder::Folder;
use crate::sibling_programs::{Missing, end_with_parent, fieldstone, last_message, no_fieldstone, outcome};
use crate::trial::Trial;

use super::mariadb;
use super::profiles::{Processor, Profiles};
use super::rows::all_rows;
use super::server::{self, ProfiledCommand};
use super::workload::{Job, Workload};

/// Real runs on each page kind, the fewest with an interval.
const RUNS: u32 = 6;
/// The same in a quick run.
const FEW_RUNS: u32 = 2;

/// Profiles a workload and fills its rows. If the machine lacks something or the program cannot be
/// profiled, the outcome is a skip.
///
/// # Errors
/// If the preparation of the workload fails.
pub(super) fn measure(trial: &Trial, workload: &Workload) -> Result<SampleOutcome> {
    let figures = |profiles: Profiles| all_rows(workload).iter().map(|row| row.value(&profiles)).collect();
    outcome(measure_profiles(trial, workload).map(figures))
}

fn measure_profiles(trial: &Trial, workload: &Workload) -> Result<Profiles> {
    let folder = Folder::new()?;
    let started = start(&workload.job, &folder)?;
    let runs = if trial.quick { FEW_RUNS } else { RUNS };
    // Real runs do not depend on the modelled processor, so one profile has them.
    let here = profile(&folder, &started, Processor::Here, &["--pages", "thp", "--runs", &runs.to_string()])?;
    let paper = profile(&folder, &started, Processor::Paper, &["--pages", "4k", "--runs", "1"])?;
    Ok(Profiles { paper, here })
}

fn start(job: &Job, folder: &Folder) -> Result<ProfiledCommand> {
    let bundled = |command| Ok(ProfiledCommand { command, load: None });
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

/// Measures one profile. `options` select its real runs. The traced run records each access,
/// because bursts of short runs have large sampling errors.
fn profile(folder: &Folder, started: &ProfiledCommand, processor: Processor, options: &[&str]) -> Result<Profile> {
    let file = folder.path().join("profile.json");
    let mut command = Command::new(fieldstone());
    command.args(["profile", "--trace", "--full", "--tlb", processor.option(), "--metric", "cpu"]);
    command.args(options).arg("--json").arg(&file);
    if let Some(load) = &started.load {
        command.args(["--load", &load.command, "--ready", &load.port.to_string()]);
    }
    command.arg("--").args(&started.command).stdin(Stdio::null()).stdout(Stdio::null());
    let output = end_with_parent(&mut command).output().map_err(|error| no_fieldstone(&error))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0 | 1) => Ok(SavedFile::load_profile(&file)?),
        Some(_) => Err(Missing(format!("not profiled: {}", last_message(&errors))).into()),
        None => bail!("fieldstone profile: {}; {}", errors.trim(), output.status),
    }
}
