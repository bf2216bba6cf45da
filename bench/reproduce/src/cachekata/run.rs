//! One run of a program, plain or repaired, and its output.
//!
//! The programs check their own results. A wrong result is an error, with and without a repair.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::sibling_programs::{Missing, end_with_parent, fieldstone, last_message, no_fieldstone};

/// The output of a run.
#[derive(Clone, Debug)]
pub(super) struct TimedRun {
    /// The time of its threads.
    pub(super) kernel: Duration,
    /// Mean number of threads that ran at the same time.
    pub(super) processors: f64,
    /// The events of the repair; empty without one.
    pub(super) events: Vec<Event>,
    /// Its standard error.
    pub(super) errors: String,
}

/// An event that a repair reports.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Event {
    /// Milliseconds since the start of the repairer.
    pub(super) at_ms: f64,
    /// Its saved name: `found`, `moved`, `led`, ...
    #[serde(rename = "event")]
    pub(super) kind: String,
}

/// The fields of `--stats` that are used here.
#[derive(Deserialize)]
struct Stats {
    #[serde(rename = "seen")]
    sampling: SamplingCounts,
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct SamplingCounts {
    samples: u64,
}

impl TimedRun {
    /// Number of events of a kind.
    pub(super) fn count(&self, kind: &str) -> usize {
        self.events.iter().filter(|event| event.kind == kind).count()
    }
}

/// Runs a program without a repair.
///
/// # Errors
/// If it cannot be started, or fails.
pub(super) fn plain(file: &Path, arguments: &[String]) -> Result<TimedRun> {
    let output =
        output(Command::new(file).args(arguments)).with_context(|| format!("cannot start {}", file.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("{} {}: {}; {}", file.display(), arguments.join(" "), errors.trim(), output.status);
    }
    parsed(errors, Vec::new())
}

/// The command that runs a program under repair and writes its statistics to `stats`. The program
/// and its arguments follow.
pub(super) fn repair_command(stats: &Path) -> Command {
    let mut command = Command::new(fieldstone());
    command.args(["run", "--repair", "--stats"]).arg(stats).arg("--");
    command
}

/// Runs a program by a command that repairs it and writes its statistics to `stats`.
///
/// # Errors
/// [`Missing`] if this machine or this user cannot repair; the error of a failed program.
pub(super) fn repaired(mut command: Command, file: &Path, arguments: &[String], stats: &Path) -> Result<TimedRun> {
    let output = output(command.arg(file).args(arguments)).map_err(|error| no_fieldstone(&error))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let not_repaired = || Missing(format!("not repaired: {}", last_message(&errors)));
    match output.status.code() {
        Some(0) => {}
        Some(2) => return Err(not_repaired().into()),
        _ => bail!("repaired {} {}: {}; {}", file.display(), arguments.join(" "), errors.trim(), output.status),
    }
    let text = std::fs::read(stats).with_context(|| format!("cannot read the statistics {}", stats.display()))?;
    let stats: Stats =
        serde_json::from_slice(&text).with_context(|| format!("cannot parse the statistics {}", stats.display()))?;
    if stats.sampling.samples == 0 {
        return Err(not_repaired().into());
    }
    parsed(errors, stats.events)
}

fn output(command: &mut Command) -> std::io::Result<Output> {
    end_with_parent(command.stdin(Stdio::null()).stdout(Stdio::null())).output()
}

/// A run from its standard error and the events of its repair.
///
/// # Errors
/// If the time of its threads is missing.
pub(super) fn parsed(errors: String, events: Vec<Event>) -> Result<TimedRun> {
    let number = |prefix: &str, suffix: &str| {
        errors.lines().find_map(|line| line.strip_prefix(prefix)?.strip_suffix(suffix)?.parse::<f64>().ok())
    };
    let (Some(kernel_s), Some(processors)) = (number("kernel: ", ""), number("", " processors at work")) else {
        bail!("the program did not print the time of its threads: {}", errors.trim());
    };
    let kernel = Duration::try_from_secs_f64(kernel_s)?;
    Ok(TimedRun { kernel, processors, events, errors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_run_is_parsed() {
        let events = r#"[{"at_ms":1.5,"event":"found","line":64,"share":0.5},{"at_ms":2,"event":"moved","page":0,"views":2,"lines":[]}]"#;
        let run =
            parsed("init: 0.5\nkernel: 1.25\n1.98 processors at work\n".into(), serde_json::from_str(events).unwrap())
                .unwrap();
        assert_eq!((run.kernel, run.processors), (Duration::from_millis(1250), 1.98));
        assert_eq!((run.count("found"), run.count("moved"), run.count("led")), (1, 1, 0));
        assert!(parsed("init: 0.5\n".into(), Vec::new()).unwrap_err().to_string().contains("init: 0.5"));
    }

    #[test]
    fn a_program_that_fails_is_an_error_with_its_message() {
        let arguments = ["-c", "echo wrong result >&2; exit 1"].map(str::to_owned);
        let error = plain(Path::new("/bin/sh"), &arguments).unwrap_err().to_string();
        assert!(error.contains("wrong result") && error.contains("exit status: 1"), "{error}");
    }
}
