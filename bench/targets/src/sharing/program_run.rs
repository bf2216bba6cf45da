//! Runs a program once, with or without the repair, and reads what it prints.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_repair::RepairStats;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::comparisons::WorkSize;
use super::repair_record::RepairedRun;

/// Time limit of a run; a longer run hangs.
pub(super) const RUN_TIME_LIMIT: Duration = Duration::from_secs(120);

/// The program that checks whether a repair is possible.
const COUNTERS: &str = "sharing/counters-O2";
const COUNTED: WorkSize = WorkSize { option: "--iterations", number: 100_000_000 };

/// Maximum growth of a size from one attempt to the next.
const MOST_GROWTH: f64 = 16.0;

/// The result of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkloadRun {
    /// `None` if it hung and was killed.
    pub(super) status: Option<ExitStatus>,
    pub(super) wall_s: f64,
    /// Seconds of its threads, if printed.
    pub(super) kernel_s: Option<f64>,
    /// Mean number of processors of its threads, if printed.
    pub(super) parallel: Option<f64>,
    /// `CLOCK_MONOTONIC` in seconds at the start of its last thread, if printed.
    pub(super) began_s: Option<f64>,
    pub(super) output: String,
    pub(super) errors: String,
}

impl WorkloadRun {
    /// Reads the output of a run that has ended.
    pub(super) fn read(status: Option<ExitStatus>, wall_s: f64, output: File, errors: File) -> anyhow::Result<Self> {
        let (output, errors) = (text(output)?, text(errors)?);
        let number = |of: &dyn Fn(&str) -> Option<&str>| errors.lines().find_map(of)?.trim().parse().ok();
        Ok(Self {
            status,
            wall_s,
            kernel_s: number(&|line| line.strip_prefix("kernel: ")),
            parallel: number(&|line| line.strip_suffix(" processors at work")),
            began_s: number(&|line| line.strip_prefix("all threads at work since ")),
            output,
            errors,
        })
    }

    /// How it ended, as text.
    pub(super) fn ending(&self) -> String {
        self.status.map_or_else(|| format!("hung for {} s", RUN_TIME_LIMIT.as_secs()), |status| status.to_string())
    }

    /// Seconds of its threads, or of the whole run if it does not print them.
    pub(super) fn threads_s(&self) -> f64 {
        self.kernel_s.unwrap_or(self.wall_s)
    }

    pub(super) fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// `self` if it succeeded, else an error with its output.
    pub(super) fn successful(self, program: &str) -> anyhow::Result<Self> {
        if !self.succeeded() {
            bail!("{program}: {}: {}{}", self.ending(), self.errors, self.output);
        }
        Ok(self)
    }
}

/// The output of a run, from a file: a process that outlives the run could keep a pipe open.
fn text(mut file: File) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The directory of the programs.
#[derive(Debug)]
pub(super) struct Programs {
    directory: PathBuf,
}

impl Programs {
    pub(super) fn find() -> anyhow::Result<Self> {
        Ok(Self {
            directory: std::env::current_exe()?
                .parent()
                .context("the path of this program has a directory")?
                .to_owned(),
        })
    }

    pub(super) fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }

    /// Why a program cannot run; `None` if it can.
    pub(super) fn missing_reason(&self, program: &str) -> Option<String> {
        let missing_reason = !self.path(program).exists();
        missing_reason.then(|| format!("{program} is not built (make build; those in sharing/ need a C compiler)"))
    }

    /// Why nothing can be measured here; `None` if it can.
    pub(super) fn obstacle(&self) -> anyhow::Result<Option<String>> {
        if available_parallelism()?.get() < 2 {
            return Ok(Some("two processors are needed".to_owned()));
        }
        if let Some(why) = self.missing_reason(COUNTERS) {
            return Ok(Some(why));
        }
        let looked = self.repaired(COUNTERS, "--pin", COUNTED)?;
        if looked.stats.sampling.samples > 0 {
            return Ok(None);
        }
        let why = looked.run.errors.lines().find(|line| line.starts_with("fieldstone"));
        Ok(Some(why.unwrap_or("the repair had no samples, without a message").to_owned()))
    }

    /// The slowdown by false sharing on this machine: time of the counters relative to padded ones.
    pub(super) fn slowdown(&self) -> anyhow::Result<f64> {
        let kernel_s = |words| self.plain(COUNTERS, words, COUNTED).map(|run| run.kernel_s.unwrap_or(f64::NAN));
        Ok(kernel_s("--pin")? / kernel_s("--pin --pattern padded")?)
    }

    /// Runs a program without the repair; it must succeed.
    pub(super) fn plain(&self, program: &str, words: &str, size: WorkSize) -> anyhow::Result<WorkloadRun> {
        run(Command::new(self.path(program)).args(arguments(words, size)), RUN_TIME_LIMIT)?.successful(program)
    }

    /// Runs a program under `fieldstone run --repair`; it must succeed.
    pub(super) fn repaired(&self, program: &str, words: &str, size: WorkSize) -> anyhow::Result<RepairedRun> {
        let RepairedRun { run, stats } = self.run_repaired(program, words, size)?;
        Ok(RepairedRun { run: run.successful(&format!("{program}, repaired"))?, stats })
    }

    /// Runs a program under `fieldstone run --repair`, however it ends.
    pub(super) fn run_repaired(&self, program: &str, words: &str, size: WorkSize) -> anyhow::Result<RepairedRun> {
        let stats = tempfile::NamedTempFile::new()?;
        let mut command = Command::new(self.path("fieldstone"));
        command.args(["run", "--repair", "--stats"]).arg(stats.path()).arg("--").arg(self.path(program));
        let run = run(command.args(arguments(words, size)), RUN_TIME_LIMIT)?;
        Ok(RepairedRun { stats: record(stats.path(), &run)?, run })
    }
}

/// Reads the record that the repair wrote.
pub(super) fn record(path: &Path, run: &WorkloadRun) -> anyhow::Result<RepairStats> {
    let text = std::fs::read_to_string(path)?;
    // A killed repair writes no record.
    if text.is_empty() && !run.succeeded() {
        return Ok(RepairStats::default());
    }
    serde_json::from_str(&text).with_context(|| format!("what --stats wrote: {text:?}; {}", run.errors))
}

/// All arguments of a program.
pub(super) fn arguments(words: &str, size: WorkSize) -> Vec<String> {
    let words = words.split_whitespace().chain(size.option.split_whitespace());
    words.map(str::to_owned).chain([size.number.to_string()]).collect()
}

/// Runs a command to its end; kills its process group after `time_limit`.
pub(super) fn run(command: &mut Command, time_limit: Duration) -> anyhow::Result<WorkloadRun> {
    let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?).process_group(0);
    let since = Instant::now();
    let mut child = command.spawn().with_context(|| format!("{command:?} cannot be started"))?;
    let status = wait(&mut child, time_limit)?;
    WorkloadRun::read(status, since.elapsed().as_secs_f64(), output, errors)
}

/// Waits for the leader of a process group; `None` if the group was killed after `time_limit`.
pub(super) fn wait(child: &mut Child, time_limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let descriptor = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let time_limit = Timespec::try_from(time_limit)?;
    let ended =
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&time_limit)))? > 0;
    if !ended {
        kill_process_group(Pid::from_child(child), Signal::KILL)?;
    }
    // Terminates: the child has ended or was killed.
    let status = child.wait()?;
    Ok(ended.then_some(status))
}

/// Increases the size until a run takes at least `wanted_s`; `time` runs it.
pub(super) fn find_size(
    size: WorkSize,
    wanted_s: f64,
    mut time: impl FnMut(WorkSize) -> anyhow::Result<f64>,
) -> anyhow::Result<WorkSize> {
    let mut size = size;
    loop {
        let took_s = time(size)?;
        if took_s >= wanted_s {
            return Ok(size);
        }
        let growth = (1.1 * wanted_s / took_s).clamp(1.2, MOST_GROWTH);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 16 times what it was")]
        let number = (size.number as f64 * growth).ceil() as u64;
        size.number = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, time_limit: Duration) -> WorkloadRun {
        run(Command::new("sh").args(["-c", script]), time_limit).unwrap()
    }

    #[test]
    fn printed_values_are_read() {
        let script =
            "echo checksum: 1; echo init: 0.5 >&2; echo kernel: 1.250000 >&2; echo 1.98 processors at work >&2";
        let run = shell(script, RUN_TIME_LIMIT);
        assert_eq!((run.kernel_s, run.parallel, run.began_s), (Some(1.25), Some(1.98), None));
        assert_eq!(run.output, "checksum: 1\n");
        assert!(run.succeeded());
        assert_eq!(shell("echo all threads at work since 5123.5 >&2", RUN_TIME_LIMIT).began_s, Some(5123.5));
    }

    #[test]
    fn failures_and_hangs_are_reported() {
        let failed = shell("echo wrong >&2; exit 3", RUN_TIME_LIMIT);
        assert!(failed.ending().contains('3') && !failed.succeeded(), "{failed:?}");
        let error = failed.successful("sh").unwrap_err().to_string();
        assert!(error.contains("wrong"), "{error}");
        let hung = shell("echo before; sleep 1000", Duration::from_millis(300));
        assert!(hung.status.is_none() && hung.ending().contains("hung"), "{hung:?}");
        assert_eq!(hung.output, "before\n");
    }

    #[test]
    fn sizes_grow_until_a_run_is_long_enough() {
        let mut tried = Vec::new();
        let size = find_size(WorkSize { option: "-n", number: 10 }, 1.2, |size| {
            tried.push(size.number);
            Ok(size.number as f64 * 1e-3)
        });
        assert_eq!(tried[..2], [10, 160]);
        assert!(tried.len() == 3 && (1300..1340).contains(&tried[2]), "{tried:?}");
        assert_eq!(size.unwrap().number, tried[2]);
        let words = arguments("--pin 5", WorkSize { option: "--points 2 --rounds", number: 7 });
        assert_eq!(words, ["--pin", "5", "--points", "2", "--rounds", "7"]);
    }
}
