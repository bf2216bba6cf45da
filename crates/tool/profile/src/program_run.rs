//! Run a program that ends by itself, once, and measure it.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::process::{ChildStdout, Stdio};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use fieldstone_launch::launch::{ChildOptions, Treatment, launch};
use fieldstone_launch::outcome;
use fieldstone_launch::signals::Interrupt;
use fieldstone_launch::stop::{self, Deadline, LeftoverProcesses};
use fieldstone_sys::counters::WalkCounts;
use fieldstone_sys::process::ChildExit;
use fieldstone_wire::Mixture;

use super::observation::{Observation, ObservedRun, Observer};
use super::plan::ProfilePlan;
use super::stderr_tail::StderrTail;
use super::walk_counters::RunCounters;
use crate::error::Result;

/// The outcome of a run that exceeded its time limit.
pub(super) const TIMED_OUT: &str = "timeout";

/// The measurements of one run.
#[derive(Clone, Debug, Default)]
pub struct ProgramRun {
    /// From start to end; for a server, the duration of its load.
    pub elapsed: Duration,
    /// CPU time in user mode, in seconds.
    pub user_s: f64,
    /// CPU time in the kernel, in seconds.
    pub system_s: f64,
    /// CPU time of the whole run, in seconds; for a server, including its start and stop.
    pub total_cpu_s: f64,
    /// Page faults that read no disk.
    pub minor_faults: u64,
    /// Page faults that read a disk.
    pub major_faults: u64,
    /// Peak resident memory of the largest process, in bytes.
    pub max_resident_bytes: u64,
    /// How it ended: `exit 0`, `signal 11 (SIGSEGV)`, `timeout`.
    pub outcome: String,
    /// Hash of the standard output; `None` without `check_output`.
    pub output_hash: Option<u64>,
    /// Whether the program crashed, was killed or hung. An exit code is no failure: `grep` reports
    /// its result by one.
    pub has_failed: bool,
    /// Page walks by hardware counters, or why they are not available; `None` without a trace.
    pub walks: Option<std::result::Result<WalkCounts, String>>,
    /// The last bytes of the standard error.
    pub stderr: String,
    /// Names of the processes that it left behind; they were killed.
    pub orphans: Vec<String>,
}

impl ProgramRun {
    pub(super) fn last_stderr_line(&self) -> String {
        let last = self.stderr.lines().last().unwrap_or_default();
        if last.is_empty() { String::new() } else { format!(" (the end of its stderr: {last})") }
    }
}

/// Runs the program until it ends.
pub(super) fn run(
    plan: &ProfilePlan,
    kind: Mixture,
    treatment: &Treatment,
    observation: &Observation,
    interrupt: &Interrupt,
) -> Result<(ProgramRun, ObservedRun)> {
    let (stderr, tail) = StderrTail::start()?;
    let stdout = if plan.check_output { Stdio::piped() } else { Stdio::null() };
    let wiring = ChildOptions { stdin: stdin(plan)?, stdout, stderr, own_group: true, keeps_closed: false };
    let mut running = launch(&plan.program, treatment, wiring)?;
    let pid = running.child.id();
    interrupt.set_group(pid);
    let counters = plan.trace.is_some().then(|| RunCounters::start(pid));
    let output = running.child.stdout.take().map(hash_output);
    let observer = Observer::start(observation, &running);
    let deadline = Deadline::start(pid, plan.timeout, interrupt.clone());
    let ended = stop::wait(pid);
    let elapsed = running.since.elapsed();
    let timed_out = deadline.finish();
    let strays = stop::kill_leftovers(pid, interrupt.excluded());
    interrupt.set_group(0);
    let observed =
        observer.map(|observer| observer.finish(&running, kind, plan.process.as_deref())).unwrap_or_default();
    let mut run = describe(&ended?, &strays, elapsed);
    if timed_out {
        TIMED_OUT.clone_into(&mut run.outcome);
        run.has_failed = true;
    }
    run.walks = counters.map(RunCounters::finish);
    run.output_hash = output.and_then(join_within_timeout);
    run.stderr = tail.finish();
    run.orphans = strays.names;
    Ok((run, observed))
}

/// Adds the CPU time of descendants for which their own parent did not wait.
fn describe(ended: &ChildExit, strays: &LeftoverProcesses, elapsed: Duration) -> ProgramRun {
    let (user_ns, system_ns) = (ended.user_ns + strays.user_ns, ended.system_ns + strays.system_ns);
    ProgramRun {
        elapsed,
        user_s: Duration::from_nanos(user_ns).as_secs_f64(),
        system_s: Duration::from_nanos(system_ns).as_secs_f64(),
        total_cpu_s: Duration::from_nanos(user_ns + system_ns).as_secs_f64(),
        minor_faults: ended.minor_faults,
        major_faults: ended.major_faults,
        max_resident_bytes: ended.max_resident_bytes,
        outcome: outcome::describe(ended.status),
        has_failed: ended.status.code().is_none(),
        ..ProgramRun::default()
    }
}

pub(super) fn stdin(plan: &ProfilePlan) -> Result<Stdio> {
    let Some(path) = &plan.stdin else { return Ok(Stdio::null()) };
    let file = File::open(path).map_err(|source| fieldstone_launch::Error::Input { path: path.clone(), source })?;
    Ok(file.into())
}

/// How long to wait for the end of the output after the program ended: another process may hold the
/// pipe open.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of the thread that reads the output; `None` if it still reads after
/// [`OUTPUT_TIMEOUT`].
fn join_within_timeout(thread: JoinHandle<u64>) -> Option<u64> {
    let until = Instant::now() + OUTPUT_TIMEOUT;
    while !thread.is_finished() && Instant::now() < until {
        sleep(Duration::from_millis(1));
    }
    thread.is_finished().then(|| thread.join().ok()).flatten()
}

fn hash_output(mut output: ChildStdout) -> JoinHandle<u64> {
    spawn(move || {
        let mut hasher = DefaultHasher::new();
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = output.read(&mut buffer) {
            hasher.write(&buffer[..read]);
        }
        hasher.finish()
    })
}
