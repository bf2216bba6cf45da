//! The process of a sample, from both sides: the parent draws a layout and starts a copy of itself;
//! the child measures one cell and prints its outcome as one line.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use fieldstone_sys::process::set_parent_death_signal;
use rustix::process::Signal;

use crate::experiment::{Cell, Experiment, SampleOutcome, Scale};
use crate::layout::Layout;
use crate::trial::{Task, Trial};

/// The environment variable whose length shifts the child's stack.
const PADDING: &str = "FIELDSTONE_PADDING";

/// Runs a trial in a child process.
///
/// # Errors
/// If the child cannot be started, or fails; the error has its message.
pub fn sample(program: &Path, trial: &Trial) -> Result<SampleOutcome> {
    let mut child = command(program, trial);
    let output = child.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("cannot measure {} with layout {}: {}; {}", trial.cell, trial.layout.seed, message.trim(), output.status);
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("{} printed no outcome", trial.cell))
}

/// The command that runs a trial.
#[must_use]
pub fn command(program: &Path, trial: &Trial) -> Command {
    let mut child = Command::new(program);
    child.args(["--cell", &trial.cell, "--layout", &trial.layout.seed.to_string()]);
    child.args(["--memory", &trial.memory_bytes.to_string()]);
    if trial.quick {
        child.arg("--quick");
    }
    if let Task::Call { row, calls } = &trial.task {
        child.args(["--call", row, "--times", &calls.to_string()]);
    }
    child.env(PADDING, "x".repeat(trial.layout.environment_bytes));
    child
}

/// The child's side: runs the trial and prints its outcome as a line of JSON.
///
/// # Errors
/// If there is no such cell, or its measurement fails.
pub fn run(experiments: &[Experiment], trial: &Trial) -> Result<()> {
    // The measurement ends with its parent. If the parent has ended already, it ends by itself.
    set_parent_death_signal(Some(Signal::KILL.as_raw())).context("prctl(PR_SET_PDEATHSIG)")?;
    let cell = find(experiments, &trial.cell).with_context(|| format!("there is no cell {:?}", trial.cell))?;
    let outcome = trial.layout.within(|| (cell.measure)(trial))?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

fn find(experiments: &[Experiment], id: &str) -> Option<Cell> {
    let name = id.split('/').next()?;
    let experiment = experiments.iter().find(|experiment| experiment.name == name)?;
    let cells = |scale| (experiment.cells)(scale).into_iter().find(|cell| cell.id == id);
    cells(Scale::Full).or_else(|| cells(Scale::Quick))
}

/// The layout of a sample, a function of the cell and the run.
#[must_use]
pub fn layout_of(cell: &str, run: u32) -> Layout {
    // FNV-1a; any hash of names is enough.
    let name = cell
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    Layout::of_seed(name.wrapping_add(u64::from(run)))
}
