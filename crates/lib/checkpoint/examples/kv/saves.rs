//! Saves of the data: by a checkpoint of the memory, or in a forked child.
//!
//! ```text
//! checkpoint  begin ─→ a thread saves ─→ another one waits for it ─┐
//! fork        fork  ─→ the child saves                            ─┴→ result in a pipe ─→ event loop
//! ```
//! Both save to the same directory. The value of a save is the number of write commands before it. The
//! event loop polls the read end of the pipe, whose write end is closed when the save has ended.

#![allow(unsafe_code, reason = "forks, and ends the child")]

use std::fmt::{self, Write as _};
use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fieldstone_checkpoint::{Checkpointer, Directory};
use rustix::event::epoll;
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};

use crate::arguments::Method;
use crate::database::Database;
use crate::fair_lock::FairLock;
use crate::outcome::{Outcome, send};
use crate::server::SAVE_ENDED;

/// Saves that stay in the directory.
const KEPT_SAVES: usize = 3;

/// Why a save did not begin, or is not whole.
#[derive(Debug)]
pub(crate) enum SaveError {
    Running,
    Failed(String),
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("ERR Background save already in progress"),
            Self::Failed(cause) => write!(f, "ERR cannot save: {}", cause.replace('\n', "; ")),
        }
    }
}

/// A save that has begun.
#[derive(Debug)]
struct Running {
    result: PipeReader,
    child: Option<Pid>,
}

/// Saves, one at a time.
#[derive(Debug)]
pub(crate) struct Saves {
    database: &'static FairLock<Database>,
    directory: Directory,
    /// `None` for the method `fork`.
    saver: Option<Checkpointer>,
    poll: Rc<OwnedFd>,
    running: Option<Running>,
    /// The last whole save.
    last: Outcome,
    last_time: SystemTime,
    is_last_whole: bool,
    fork_time: Duration,
}

impl Saves {
    /// Saves to `directory`, whose last save was made after `writes` write commands.
    pub(crate) fn new(
        database: &'static FairLock<Database>,
        directory: Directory,
        method: Method,
        poll: Rc<OwnedFd>,
        writes: u64,
    ) -> fieldstone_checkpoint::Result<Self> {
        let saver = match method {
            Method::Checkpoint => Some(Checkpointer::builder([database.lock().heap().memory()]).build()?),
            Method::Fork => None,
        };
        let last = Outcome { writes, ..Outcome::default() };
        let (last_time, fork_time) = (SystemTime::now(), Duration::ZERO);
        Ok(Self { database, directory, saver, poll, running: None, last, last_time, is_last_whole: true, fork_time })
    }

    /// Begins a save.
    pub(crate) fn begin(&mut self) -> Result<(), SaveError> {
        if self.running.is_some() {
            return Err(SaveError::Running);
        }
        let running = self.start().map_err(|error| self.failed(error.to_string()))?;
        self.running = Some(running);
        Ok(())
    }

    /// Waits for the end of the save that runs, if one does, and keeps its result.
    pub(crate) fn finish(&mut self) -> Result<(), SaveError> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        let mut text = String::new();
        let read = running.result.read_to_string(&mut text);
        let status = running.child.map(|child| waitpid(Some(child), WaitOptions::empty()));
        match Outcome::parse(&text) {
            Some(outcome) => {
                let (stop, longest_wait) = if running.child.is_some() {
                    (self.fork_time, self.fork_time)
                } else {
                    (outcome.stop, outcome.longest_wait)
                };
                self.last = Outcome { stop, longest_wait, ..outcome };
                self.last_time = SystemTime::now();
                self.is_last_whole = true;
                Ok(())
            }
            None if text.is_empty() => Err(self.failed(format!("it ended without a result: {read:?}, {status:?}"))),
            None => Err(self.failed(text)),
        }
    }

    /// Seconds from 1970 to the end of the last whole save.
    pub(crate) fn last_time(&self) -> u64 {
        self.last_time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
    }

    /// The lines of INFO about saves.
    pub(crate) fn info(&self) -> String {
        let last = &self.last;
        let status = if self.is_last_whole { "ok" } else { "err" };
        let mut lines = format!("rdb_bgsave_in_progress:{}\r\n", u8::from(self.running.is_some()));
        let _ = write!(lines, "rdb_last_save_time:{}\r\nrdb_last_bgsave_status:{status}\r\n", self.last_time());
        let _ = write!(lines, "last_save_stop_us:{}\r\n", last.stop.as_micros());
        let _ = write!(lines, "last_save_longest_wait_us:{}\r\n", last.longest_wait.as_micros());
        let _ = write!(lines, "last_save_total_ms:{}\r\n", last.total.as_millis());
        let _ = write!(lines, "last_save_bytes:{}\r\nlast_save_writes:{}\r\n", last.bytes, last.writes);
        if self.saver.is_none() {
            let _ = write!(lines, "latest_fork_usec:{}\r\n", self.fork_time.as_micros());
        }
        lines
    }

    fn failed(&mut self, cause: String) -> SaveError {
        eprintln!("kv: cannot save: {cause}");
        self.is_last_whole = false;
        SaveError::Failed(cause)
    }

    fn start(&mut self) -> Result<Running, Box<dyn std::error::Error>> {
        let (result, sender) = io::pipe()?;
        // Registered for no event: the kernel always reports that the other end is closed.
        epoll::add(&*self.poll, &result, epoll::EventData::new_u64(SAVE_ENDED), epoll::EventFlags::empty())?;
        let child = match &mut self.saver {
            Some(saver) => start_checkpoint(saver, self.database, &self.directory, sender).map(|()| None)?,
            None => Some(self.fork(sender)?),
        };
        Ok(Running { result, child })
    }

    /// Forks a child that saves.
    fn fork(&mut self, sender: PipeWriter) -> io::Result<Pid> {
        let database = self.database.lock();
        let begun = Instant::now();
        // SAFETY: this process has one thread if it saves by children, so no lock is held by a thread that
        // the child lacks. The child does not return from here.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            let saved = catch_unwind(AssertUnwindSafe(|| save_in_child(&database, &self.directory)));
            send(sender, saved.unwrap_or_else(|_| Err("the child panicked".to_owned())));
            // SAFETY: the child ends without the destructors and exit functions of its parent.
            unsafe { libc::_exit(0) };
        }
        self.fork_time = begun.elapsed();
        Pid::from_raw(child).filter(|_| child > 0).ok_or_else(io::Error::last_os_error)
    }
}

fn start_checkpoint(
    saver: &mut Checkpointer,
    database: &'static FairLock<Database>,
    directory: &Directory,
    sender: PipeWriter,
) -> Result<(), Box<dyn std::error::Error>> {
    let saved_writes = Arc::new(AtomicU64::new(0));
    let writes = Arc::clone(&saved_writes);
    let save = saver.begin(directory, move || {
        let data = database.lock();
        let count = data.writes();
        writes.store(count, Relaxed);
        (data, count)
    })?;
    let directory = directory.clone();
    let wait = move || {
        let saved = save.wait().inspect(|_| keep(&directory));
        let outcome = saved.map(|report| Outcome::new(&report, saved_writes.load(Relaxed)));
        send(sender, outcome.map_err(|error| error.to_string()));
    };
    thread::Builder::new().name("kv-save".to_owned()).spawn(wait)?;
    Ok(())
}

fn save_in_child(database: &Database, directory: &Directory) -> Result<Outcome, String> {
    let writes = database.writes();
    let saved = Checkpointer::builder([database.heap().memory()])
        .build()
        .and_then(|mut saver| saver.save(directory, || ((), writes)))
        .inspect(|_| keep(directory));
    saved.map(|report| Outcome::new(&report, writes)).map_err(|error| error.to_string())
}

/// Deletes old saves. The last one is whole, even if that fails.
fn keep(directory: &Directory) {
    if let Err(error) = directory.keep(KEPT_SAVES) {
        eprintln!("kv: cannot delete old saves: {error}");
    }
}
