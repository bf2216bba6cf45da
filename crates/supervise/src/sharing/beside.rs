//! `run --repair`: a program, and beside it a process of ours that looks on and repairs.
//!
//! ```text
//!   we ──┬── the program: in the foreground, untouched
//!        └── fieldstone repair --pid …: traces it, tells us what happens, a line of JSON for each event
//! ```
//! Two processes, since the one that waits for a child's end would take what ptrace tells of it. The repairer lets go of the program when
//! we end. When the repairer dies, its watchdogs put everything back (`watchdog`), and we see to it that they have.
#![allow(unsafe_code, reason = "a call has to be made between fork and exec")]

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::{JoinHandle, spawn};

use fieldstone_sys::process::{has_ended, set_parent_death_signal};
use serde::{Deserialize, Serialize};

use super::available::check_run_repair;
use super::follow::{Event, Happened};
use super::watchdog;
use super::watcher::Seen;
use crate::error::{Error, Result};
use crate::launch::Treatment;
use crate::outcome;
use crate::program::Program;
use crate::signals::Forward;

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
    let mut forward = Forward::prepare()?;
    let running = forward.launch(program, &Treatment::Traceable)?;
    let pid = running.child.id();
    let start = |()| Beside::start(repairer, words, pid, complain).inspect_err(complain);
    let beside = available.and_then(start);
    let status = forward.until_end(pid)?;
    let Looked { seen, events, outcome: repairer } = match beside {
        Ok(beside) => beside.finish(),
        Err(error) => Looked { outcome: format!("not started: {error}"), ..Looked::default() },
    };
    let stats = RepairStats {
        schema: RepairStats::SCHEMA.to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: program.words(),
        pid,
        outcome: outcome::words(status),
        repairer,
        seen,
        events,
    };
    Ok((status, stats))
}

/// How a repairer ends that a fault of its own has ended.
const PANICKED: i32 = 101;
/// Who listens to the repairer's process.
struct Beside(JoinHandle<Looked>);

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
        let mut child = start(repairer, &words)?;
        Ok(Self(spawn(move || {
            let events = child.stdout.take().map(listen).unwrap_or_default();
            let mut looked = Looked { events, ..Looked::default() };
            let Ok(status) = child.wait() else { return looked };
            looked.outcome = outcome::words(status);
            let is_dead = status.signal().is_some() || status.code() == Some(PANICKED);
            if is_dead && !has_ended(pid) {
                watchdog::rescue(pid);
                complain(&Error::RepairerDied { outcome: looked.outcome.clone(), pid });
            }
            looked
        })))
    }

    /// It ends by itself when the program has.
    fn finish(self) -> Looked {
        let mut looked = self.0.join().unwrap_or_default();
        let last = looked.events.pop_if(|last| matches!(last.what, Happened::Over(_)));
        if let Some(Event { what: Happened::Over(seen), .. }) = last {
            looked.seen = seen;
        }
        looked
    }
}

fn start(repairer: &OsStr, words: &[OsString]) -> Result<Child> {
    let mut command = Command::new(repairer);
    // Ctrl-C is for the program: what that does about it is to be repaired too.
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    // SAFETY: between fork and exec only prctl is called, a bare system call.
    unsafe { command.pre_exec(|| set_parent_death_signal(Some(libc::SIGTERM))) };
    command.spawn().map_err(|source| Error::Start { path: repairer.into(), source })
}

fn listen(output: ChildStdout) -> Vec<Event> {
    let lines = BufReader::new(output).lines().map_while(std::io::Result::ok);
    lines.filter_map(|line| serde_json::from_str(&line).ok()).collect()
}
