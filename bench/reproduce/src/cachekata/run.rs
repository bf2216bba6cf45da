//! One run of a program, as it is or repaired, and what it printed.
//!
//! The programs check their own results: a run that came out wrong is an error, repaired or not.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::beside::{Missing, complaint, ends_with_us, fieldstone, no_fieldstone};

/// What a run printed.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    /// How long its threads ran.
    pub(super) kernel: Duration,
    /// How many of them at a time, on the average.
    pub(super) processors: f64,
    /// What was done to it; nothing without a repair.
    pub(super) events: Vec<Event>,
    /// All that it said on standard error.
    pub(super) words: String,
}

/// An event that a repair reports.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Event {
    /// Milliseconds since the repairer began.
    pub(super) at_ms: f64,
    /// `found`, `moved`, `led`, ...
    #[serde(rename = "event")]
    pub(super) what: String,
}

/// The part of `--stats` that is read here.
#[derive(Deserialize)]
struct Stats {
    seen: Seen,
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Seen {
    samples: u64,
}

impl Ran {
    /// How often that happened.
    pub(super) fn count(&self, what: &str) -> usize {
        self.events.iter().filter(|event| event.what == what).count()
    }
}

/// Runs a program as it is.
///
/// # Errors
/// When it cannot be started, or fails.
pub(super) fn plain(file: &Path, arguments: &[String]) -> Result<Ran> {
    let output =
        output(Command::new(file).args(arguments)).with_context(|| format!("cannot start {}", file.display()))?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("{} {}: {}; {}", file.display(), arguments.join(" "), words.trim(), output.status);
    }
    parsed(words, Vec::new())
}

/// Runs it under `run --repair` with some more options, which writes what it did to `stats`.
///
/// # Errors
/// [`Missing`] where this machine or this user cannot repair; when the program fails.
pub(super) fn repaired(file: &Path, arguments: &[String], stats: &Path, more: &[&str]) -> Result<Ran> {
    let mut command = Command::new(fieldstone());
    command.args(["run", "--repair", "--stats"]).arg(stats).args(more).arg("--").arg(file).args(arguments);
    let output = output(&mut command).map_err(|error| no_fieldstone(&error))?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let not_repaired = || Missing(format!("not repaired: {}", complaint(&words)));
    match output.status.code() {
        Some(0) => {}
        Some(2) => return Err(not_repaired().into()),
        _ => bail!("repaired {} {}: {}; {}", file.display(), arguments.join(" "), words.trim(), output.status),
    }
    let stats = std::fs::read(stats).with_context(|| format!("run --repair wrote no {}", stats.display()))?;
    let stats: Stats = serde_json::from_slice(&stats).context("run --repair wrote statistics of another kind")?;
    if stats.seen.samples == 0 {
        return Err(not_repaired().into());
    }
    parsed(words, stats.events)
}

fn output(command: &mut Command) -> std::io::Result<Output> {
    ends_with_us(command.stdin(Stdio::null()).stdout(Stdio::null())).output()
}

/// A run from its standard error and the events of its repair.
///
/// # Errors
/// When it printed no time.
pub(super) fn parsed(words: String, events: Vec<Event>) -> Result<Ran> {
    let number = |before: &str, behind: &str| {
        words.lines().find_map(|line| line.strip_prefix(before)?.strip_suffix(behind)?.parse::<f64>().ok())
    };
    let (Some(kernel_s), Some(processors)) = (number("kernel: ", ""), number("", " processors at work")) else {
        bail!("it did not print how long its threads ran: {}", words.trim());
    };
    let kernel = Duration::try_from_secs_f64(kernel_s)?;
    Ok(Ran { kernel, processors, events, words })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_run_is_parsed() {
        let events = r#"[{"at_ms":1.5,"event":"found","line":64,"share":0.5},{"at_ms":2,"event":"moved","page":0,"views":2,"lines":[]}]"#;
        let ran =
            parsed("init: 0.5\nkernel: 1.25\n1.98 processors at work\n".into(), serde_json::from_str(events).unwrap())
                .unwrap();
        assert_eq!((ran.kernel, ran.processors), (Duration::from_millis(1250), 1.98));
        assert_eq!((ran.count("found"), ran.count("moved"), ran.count("led")), (1, 1, 0));
        assert!(parsed("init: 0.5\n".into(), Vec::new()).unwrap_err().to_string().contains("init: 0.5"));
    }

    #[test]
    fn a_program_that_fails_is_an_error_in_its_own_words() {
        let words = ["-c", "echo wrong result >&2; exit 1"].map(str::to_owned);
        let error = plain(Path::new("/bin/sh"), &words).unwrap_err().to_string();
        assert!(error.contains("wrong result") && error.contains("exit status: 1"), "{error}");
    }
}
