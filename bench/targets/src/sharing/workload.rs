//! A program run once, with or without the repair, and what it tells of itself.

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

use super::contests::Size;
use super::repair::Repaired;

/// What takes so long hangs.
pub(super) const HANGS: Duration = Duration::from_secs(120);

/// What is tried out before anything is measured.
const COUNTERS: &str = "sharing/counters-O2";
const COUNTED: Size = Size { option: "--iterations", number: 100_000_000 };

/// A size grows by this much at most from one try to the next.
const MOST_GROWTH: f64 = 16.0;

/// What one run gave.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// None: it hung, and was killed.
    pub(super) status: Option<ExitStatus>,
    pub(super) wall_s: f64,
    /// Seconds of its threads.
    pub(super) kernel_s: Option<f64>,
    /// Processors that they had.
    pub(super) parallel: Option<f64>,
    /// `CLOCK_MONOTONIC` in seconds when the last of them began.
    pub(super) began_s: Option<f64>,
    pub(super) output: String,
    pub(super) errors: String,
}

impl Run {
    /// What a run that ended so left in these files.
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

    /// How it ended, in words.
    pub(super) fn ending(&self) -> String {
        self.status.map_or_else(|| format!("hung for {} s", HANGS.as_secs()), |status| status.to_string())
    }

    /// Seconds of its threads, or of all of it where it does not tell.
    pub(super) fn threads_s(&self) -> f64 {
        self.kernel_s.unwrap_or(self.wall_s)
    }

    pub(super) fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Itself, if it succeeded.
    pub(super) fn successful(self, program: &str) -> anyhow::Result<Self> {
        if !self.succeeded() {
            bail!("{program}: {}: {}{}", self.ending(), self.errors, self.output);
        }
        Ok(self)
    }
}

/// Where a run's output went, read from its start: a pipe could be held open by what outlives the run.
fn text(mut file: File) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Where the programs are.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
}

impl Place {
    pub(super) fn find() -> anyhow::Result<Self> {
        Ok(Self {
            directory: std::env::current_exe()?.parent().context("this program lies in a directory")?.to_owned(),
        })
    }

    pub(super) fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }

    /// Why a program cannot be run, if it cannot.
    pub(super) fn lacks(&self, program: &str) -> Option<String> {
        let lacks = !self.path(program).exists();
        lacks.then(|| format!("{program} is not built (make build; those in sharing/ need a C compiler)"))
    }

    /// Why nothing can be measured here, if so.
    pub(super) fn obstacle(&self) -> anyhow::Result<Option<String>> {
        if available_parallelism()?.get() < 2 {
            return Ok(Some("two processors are needed".to_owned()));
        }
        if let Some(why) = self.lacks(COUNTERS) {
            return Ok(Some(why));
        }
        let looked = self.repaired(COUNTERS, "--pin", COUNTED)?;
        if looked.stats.seen.samples > 0 {
            return Ok(None);
        }
        let why = looked.run.errors.lines().find(|line| line.starts_with("fieldstone"));
        Ok(Some(why.unwrap_or("the repair saw nothing of the program, and does not say why").to_owned()))
    }

    /// How many times as long counters take here that share falsely.
    pub(super) fn slowdown(&self) -> anyhow::Result<f64> {
        let kernel_s = |words| self.plain(COUNTERS, words, COUNTED).map(|run| run.kernel_s.unwrap_or(f64::NAN));
        Ok(kernel_s("--pin")? / kernel_s("--pin --pattern padded")?)
    }

    /// A run without anything, which has to succeed.
    pub(super) fn plain(&self, program: &str, words: &str, size: Size) -> anyhow::Result<Run> {
        run(Command::new(self.path(program)).args(arguments(words, size)), HANGS)?.successful(program)
    }

    /// A run under `fieldstone run --repair`, which has to succeed.
    pub(super) fn repaired(&self, program: &str, words: &str, size: Size) -> anyhow::Result<Repaired> {
        let Repaired { run, stats } = self.tried(program, words, size)?;
        Ok(Repaired { run: run.successful(&format!("{program}, repaired"))?, stats })
    }

    /// The same, however it ends.
    pub(super) fn tried(&self, program: &str, words: &str, size: Size) -> anyhow::Result<Repaired> {
        let stats = tempfile::NamedTempFile::new()?;
        let mut command = Command::new(self.path("fieldstone"));
        command.args(["run", "--repair", "--stats"]).arg(stats.path()).arg("--").arg(self.path(program));
        let run = run(command.args(arguments(words, size)), HANGS)?;
        Ok(Repaired { stats: record(stats.path(), &run)?, run })
    }
}

/// What the repair wrote.
pub(super) fn record(path: &Path, run: &Run) -> anyhow::Result<RepairStats> {
    let text = std::fs::read_to_string(path)?;
    // Who was killed wrote nothing.
    if text.is_empty() && !run.succeeded() {
        return Ok(RepairStats::default());
    }
    serde_json::from_str(&text).with_context(|| format!("what --stats wrote: {text:?}; {}", run.errors))
}

/// All arguments of a program.
pub(super) fn arguments(words: &str, size: Size) -> Vec<String> {
    let words = words.split_whitespace().chain(size.option.split_whitespace());
    words.map(str::to_owned).chain([size.number.to_string()]).collect()
}

/// Runs a command to its end, or kills it with its group when it hangs.
pub(super) fn run(command: &mut Command, most: Duration) -> anyhow::Result<Run> {
    let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?).process_group(0);
    let since = Instant::now();
    let mut child = command.spawn().with_context(|| format!("{command:?} cannot be started"))?;
    let status = wait(&mut child, most)?;
    Run::read(status, since.elapsed().as_secs_f64(), output, errors)
}

/// Waits for the leader of a group; none where the group had to be killed.
pub(super) fn wait(child: &mut Child, most: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let descriptor = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let most = Timespec::try_from(most)?;
    let ended = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&most)))? > 0;
    if !ended {
        kill_process_group(Pid::from_child(child), Signal::KILL)?;
    }
    // It ends: the child has ended, or was killed.
    let status = child.wait()?;
    Ok(ended.then_some(status))
}

/// The number for a size with which a run takes `wanted_s` at least; `time` runs it.
pub(super) fn sized(
    size: Size,
    wanted_s: f64,
    mut time: impl FnMut(Size) -> anyhow::Result<f64>,
) -> anyhow::Result<Size> {
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

    fn shell(script: &str, most: Duration) -> Run {
        run(Command::new("sh").args(["-c", script]), most).unwrap()
    }

    #[test]
    fn what_a_program_tells_is_read() {
        let tells = "echo checksum: 1; echo init: 0.5 >&2; echo kernel: 1.250000 >&2; echo 1.98 processors at work >&2";
        let run = shell(tells, HANGS);
        assert_eq!((run.kernel_s, run.parallel, run.began_s), (Some(1.25), Some(1.98), None));
        assert_eq!(run.output, "checksum: 1\n");
        assert!(run.succeeded());
        assert_eq!(shell("echo all threads at work since 5123.5 >&2", HANGS).began_s, Some(5123.5));
    }

    #[test]
    fn what_fails_or_hangs_is_told() {
        let failed = shell("echo wrong >&2; exit 3", HANGS);
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
        let size = sized(Size { option: "-n", number: 10 }, 1.2, |size| {
            tried.push(size.number);
            Ok(size.number as f64 * 1e-3)
        });
        assert_eq!(tried[..2], [10, 160]);
        assert!(tried.len() == 3 && (1300..1340).contains(&tried[2]), "{tried:?}");
        assert_eq!(size.unwrap().number, tried[2]);
        let words = arguments("--pin 5", Size { option: "--points 2 --rounds", number: 7 });
        assert_eq!(words, ["--pin", "5", "--points", "2", "--rounds", "7"]);
    }
}
