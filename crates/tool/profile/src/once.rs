//! One run of a program that ends by itself.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::process::{ChildStdout, Stdio};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use fieldstone_sys::counters::Walks;
use fieldstone_sys::process::Ended;
use fieldstone_wire::Mixture;

use super::counted::Counting;
use super::last_words::LastWords;
use super::observe::{Observation, Observed, Observer};
use super::plan::Plan;
use crate::error::Result;
use fieldstone_launch::launch::{Treatment, Wiring, launch};
use fieldstone_launch::outcome;
use fieldstone_launch::signals::Interrupt;
use fieldstone_launch::stop::{self, Deadline, Strays};

/// The outcome of a run that was ended because it took too long.
pub(super) const TIMED_OUT: &str = "timeout";

/// What one run was like.
#[derive(Clone, Debug, Default)]
pub struct Once {
    /// From start to end, or for a server: what its load took.
    pub elapsed: Duration,
    /// Time in user mode, in seconds.
    pub user_s: f64,
    /// Time in the kernel, in seconds.
    pub system_s: f64,
    /// All processor time of it, a server's start and end too, in seconds.
    pub whole_cpu_s: f64,
    /// Page faults without a disk.
    pub minor_faults: u64,
    /// Page faults that read a disk.
    pub major_faults: u64,
    /// Largest resident memory of one process.
    pub max_resident_bytes: u64,
    /// `exit 0`, `signal 11 (SIGSEGV)`, `timeout`.
    pub outcome: String,
    /// Hash of the standard output, if it is checked.
    pub output_hash: Option<u64>,
    /// Whether the program crashed, was killed or hung. An exit code says nothing: `grep` has its own.
    pub broken: bool,
    /// Page walks that the hardware counted, or why it counted none; nothing where that was not asked.
    pub walks: Option<std::result::Result<Walks, String>>,
    /// The end of the standard error.
    pub stderr: String,
    /// Processes that it left behind when it ended, by name; they were ended too.
    pub left: Vec<String>,
}

impl Once {
    pub(super) fn last_words(&self) -> String {
        let last = self.stderr.lines().last().unwrap_or_default();
        if last.is_empty() { String::new() } else { format!(" (its last words: {last})") }
    }
}

/// Runs the program to its end.
pub(super) fn run(
    plan: &Plan,
    kind: Mixture,
    treatment: &Treatment,
    observation: &Observation,
    interrupt: &Interrupt,
) -> Result<(Once, Observed)> {
    let (stderr, words) = LastWords::listen()?;
    let stdout = if plan.check_output { Stdio::piped() } else { Stdio::null() };
    let wiring = Wiring { stdin: stdin(plan)?, stdout, stderr, own_group: true, keeps_closed: false };
    let mut running = launch(&plan.program, treatment, wiring)?;
    let pid = running.child.id();
    interrupt.watch_group(pid);
    let counting = plan.trace.is_some().then(|| Counting::start(pid));
    let output = running.child.stdout.take().map(hash_output);
    let observer = Observer::start(observation, &running);
    let deadline = Deadline::start(pid, plan.timeout, interrupt.clone());
    let ended = stop::wait(pid);
    let elapsed = running.since.elapsed();
    let timed_out = deadline.finish();
    let strays = stop::end_strays(pid, interrupt.spared());
    interrupt.watch_group(0);
    let observed =
        observer.map(|observer| observer.finish(&running, kind, plan.process.as_deref())).unwrap_or_default();
    let mut once = describe(&ended?, &strays, elapsed);
    if timed_out {
        TIMED_OUT.clone_into(&mut once.outcome);
        once.broken = true;
    }
    once.walks = counting.map(Counting::finish);
    once.output_hash = output.and_then(ended_within_patience);
    once.stderr = words.finish();
    once.left = strays.left;
    Ok((once, observed))
}

/// A descendant whose own parent did not wait for it counts with what was left behind.
fn describe(ended: &Ended, strays: &Strays, elapsed: Duration) -> Once {
    let (user_ns, system_ns) = (ended.user_ns + strays.user_ns, ended.system_ns + strays.system_ns);
    Once {
        elapsed,
        user_s: Duration::from_nanos(user_ns).as_secs_f64(),
        system_s: Duration::from_nanos(system_ns).as_secs_f64(),
        whole_cpu_s: Duration::from_nanos(user_ns + system_ns).as_secs_f64(),
        minor_faults: ended.minor_faults,
        major_faults: ended.major_faults,
        max_resident_bytes: ended.max_resident_bytes,
        outcome: outcome::words(ended.status),
        broken: ended.status.code().is_none(),
        ..Once::default()
    }
}

pub(super) fn stdin(plan: &Plan) -> Result<Stdio> {
    let Some(path) = &plan.stdin else { return Ok(Stdio::null()) };
    let file = File::open(path).map_err(|source| fieldstone_launch::Error::Input { path: path.clone(), source })?;
    Ok(file.into())
}

/// How long a process that still holds the other end is waited for, when the program has ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a thread found that reads until the end of a pipe; `None` if some process that could not be ended keeps the pipe open.
fn ended_within_patience(thread: JoinHandle<u64>) -> Option<u64> {
    let until = Instant::now() + PATIENCE;
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
