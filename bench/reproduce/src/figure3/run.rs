//! Runs of the programs: CPU time of a whole run, or the numbers that a program prints.

use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use fieldstone_sys::process::wait4;

use super::build::Builds;
use super::programs::StackProgram;
use crate::sibling_programs::end_with_parent;

/// Shell commands that allow large stacks, plain and of blocks.
const STACK: &str = "ulimit -s 20000000 2>/dev/null; export FIELDSTONE_STACK_LIMIT=20G; ";

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StackProgramRun {
    /// CPU time of all threads, in the program and in the kernel.
    pub seconds: f64,
    /// Its standard output.
    pub printed: Vec<u8>,
}

impl StackProgramRun {
    /// The printed numbers.
    ///
    /// # Errors
    /// If there are none.
    pub fn numbers(&self) -> Result<Vec<f64>> {
        let text = String::from_utf8_lossy(&self.printed);
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if numbers.is_empty() {
            bail!("the program printed no number: {text}");
        }
        Ok(numbers)
    }
}

impl Builds {
    /// Runs a build by the program's own command.
    ///
    /// # Errors
    /// If it fails.
    pub fn run(&self, program: &StackProgram, file: &Path, quick: bool) -> Result<StackProgramRun> {
        let words = program.run[usize::from(quick)];
        run_to_end(self.shell(&format!("{STACK}{words}"), &self.sources(program)?).env("PROGRAM", file))
            .context(program.name)
    }

    /// Runs a build with arguments.
    ///
    /// # Errors
    /// If it fails.
    pub fn run_with(&self, file: &Path, arguments: &[&str]) -> Result<StackProgramRun> {
        let words = format!("{STACK}exec \"$PROGRAM\" {}", arguments.join(" "));
        run_to_end(self.shell(&words, Path::new("")).env("PROGRAM", file)).with_context(|| file.display().to_string())
    }
}

fn run_to_end(command: &mut Command) -> Result<StackProgramRun> {
    let mut errors = tempfile::tempfile()?;
    let child = end_with_parent(command).stdout(Stdio::piped()).stderr(errors.try_clone()?).spawn();
    let mut child = child.context("cannot start sh")?;
    let mut printed = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_end(&mut printed)?;
    }
    let ended = wait4(Some(child.id()), true)?.context("the program has not ended")?;
    if !ended.status.success() {
        let mut text = String::new();
        errors.rewind()?;
        errors.read_to_string(&mut text)?;
        bail!("{}; {}", text.trim(), ended.status);
    }
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run are far below 2^52")]
    let seconds = (ended.user_ns + ended.system_ns) as f64 / 1e9;
    Ok(StackProgramRun { seconds, printed })
}
