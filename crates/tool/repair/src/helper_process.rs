//! `run --repair`: a program, and a helper process that samples and repairs it.
//!
//! ```text
//!   fieldstone run ──┬── the program: in the foreground, unchanged
//!                    └── fieldstone attach --repair …: traces the program, prints events as JSON
//! ```
//! The repairer needs its own process: a process that waits for a child's end would receive the
//! ptrace stops of that child.
//!
//! Invariants:
//! - The repairer releases the program when `fieldstone run` ends.
//! - If the repairer dies, its watchdogs restore all pages (`watchdog`). This process starts a
//!   rescuer in addition.
//! - If this process is killed too, the witness of its signals becomes a watchdog.
//! - Each wait for the repairer is bounded: it is killed after a stop of 2 s, and 2 s after the
//!   program's end. The kernel hides the end of a traced program from its parent until the tracer
//!   has reaped it or is dead.
#![allow(unsafe_code, reason = "prctl(2) is called between fork and exec")]

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, spawn};

use fieldstone_sys::process::{has_ended, is_child_running, set_parent_death_signal, threads};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use crate::available::check_run_repair;
use crate::error::{Error, Result};
use crate::event::TimedEvent;
use crate::line_detector::SamplingStats;
use crate::tuning::{HELPER_CHECK_INTERVAL, MAX_FAILED_CHECKS, MAX_READ_TIME};
use crate::watchdog;
use fieldstone_launch::launch::Treatment;
use fieldstone_launch::outcome;
use fieldstone_launch::program::Program;
use fieldstone_launch::signals::SignalForwarder;

/// The file of `run --repair --stats FILE`: the schema `fieldstone-repair/1`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RepairStats {
    /// Always [`RepairStats::SCHEMA`].
    pub schema: String,
    /// Version of the tool that ran the program.
    pub tool_version: String,
    /// Program and arguments, as given.
    pub command: Vec<String>,
    /// The process number of the program.
    pub pid: u32,
    /// How the program ended: `exit 0`, `signal 11 (SIGSEGV)`.
    pub outcome: String,
    /// How the repairer ended, in the same format, or `not started: ` and the error. A repairer
    /// prints its errors on standard error.
    pub repairer: String,
    /// Counts of samples; all 0 where the repairer could not sample.
    #[serde(rename = "seen")]
    pub sampling: SamplingStats,
    /// The events in the order of time.
    pub events: Vec<TimedEvent>,
}

impl RepairStats {
    /// Schema string of this version.
    pub const SCHEMA: &'static str = fieldstone_report::saved::REPAIR_SCHEMA;
}

/// Runs `program` in the foreground until it ends, with a helper process that repairs it. The
/// helper is the command `repairer` with `arguments` and the program's process number. Signals to
/// this process are forwarded to the program.
///
/// # Errors
/// Where the program cannot be started. Where this user cannot repair programs, or the helper
/// cannot be started, `warn` gets the error and the program runs without repair. The helper prints
/// its own errors on standard error.
pub fn run_repaired(
    program: &Program,
    repairer: &OsStr,
    arguments: &[&OsStr],
    warn: fn(&Error),
) -> Result<(ExitStatus, RepairStats)> {
    let available = check_run_repair().inspect_err(warn);
    let mut forward = SignalForwarder::prepare_with_death_handler(watchdog::become_rescuer)?;
    let running = forward.launch(program, &Treatment::Traceable)?;
    let pid = running.child.id();
    let start = |()| HelperProcess::start(repairer, arguments, pid, warn).inspect_err(warn);
    let helper = available.and_then(start);
    let status = forward.wait_for_exit(pid)?;
    let HelperResult { sampling, events, outcome: repairer } = match helper {
        Ok(helper) => helper.finish(),
        Err(error) => HelperResult { outcome: format!("not started: {error}"), ..HelperResult::default() },
    };
    let stats = RepairStats {
        schema: RepairStats::SCHEMA.to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: program.command_line(),
        pid,
        outcome: outcome::describe(status),
        repairer,
        sampling,
        events,
    };
    Ok((status, stats))
}

/// The exit code of a Rust process after a panic.
const PANIC_EXIT_CODE: i32 = 101;

/// The helper process, with a thread that waits for its end and a thread that reads its events.
struct HelperProcess {
    outcome: JoinHandle<String>,
    events: Arc<Mutex<Vec<TimedEvent>>>,
    /// Disconnected when all events have been read.
    all_read: Receiver<()>,
}

/// The events of a helper process, and how it ended.
#[derive(Debug, Default)]
struct HelperResult {
    sampling: SamplingStats,
    events: Vec<TimedEvent>,
    outcome: String,
}

impl HelperProcess {
    fn start(repairer: &OsStr, arguments: &[&OsStr], pid: u32, warn: fn(&Error)) -> Result<Self> {
        let arguments = arguments.iter().map(|&word| word.to_owned());
        let arguments: Vec<OsString> = arguments.chain([pid.to_string().into()]).collect();
        let program = ProgramHandle { pid, ended: watchdog::pidfd(pid)? };
        let mut child = spawn_repairer(repairer, &arguments)?;
        let (reading, all_read) = channel();
        let events = Arc::<Mutex<Vec<TimedEvent>>>::default();
        if let Some(output) = child.stdout.take() {
            let events = Arc::clone(&events);
            spawn(move || {
                read_events(output, &events);
                drop(reading);
            });
        }
        Ok(Self { outcome: spawn(move || supervise(child, &program, warn)), events, all_read })
    }

    /// Waits for the helper's end, which is at most about 2 s after the program's end.
    fn finish(self) -> HelperResult {
        let outcome = self.outcome.join().unwrap_or_default();
        let _ = self.all_read.recv_timeout(MAX_READ_TIME);
        let mut events = std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner));
        HelperResult { sampling: SamplingStats::take_from(&mut events), events, outcome }
    }
}

/// The program. Its process number is valid while `ended`, its pidfd, is not readable.
struct ProgramHandle {
    pid: u32,
    ended: OwnedFd,
}

impl ProgramHandle {
    /// Whether all threads have ended. The pidfd does not show this before the tracer has reaped
    /// them.
    fn has_ended(&self) -> bool {
        let all_ended = || threads(self.pid).is_ok_and(|threads| threads.into_iter().all(has_ended));
        watchdog::is_readable(&self.ended) || has_ended(self.pid) && all_ended()
    }
}

/// Waits for the repairer's end; returns how it ended. If it died while the program runs,
/// all pages are restored.
fn supervise(mut repairer: Child, program: &ProgramHandle, warn: fn(&Error)) -> String {
    wait_until_end(&mut repairer, program);
    let Ok(status) = repairer.wait() else { return String::new() };
    let outcome = outcome::describe(status);
    let is_dead = status.signal().is_some() || status.code() == Some(PANIC_EXIT_CODE);
    if is_dead && !program.has_ended() {
        watchdog::rescue(program.pid, &program.ended);
        warn(&Error::RepairerDied { outcome: outcome.clone(), pid: program.pid });
    }
    outcome
}

/// Waits until the repairer has ended. Kills it after [`MAX_FAILED_CHECKS`] checks in a row in
/// which it is stopped or the program has ended.
fn wait_until_end(repairer: &mut Child, program: &ProgramHandle) {
    let ended = watchdog::pidfd(repairer.id()).ok();
    let mut failed_checks = 0;
    while matches!(repairer.try_wait(), Ok(None)) {
        // Without a pidfd (no descriptor is free) the next check detects the end.
        let mut ends: Vec<PollFd<'_>> = ended.iter().map(|ended| PollFd::new(ended, PollFlags::IN)).collect();
        let _ = poll(&mut ends, Some(&HELPER_CHECK_INTERVAL));
        let is_working = is_child_running(repairer.id()) && !program.has_ended();
        failed_checks = if is_working { 0 } else { failed_checks + 1 };
        if failed_checks >= MAX_FAILED_CHECKS {
            let _ = repairer.kill();
        }
    }
}

fn spawn_repairer(repairer: &OsStr, arguments: &[OsString]) -> Result<Child> {
    let mut command = Command::new(repairer);
    // A process group of its own: Ctrl-C goes to the program only, whose reaction is repaired too.
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    // SAFETY: `set_parent_death_signal` makes one system call, and neither allocates nor takes a
    // lock. So it is safe in the child of a fork in a process with several threads.
    unsafe { command.pre_exec(|| set_parent_death_signal(Some(libc::SIGTERM))) };
    let failed = |source| fieldstone_launch::Error::Start { path: repairer.into(), source };
    Ok(command.spawn().map_err(failed)?)
}

/// Appends the events that the repairer prints to `events`, until its output ends.
fn read_events(output: ChildStdout, events: &Mutex<Vec<TimedEvent>>) {
    let lines = BufReader::new(output).lines().map_while(std::io::Result::ok);
    for event in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
        events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}
