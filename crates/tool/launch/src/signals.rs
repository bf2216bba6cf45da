//! Handles signals to this command: forwards them ([`SignalForwarder`]), or ends the command in
//! order.
//!
//! | signal | with a started program | `profile` | with a running process (`--pid`) |
//! |---|---|---|---|
//! | SIGINT, SIGTERM | forwarded | ends, unless ignored at the start | ends |
//! | SIGHUP, SIGQUIT | forwarded | ends, unless ignored at the start | ends, unless ignored at the start |
//! | others | forwarded | default | default |
//!
//! A shell without job control starts `command &` with SIGINT ignored. With `--pid`, SIGINT is the
//! documented signal to release the other process, so the command handles it even if it was
//! ignored. The signals that end the command are unblocked if the parent blocked them.

mod forwarder;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::spawn;

use fieldstone_sys::process::children;
use fieldstone_sys::signals::unblock;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

pub use forwarder::SignalForwarder;

use crate::error::{Error, Result};
use crate::outcome;

/// Those of `signals` that this process does not ignore; all of them if `/proc` cannot be read.
fn without_ignored(signals: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status).unwrap_or(0);
    signals.iter().copied().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

/// The set of ignored signals in `/proc/PID/status`; the lowest bit is signal 1.
fn ignored(status: &str) -> Option<u64> {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

/// Sends a signal to a process. Does nothing if the process has ended.
pub fn send(pid: u32, signal: i32) {
    if let (Some(pid), Some(signal)) = (process(pid), number(signal)) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Sends a signal to the process group led by `pid`. Does nothing if the group has ended.
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
const TERMINATION_SIGNALS: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// The signals that end a command with `--pid`.
fn attached_signals() -> Vec<i32> {
    [SIGINT, SIGTERM].into_iter().chain(without_ignored(&[SIGHUP, SIGQUIT])).collect()
}

/// Returns a flag that is set when a signal asks a command with `--pid` to end: SIGINT or SIGTERM,
/// and SIGHUP or SIGQUIT unless they were ignored at the start.
///
/// # Errors
/// [`Error::System`] if the kernel refuses.
pub fn termination_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let signals = attached_signals();
    for &signal in &signals {
        signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(Error::system("handle the signals"))?;
    }
    unblock(&signals)?;
    Ok(flag)
}

/// Records the signal by which the user ends this command, and kills the program's process group at
/// once.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    signal: Arc<AtomicI32>,
    group: Arc<AtomicU32>,
    excluded: Arc<OnceLock<Vec<u32>>>,
}

impl Interrupt {
    /// Handles SIGINT, SIGTERM, SIGHUP and SIGQUIT until this process ends, except for those that
    /// were ignored at the start (nohup).
    ///
    /// # Errors
    /// [`Error::System`] if the kernel refuses.
    pub fn listen() -> Result<Self> {
        Self::listen_to(&without_ignored(&TERMINATION_SIGNALS))
    }

    /// Like [`Self::listen`], for a command with `--pid`: handles SIGINT and SIGTERM even if
    /// ignored.
    ///
    /// # Errors
    /// [`Error::System`] if the kernel refuses.
    pub fn listen_attached() -> Result<Self> {
        Self::listen_to(&attached_signals())
    }

    fn listen_to(numbers: &[i32]) -> Result<Self> {
        let this = Self::default();
        let mut signals = Signals::new(numbers).map_err(Error::system("handle the signals"))?;
        unblock(numbers)?;
        let interrupt = this.clone();
        spawn(move || {
            for signal in &mut signals {
                interrupt.signal.store(signal, SeqCst);
                interrupt.kill_group();
            }
        });
        Ok(this)
    }

    /// Excludes the present children of this process from [`crate::stop::kill_leftovers`]. Called
    /// before the first program starts: they are the process that restores the settings, and
    /// children that this process had before it executed this command.
    pub fn exclude_children(&self) {
        self.excluded.get_or_init(|| children(std::process::id()).unwrap_or_default());
    }

    /// The excluded children.
    pub fn excluded(&self) -> &[u32] {
        self.excluded.get().map_or(&[], Vec::as_slice)
    }

    /// Sets the process group to kill when a signal arrives, by its leader; 0 for none.
    pub fn set_group(&self, leader: u32) {
        self.group.store(leader, SeqCst);
        if self.check().is_err() {
            self.kill_group();
        }
    }

    fn kill_group(&self) {
        let leader = self.group.load(SeqCst);
        if leader > 0 {
            send_group(leader, libc::SIGKILL);
        }
    }

    /// Checks that no signal has arrived.
    ///
    /// # Errors
    /// [`Error::Interrupted`] with the signal that has arrived.
    pub fn check(&self) -> Result<()> {
        match self.signal.load(SeqCst) {
            0 => Ok(()),
            number => Err(Error::Interrupted { signal: outcome::signal_name(number), number }),
        }
    }

    /// The exit code that a shell reports for the signal that has arrived; `None` without one.
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
    fn ignored_signals_are_read_from_the_bit_set() {
        // nohup ignores SIGHUP, the Rust runtime SIGPIPE.
        assert_eq!(ignored("SigCgt:\tffff\nSigIgn:\t0000000000001001\n"), Some(0x1001));
        assert_eq!(ignored("Name:\tx\n"), None);
        assert_eq!(without_ignored(&[libc::SIGPIPE, libc::SIGTERM]), [libc::SIGTERM]);
    }

    #[test]
    fn a_group_that_is_set_after_the_signal_is_killed() {
        let interrupt = Interrupt::default();
        assert!(interrupt.check().is_ok());
        interrupt.signal.store(SIGINT, SeqCst);
        let mut child = std::process::Command::new("sleep");
        std::os::unix::process::CommandExt::process_group(&mut child, 0);
        let mut child = child.arg("1000").spawn().unwrap();
        interrupt.set_group(child.id());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(libc::SIGKILL));
        assert!(matches!(interrupt.check(), Err(Error::Interrupted { number: SIGINT, .. })));
    }
}
