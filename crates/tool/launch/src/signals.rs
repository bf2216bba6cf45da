//! Signals sent to this command: passed on to the program in `run` ([`Forward`]), turned into an orderly end elsewhere.
//!
//! | signal | `run`, `sharing` with a program | `profile` | `--pid` |
//! |---|---|---|---|
//! | SIGINT, SIGTERM | passed on | ends, unless our parent had it ignored | ends |
//! | SIGHUP, SIGQUIT | passed on | ends, unless our parent had it ignored | ends, unless our parent had it ignored |
//! | others | passed on | as usual | as usual |
//!
//! A shell without job control starts `command &` with SIGINT ignored. With `--pid` the command holds a process of somebody else, and
//! SIGINT is the documented way to release it, so it is heeded all the same. A mask that blocks these signals is lifted.

mod forward;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::spawn;

use fieldstone_sys::process::children;
use fieldstone_sys::signals::unblock;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

pub use forward::Forward;

use crate::error::{Error, Result};
use crate::outcome;

/// Those of `signals` that this process does not ignore. Where the kernel does not say, all of them.
fn heeded(signals: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status).unwrap_or(0);
    signals.iter().copied().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

/// The set of ignored signals in `/proc/PID/status`; the lowest bit is signal 1.
fn ignored(status: &str) -> Option<u64> {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

/// Sends a signal to a process, or with [`send_group`] to its whole group. One that has ended needs none.
pub fn send(pid: u32, signal: i32) {
    if let (Some(pid), Some(signal)) = (process(pid), number(signal)) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Sends a signal to the process group that `pid` leads.
pub fn send_group(pid: u32, signal: i32) {
    if let (Some(pid), Some(signal)) = (process(pid), number(signal)) {
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

fn process(pid: u32) -> Option<rustix::process::Pid> {
    i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw)
}

fn number(signal: i32) -> Option<rustix::process::Signal> {
    rustix::process::Signal::from_named_raw(signal)
}

/// The signals that end this command.
const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// The signals that end a command which is attached to a process of somebody else, however that command was started.
fn ending_attached() -> Vec<i32> {
    [SIGINT, SIGTERM].into_iter().chain(heeded(&[SIGHUP, SIGQUIT])).collect()
}

/// A flag that is set when the user wants a command with `--pid` to end: by SIGINT or SIGTERM, however the command was started, and by
/// SIGHUP or SIGQUIT, unless our parent had it ignored.
///
/// # Errors
/// [`Error::System`] where the kernel refuses.
pub fn asked_to_end() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let signals = ending_attached();
    for &signal in &signals {
        signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(Error::system("take over the signals"))?;
    }
    unblock(&signals)?;
    Ok(flag)
}

/// Notes that the user wants to end, and ends at once what runs in groups of their own.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    signal: Arc<AtomicI32>,
    group: Arc<AtomicU32>,
    spared: Arc<OnceLock<Vec<u32>>>,
}

impl Interrupt {
    /// Takes over SIGINT, SIGTERM, SIGHUP and SIGQUIT for the rest of this process's life, but for those that our own
    /// parent had us ignore (nohup).
    ///
    /// # Errors
    /// [`Error::System`] where the kernel refuses.
    pub fn listen() -> Result<Self> {
        Self::listen_to(&heeded(&ENDING))
    }

    /// The same for a command with `--pid`, which heeds SIGINT and SIGTERM however it was started.
    ///
    /// # Errors
    /// [`Error::System`] where the kernel refuses.
    pub fn attached() -> Result<Self> {
        Self::listen_to(&ending_attached())
    }

    fn listen_to(taken: &[i32]) -> Result<Self> {
        let this = Self::default();
        let mut signals = Signals::new(taken).map_err(Error::system("take over the signals"))?;
        unblock(taken)?;
        let noted = this.clone();
        spawn(move || {
            for signal in &mut signals {
                noted.signal.store(signal, SeqCst);
                noted.end_group();
            }
        });
        Ok(this)
    }

    /// Has those outlive every program that are children of ours now, before the first is started: who gives the settings back,
    /// and what our own parent had started before it became us (`exec`).
    pub fn spare_children(&self) {
        self.spared.get_or_init(|| children(std::process::id()).unwrap_or_default());
    }

    /// The children that outlive every program.
    pub fn spared(&self) -> &[u32] {
        self.spared.get().map_or(&[], Vec::as_slice)
    }

    /// The group to end when the user wants to; zero for none. One at a time.
    pub fn watch_group(&self, leader: u32) {
        self.group.store(leader, SeqCst);
        if self.check().is_err() {
            self.end_group();
        }
    }

    fn end_group(&self) {
        let leader = self.group.load(SeqCst);
        if leader > 0 {
            send_group(leader, libc::SIGKILL);
        }
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// [`Error::Interrupted`] when the user wants to end.
    pub fn check(&self) -> Result<()> {
        match self.signal.load(SeqCst) {
            0 => Ok(()),
            number => Err(Error::Interrupted { signal: outcome::signal_name(number), number }),
        }
    }

    /// The exit code that a shell would give who was ended by the signal that came; none if none did.
    #[must_use]
    pub fn shell_code(&self) -> Option<u8> {
        let number = self.signal.load(SeqCst);
        (number != 0).then(|| outcome::shell_code(ExitStatus::from_raw(number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_their_set() {
        // nohup ignores SIGHUP, the Rust runtime SIGPIPE.
        assert_eq!(ignored("SigCgt:\tffff\nSigIgn:\t0000000000001001\n"), Some(0x1001));
        assert_eq!(ignored("Name:\tx\n"), None);
        assert_eq!(heeded(&[libc::SIGPIPE, libc::SIGTERM]), [libc::SIGTERM]);
    }

    #[test]
    fn an_interrupt_ends_the_group_that_is_watched_after_it() {
        let interrupt = Interrupt::default();
        assert!(interrupt.check().is_ok());
        interrupt.signal.store(SIGINT, SeqCst);
        let mut child = std::process::Command::new("sleep");
        std::os::unix::process::CommandExt::process_group(&mut child, 0);
        let mut child = child.arg("1000").spawn().unwrap();
        interrupt.watch_group(child.id());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(libc::SIGKILL));
        assert!(matches!(interrupt.check(), Err(Error::Interrupted { number: SIGINT, .. })));
    }
}
