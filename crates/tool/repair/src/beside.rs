//! `run --repair`: a program, and beside it a process of ours that looks on and repairs.
//!
//! ```text
//!   we ──┬── the program: in the foreground, untouched
//!        └── fieldstone repair --pid …: traces it, tells us what happens, a line of JSON for each event
//! ```
//! Two processes, since the one that waits for a child's end would take what ptrace tells of it. The repairer lets go of the program when
//! we end. When the repairer dies, its watchdogs put everything back (`watchdog`), and we see to it that they have. When we are killed, too,
//! the witness of our signals becomes another watchdog.
//!
//! No wait for the repairer is without a bound: it is killed when it is stopped for 2 s, and when the program has ended for 2 s. The kernel
//! hides the end of a traced program from us until its tracer has seen the end, or is dead.
#![allow(unsafe_code, reason = "a call has to be made between fork and exec")]

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use fieldstone_sys::process::{has_ended, is_child_running, set_parent_death_signal, threads};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::available::check_run_repair;
use super::follow::{Event, Happened};
use super::watchdog;
use super::watcher::Seen;
use crate::error::{Error, Result};
use fieldstone_launch::launch::Treatment;
use fieldstone_launch::outcome;
use fieldstone_launch::program::Program;
use fieldstone_launch::signals::SignalForwarder;

/// What `run --repair --stats FILE` writes: the schema `fieldstone-repair/1`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RepairStats {
    /// Always [`RepairStats::SCHEMA`].
    pub schema: String,
    /// Version of the tool that ran it.
    pub tool_version: String,
    /// Program and arguments, as given.
    pub command: Vec<String>,
    /// Its process.
    pub pid: u32,
    /// How it ended: `exit 0`, `signal 11 (SIGSEGV)`.
    pub outcome: String,
    /// How the last repairer ended, in the same words, or `not started: ` and the error. Errors of a repairer are on standard error.
    pub repairer: String,
    /// What was seen; nothing where the repairer could not look on.
    pub seen: Seen,
    /// What happened, in the order of time; milliseconds since the first repairer began.
    pub events: Vec<Event>,
}

impl RepairStats {
    /// Schema string of this version.
    pub const SCHEMA: &'static str = fieldstone_report::saved::REPAIR_SCHEMA;
}

/// Runs `program` in the foreground until it ends, repaired meanwhile by `repairer` (this very command); `words` come before the number of the
/// process. Signals sent to us go to the program.
///
/// # Errors
/// The program cannot be started. Where this user cannot repair programs, or no repairer can be started, `complain` gets the error before
/// the program starts, and the program runs unrepaired. A repairer prints its own errors on standard error.
pub fn run(
    program: &Program,
    repairer: &OsStr,
    words: &[&OsStr],
    complain: fn(&Error),
) -> Result<(ExitStatus, RepairStats)> {
    let available = check_run_repair().inspect_err(complain);
    let mut forward = SignalForwarder::prepare_with_death_handler(watchdog::become_rescuer)?;
    let running = forward.launch(program, &Treatment::Traceable)?;
    let pid = running.child.id();
    let start = |()| Beside::start(repairer, words, pid, complain).inspect_err(complain);
    let beside = available.and_then(start);
    let status = forward.wait_for_exit(pid)?;
    let Looked { seen, events, outcome: repairer } = match beside {
        Ok(beside) => beside.finish(),
        Err(error) => Looked { outcome: format!("not started: {error}"), ..Looked::default() },
    };
    let stats = RepairStats {
        schema: RepairStats::SCHEMA.to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: program.command_line(),
        pid,
        outcome: outcome::describe(status),
        repairer,
        seen,
        events,
    };
    Ok((status, stats))
}

/// How a repairer ends that a fault of its own has ended.
const PANICKED: i32 = 101;
/// How often the repairer is checked, and after how many checks in a row without work it is killed: 2 s.
const BETWEEN_CHECKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
const MOST_CHECKS: u32 = 8;
/// How long the last events may take to be read after the repairer's end. A child of its own may keep its output open.
const LONGEST_READ: Duration = Duration::from_secs(1);

/// The repairer's process, with a thread that waits for its end and one that reads its events.
struct Beside {
    outcome: JoinHandle<String>,
    events: Arc<Mutex<Vec<Event>>>,
    /// Disconnected when all events have been read.
    all_read: Receiver<()>,
}

/// What repairers told, and how the last one ended.
#[derive(Debug, Default)]
struct Looked {
    seen: Seen,
    events: Vec<Event>,
    outcome: String,
}

impl Beside {
    fn start(repairer: &OsStr, words: &[&OsStr], pid: u32, complain: fn(&Error)) -> Result<Self> {
        let words: Vec<OsString> = words.iter().map(|&word| word.to_owned()).chain([pid.to_string().into()]).collect();
        let program = Watched { pid, ended: watchdog::pidfd(pid)? };
        let mut child = start(repairer, &words)?;
        let (reading, all_read) = channel();
        let events = Arc::<Mutex<Vec<Event>>>::default();
        if let Some(output) = child.stdout.take() {
            let events = Arc::clone(&events);
            spawn(move || {
                listen(output, &events);
                drop(reading);
            });
        }
        Ok(Self { outcome: spawn(move || watch(child, &program, complain)), events, all_read })
    }

    /// Waits for the repairer's end, which comes within some two seconds after the program's.
    fn finish(self) -> Looked {
        let outcome = self.outcome.join().unwrap_or_default();
        let _ = self.all_read.recv_timeout(LONGEST_READ);
        let events = std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner));
        let mut looked = Looked { events, outcome, ..Looked::default() };
        let last = looked.events.pop_if(|last| matches!(last.what, Happened::Over(_)));
        if let Some(Event { what: Happened::Over(seen), .. }) = last {
            looked.seen = seen;
        }
        looked
    }
}

/// A process, which keeps its number as long as `ended`, its pidfd, says that it has not ended.
struct Watched {
    pid: u32,
    ended: OwnedFd,
}

impl Watched {
    /// Whether all its threads have ended. The pidfd does not show that while a tracer has yet to reap one.
    fn is_over(&self) -> bool {
        let all_ended = || threads(self.pid).is_ok_and(|threads| threads.into_iter().all(has_ended));
        watchdog::has_ended_by(&self.ended) || has_ended(self.pid) && all_ended()
    }
}

/// Waits for the repairer's end; returns how it ended. When it died and the program goes on, everything is put back first.
fn watch(mut repairer: Child, program: &Watched, complain: fn(&Error)) -> String {
    until_end(&mut repairer, program);
    let Ok(status) = repairer.wait() else { return String::new() };
    let outcome = outcome::describe(status);
    let is_dead = status.signal().is_some() || status.code() == Some(PANICKED);
    if is_dead && !program.is_over() {
        watchdog::rescue(program.pid, &program.ended);
        complain(&Error::RepairerDied { outcome: outcome.clone(), pid: program.pid });
    }
    outcome
}

/// Waits until the repairer has ended. It is killed when it has been stopped for too long, or the program has ended too long ago.
fn until_end(repairer: &mut Child, program: &Watched) {
    let ended = watchdog::pidfd(repairer.id()).ok();
    let mut checks = 0;
    while matches!(repairer.try_wait(), Ok(None)) {
        // Without a pidfd (no descriptor is left) the end is seen by the next check.
        let mut ends: Vec<PollFd<'_>> = ended.iter().map(|ended| PollFd::new(ended, PollFlags::IN)).collect();
        let _ = poll(&mut ends, Some(&BETWEEN_CHECKS));
        let is_needed = is_child_running(repairer.id()) && !program.is_over();
        checks = if is_needed { 0 } else { checks + 1 };
        if checks >= MOST_CHECKS {
            let _ = repairer.kill();
        }
    }
}

fn start(repairer: &OsStr, words: &[OsString]) -> Result<Child> {
    let mut command = Command::new(repairer);
    // Ctrl-C is for the program: what that does about it is to be repaired too.
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    // SAFETY: between fork and exec only prctl is called, a bare system call.
    unsafe { command.pre_exec(|| set_parent_death_signal(Some(libc::SIGTERM))) };
    command.spawn().map_err(|source| {
        let path = repairer.into();
        fieldstone_launch::Error::Start { path, source }.into()
    })
}

/// Adds what the repairer reports to `events`, until it reports no more.
fn listen(output: ChildStdout, events: &Mutex<Vec<Event>>) {
    let lines = BufReader::new(output).lines().map_while(std::io::Result::ok);
    for event in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
        events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}
