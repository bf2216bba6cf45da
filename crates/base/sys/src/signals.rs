//! Blocked signals: pending for the whole process, polled, and received one by one with their
//! sender.
//!
//! A blocked signal stays pending until it is received, so the reaction can be complete before
//! that. A handler cannot do this. Threads, fork and exec inherit the mask: block before the first
//! thread starts, and call [`restore_mask`] between fork and exec.
//!
//! Source: signal(7), signalfd(2), sigtimedwait(2). Cost: one system call per operation.
#![allow(unsafe_code, reason = "signal sets and siginfo are in no safe crate that this workspace uses")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use crate::{Error, Result};

/// The mask of this process before its first change here.
static FORMER: OnceLock<libc::sigset_t> = OnceLock::new();

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// The signal's number.
    pub signal: i32,
    /// The sending process; `None` if the kernel sent it, for instance for a terminal.
    pub sender: Option<u32>,
    /// The value passed by sigqueue(3).
    pub value: Option<usize>,
}

/// The real-time signals available to programs; the C library reserves the first ones.
#[must_use]
pub fn real_time() -> std::ops::RangeInclusive<i32> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset initialises the set before any read; sigaddset rejects a number that is
    // no signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Changes this thread's mask; returns the former one.
fn change_mask(how: i32, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut former = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets are live locals; a zeroed set is a valid empty one even if the call fails.
    let (errno, former) = unsafe { (libc::pthread_sigmask(how, set, former.as_mut_ptr()), former.assume_init()) };
    if errno == 0 { Ok(former) } else { Err(io::Error::from_raw_os_error(errno)) }
}

fn change(how: i32, signals: &[i32]) -> Result<()> {
    let former = change_mask(how, &set_of(signals)).map_err(|source| Error::Call { call: "sigprocmask", source })?;
    FORMER.get_or_init(|| former);
    Ok(())
}

/// Blocks `signals` for this thread and those it creates.
///
/// # Errors
/// The errno of sigprocmask(2).
pub fn block(signals: &[i32]) -> Result<()> {
    change(libc::SIG_BLOCK, signals)
}

/// Unblocks `signals` for this thread and those it creates: a parent may have blocked them.
///
/// # Errors
/// The errno of sigprocmask(2).
pub fn unblock(signals: &[i32]) -> Result<()> {
    change(libc::SIG_UNBLOCK, signals)
}

/// Calls `start` with all signals blocked: a thread that it creates receives none, so that signals
/// to the process stay pending or reach another thread.
pub fn with_all_blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut all = set_of(&[]);
    // SAFETY: the set is a live local.
    unsafe { libc::sigfillset(&raw mut all) };
    let former = change_mask(libc::SIG_BLOCK, &all);
    let started = start();
    if let Ok(former) = former {
        let _ = change_mask(libc::SIG_SETMASK, &former);
    }
    started
}

/// Starts a named thread that receives no signals: those to the process stay pending or reach another
/// thread.
///
/// # Errors
/// If the system starts no thread.
pub fn spawn_without_signals<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    with_all_blocked(|| thread::Builder::new().name(name.to_owned()).spawn(work))
}

/// Restores for this thread the mask that the process had before [`block`] and [`unblock`]. Does
/// not allocate, so it can be used in [`std::os::unix::process::CommandExt::pre_exec`].
///
/// # Errors
/// The errno of sigprocmask(2).
pub fn restore_mask() -> io::Result<()> {
    FORMER.get().map_or(Ok(()), |former| change_mask(libc::SIG_SETMASK, former).map(|_| ()))
}

/// Whether a blocked `signal` is pending for this process.
#[must_use]
pub fn is_pending(signal: i32) -> bool {
    let mut set = set_of(&[]);
    // SAFETY: the kernel writes one signal set to a live local.
    unsafe { libc::sigpending(&raw mut set) == 0 && libc::sigismember(&raw const set, signal) == 1 }
}

/// Receives a blocked `signal` if it is pending.
#[must_use]
pub fn take(signal: i32) -> Option<ReceivedSignal> {
    let (set, now) = (set_of(&[signal]), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    loop {
        // SAFETY: the set and the timeout are live locals; the kernel fills `info` if it returns a
        // signal.
        let number = unsafe { libc::sigtimedwait(&raw const set, info.as_mut_ptr(), &raw const now) };
        if number == signal {
            // SAFETY: the successful call has filled `info`.
            return Some(taken(signal, &unsafe { info.assume_init() }));
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
}

fn taken(signal: i32, info: &libc::siginfo_t) -> ReceivedSignal {
    let is_queued = info.si_code == libc::SI_QUEUE;
    let is_sent = is_queued || matches!(info.si_code, libc::SI_USER | libc::SI_TKILL);
    // SAFETY: every siginfo_t is initialised integers, so the reads are valid; the values are used
    // only for signals whose union part has them.
    let (pid, value) = unsafe { (info.si_pid(), info.si_value().sival_ptr as usize) };
    let sender = if is_sent { u32::try_from(pid).ok() } else { None };
    ReceivedSignal { signal, sender, value: is_queued.then_some(value) }
}

/// A descriptor that is readable while one of the blocked `signals` is pending. Polling receives
/// nothing.
///
/// # Errors
/// The errno of signalfd(2).
pub fn signal_fd(signals: &[i32]) -> Result<OwnedFd> {
    let set = set_of(signals);
    // SAFETY: the set is a live local; -1 requests a new descriptor.
    let descriptor = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(Error::Call { call: "signalfd", source: io::Error::last_os_error() });
    }
    // SAFETY: the kernel has just created the descriptor, so no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Sends a received signal, with its value if any, to another process. Does nothing if that has
/// ended.
pub fn forward(taken: &ReceivedSignal, pid: u32) {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return };
    // SAFETY: the calls access no memory; the kernel passes the value on unread.
    unsafe {
        match taken.value {
            None => libc::kill(pid, taken.signal),
            Some(value) => libc::sigqueue(pid, taken.signal, libc::sigval { sival_ptr: value as *mut libc::c_void }),
        };
    }
}

/// Stops this process by the default action of `signal` until SIGCONT. Uses SIGSTOP if `signal` is
/// not a stop signal that can be unblocked.
pub fn stop_by(signal: i32) {
    // SAFETY: the call takes an integer and accesses no memory.
    let raised = || unsafe { libc::raise(signal) };
    let is_blockable = matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
    if !is_blockable {
        // SAFETY: the call takes an integer and accesses no memory.
        unsafe { libc::raise(libc::SIGSTOP) };
        return;
    }
    // Raised for this thread while blocked, then unblocked: so it merges with one that is pending
    // for the process, and the process does not stop twice.
    let set = set_of(&[signal]);
    if change_mask(libc::SIG_BLOCK, &set).is_ok() && raised() == 0 {
        let _ = change_mask(libc::SIG_UNBLOCK, &set);
        let _ = change_mask(libc::SIG_BLOCK, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, id};

    #[test]
    fn a_blocked_signal_keeps_its_sender_and_a_child_can_have_the_old_mask() {
        let signal = libc::SIGRTMIN() + 3;
        // Only this thread of the test process blocks it, so it must be sent to the thread.
        block(&[signal]).unwrap();
        let descriptor = signal_fd(&[signal]).unwrap();
        assert!(!is_pending(signal) && take(signal).is_none());
        // SAFETY: the call takes an integer and accesses no memory.
        unsafe { libc::raise(signal) };
        assert!(is_pending(signal) && is_pending(signal), "polling receives nothing");
        let mut fds = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap(), 1);
        assert_eq!(take(signal), Some(ReceivedSignal { signal, sender: Some(id()), value: None }));
        assert!(!is_pending(signal));
        let blocked = |restored: bool| {
            let mut command = Command::new("grep");
            command.args(["SigBlk", "/proc/self/status"]);
            if restored {
                // SAFETY: restore_mask makes one system call and does not allocate.
                unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, restore_mask) };
            }
            let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let set = u64::from_str_radix(output.split_whitespace().nth(1).unwrap(), 16).unwrap();
            set >> (signal - 1) & 1 == 1
        };
        assert_eq!((blocked(false), blocked(true)), (true, false));
    }
}
