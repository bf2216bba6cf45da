//! Runs of the programs: processor time of a whole run, or the numbers that a program prints.

use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use fieldstone_sys::process::wait4;

use super::build::Builds;
use super::programs::Program;
use crate::beside::ends_with_us;

/// Stacks that are large enough for what recurses here: a plain one, and one of blocks.
const STACK: &str = "ulimit -s 20000000 2>/dev/null; export FIELDSTONE_STACK_LIMIT=20G; ";

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    /// On the processors, in the program and in the kernel, of all its threads.
    pub seconds: f64,
    /// What it printed.
    pub printed: Vec<u8>,
}

impl Ran {
    /// The numbers that it printed.
    ///
    /// # Errors
    /// When it printed none.
    pub fn numbers(&self) -> Result<Vec<f64>> {
        let text = String::from_utf8_lossy(&self.printed);
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if numbers.is_empty() {
            bail!("it printed no number: {text}");
        }
        Ok(numbers)
    }
}

impl Builds {
    /// Runs a program that was built, as its words say.
    ///
    /// # Errors
    /// When it fails.
    pub fn run(&self, program: &Program, file: &Path, quick: bool) -> Result<Ran> {
        let words = program.run[usize::from(quick)];
        ran(self.shell(&format!("{STACK}{words}"), &self.sources(program)?).env("PROGRAM", file)).context(program.name)
    }

    /// Runs one with arguments.
    ///
    /// # Errors
    /// When it fails.
    pub fn run_with(&self, file: &Path, arguments: &[&str]) -> Result<Ran> {
        let words = format!("{STACK}exec \"$PROGRAM\" {}", arguments.join(" "));
        ran(self.shell(&words, Path::new("")).env("PROGRAM", file)).with_context(|| file.display().to_string())
    }
}

fn ran(command: &mut Command) -> Result<Ran> {
    let mut errors = tempfile::tempfile()?;
    let child = ends_with_us(command).stdout(Stdio::piped()).stderr(errors.try_clone()?).spawn();
    let mut child = child.context("cannot start sh")?;
    let mut printed = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_end(&mut printed)?;
    }
    let ended = wait4(Some(child.id()), true)?.context("it has not ended")?;
    if !ended.status.success() {
        let mut words = String::new();
        errors.rewind()?;
        errors.read_to_string(&mut words)?;
        bail!("{}; {}", words.trim(), ended.status);
    }
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run are far below 2^52")]
    let seconds = (ended.user_ns + ended.system_ns) as f64 / 1e9;
    Ok(Ran { seconds, printed })
}
