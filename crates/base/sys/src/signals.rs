//! Signals that wait: blocked for the whole process, looked at, and taken one by one with their sender.
//!
//! A blocked signal stays pending until it is taken, so that what was done about it can precede its end. A handler could not do that.
//! The mask is inherited by threads, by fork and by exec: block before the first thread starts, and call [`restore_mask`] between
//! fork and exec.
//!
//! Source: signal(7), signalfd(2), sigtimedwait(2). Cost: a system call each.
#![allow(unsafe_code, reason = "signal sets and siginfo are in no safe crate that this workspace uses")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::OnceLock;

use crate::{Error, Result};

/// The mask that this process had before it changed the first signal.
static FORMER: OnceLock<libc::sigset_t> = OnceLock::new();

/// A signal that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its number.
    pub signal: i32,
    /// The process that sent it; `None` if the kernel did, for instance for a terminal.
    pub sender: Option<u32>,
    /// What sigqueue(3) sent along.
    pub value: Option<usize>,
}

/// The real-time signals that programs may use: the C library keeps the first ones.
#[must_use]
pub fn real_time() -> std::ops::RangeInclusive<i32> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset initialises the set before it is read; sigaddset refuses a number that is no signal.
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
    // SAFETY: both sets are live; a zeroed set is a valid empty one, whatever the call writes.
    let (errno, former) = unsafe { (libc::pthread_sigmask(how, set, former.as_mut_ptr()), former.assume_init()) };
    if errno == 0 { Ok(former) } else { Err(io::Error::from_raw_os_error(errno)) }
}

fn change(how: i32, signals: &[i32]) -> Result<()> {
    let former = change_mask(how, &set_of(signals)).map_err(|source| Error::Call { call: "sigprocmask", source })?;
    FORMER.get_or_init(|| former);
    Ok(())
}

/// Blocks `signals` for this thread and those that it starts.
///
/// # Errors
/// The errno of sigprocmask(2).
pub fn block(signals: &[i32]) -> Result<()> {
    change(libc::SIG_BLOCK, signals)
}

/// Lets `signals` through for this thread and those that it starts: a parent may have blocked them.
///
/// # Errors
/// The errno of sigprocmask(2).
pub fn unblock(signals: &[i32]) -> Result<()> {
    change(libc::SIG_UNBLOCK, signals)
}

/// Gives this thread the mask that the process had before [`block`] and [`unblock`] changed it. Allocates nothing, so that it may
/// stand in [`std::os::unix::process::CommandExt::pre_exec`].
///
/// # Errors
/// The errno of sigprocmask(2).
pub fn restore_mask() -> io::Result<()> {
    FORMER.get().map_or(Ok(()), |former| change_mask(libc::SIG_SETMASK, former).map(|_| ()))
}

/// Whether a blocked `signal` waits for this process.
#[must_use]
pub fn is_pending(signal: i32) -> bool {
    let mut set = set_of(&[]);
    // SAFETY: the set is live.
    unsafe { libc::sigpending(&raw mut set) == 0 && libc::sigismember(&raw const set, signal) == 1 }
}

/// Takes a blocked `signal` if it waits.
#[must_use]
pub fn take(signal: i32) -> Option<Taken> {
    let (set, now) = (set_of(&[signal]), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    loop {
        // SAFETY: all three are live; the kernel fills `info` where it takes a signal.
        let got = unsafe { libc::sigtimedwait(&raw const set, info.as_mut_ptr(), &raw const now) };
        if got == signal {
            // SAFETY: filled by the successful call.
            return Some(taken(signal, &unsafe { info.assume_init() }));
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
}

fn taken(signal: i32, info: &libc::siginfo_t) -> Taken {
    let is_queued = info.si_code == libc::SI_QUEUE;
    let is_sent = is_queued || matches!(info.si_code, libc::SI_USER | libc::SI_TKILL);
    // SAFETY: a signal that a process sent carries the sender, and one of sigqueue a value, in this part of the union.
    let (pid, value) = unsafe { (info.si_pid(), info.si_value().sival_ptr as usize) };
    let sender = if is_sent { u32::try_from(pid).ok() } else { None };
    Taken { signal, sender, value: is_queued.then_some(value) }
}

/// A descriptor that is readable while one of the blocked `signals` waits. Nothing is taken by looking.
///
/// # Errors
/// The errno of signalfd(2).
pub fn readable(signals: &[i32]) -> Result<OwnedFd> {
    let set = set_of(signals);
    // SAFETY: the set is live; -1 asks for a new descriptor.
    let descriptor = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(Error::Call { call: "signalfd", source: io::Error::last_os_error() });
    }
    // SAFETY: the kernel just made it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Sends a signal on to a process, with its value if it has one. A process that has ended needs none.
pub fn pass_on(taken: &Taken, pid: u32) {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return };
    // SAFETY: no memory is touched but, in the second call, a value that the kernel passes on unread.
    unsafe {
        match taken.value {
            None => libc::kill(pid, taken.signal),
            Some(value) => libc::sigqueue(pid, taken.signal, libc::sigval { sival_ptr: value as *mut libc::c_void }),
        };
    }
}

/// Stops this process as `signal` stops a process that does not handle it, until SIGCONT comes. Where that signal cannot be let through,
/// by SIGSTOP.
pub fn stop_by(signal: i32) {
    // SAFETY: no memory is touched.
    let raised = || unsafe { libc::raise(signal) };
    let is_blockable = matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
    if !is_blockable {
        // SAFETY: as above.
        unsafe { libc::raise(libc::SIGSTOP) };
        return;
    }
    // Raised for this thread while it is blocked, then let through: so one that waits for the process besides does not stop it twice.
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
    fn a_blocked_signal_waits_with_its_sender_and_a_child_can_be_spared_the_mask() {
        let signal = libc::SIGRTMIN() + 3;
        // Only this thread of the tests blocks it, so it is sent to the thread.
        block(&[signal]).unwrap();
        let descriptor = readable(&[signal]).unwrap();
        assert!(!is_pending(signal) && take(signal).is_none());
        // SAFETY: no memory is touched.
        unsafe { libc::raise(signal) };
        assert!(is_pending(signal) && is_pending(signal), "looking takes nothing");
        let mut fds = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap(), 1);
        assert_eq!(take(signal), Some(Taken { signal, sender: Some(id()), value: None }));
        assert!(!is_pending(signal));
        let blocked = |restored: bool| {
            let mut command = Command::new("grep");
            command.args(["SigBlk", "/proc/self/status"]);
            if restored {
                // SAFETY: one system call.
                unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, restore_mask) };
            }
            let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let set = u64::from_str_radix(output.split_whitespace().nth(1).unwrap(), 16).unwrap();
            set >> (signal - 1) & 1 == 1
        };
        assert_eq!((blocked(false), blocked(true)), (true, false));
    }
}
