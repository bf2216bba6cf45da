//! A witness process: distinguishes a signal sent to the process group from one sent to this
//! process alone.
//!
//! ```text
//!   kill -- -PGID ──▶ program, witness, this process   all receive it: nothing to forward
//!   kill PID      ──▶ this process                     the witness has none: forward it
//! ```
//! The kernel does not report the target of a signal. But it delivers a group signal to each member
//! within one system call, newest member first. The witness is a child of this process, hence
//! newer: when this process has such a signal, the witness has it too. A service manager that
//! signals each process of a control group also reaches it, slightly earlier or later.
//!
//! The witness blocks all signals and receives one only on request. So its reply depends on what
//! the kernel delivered, not on when the witness ran.
//!
//! It exits with this process, also after SIGKILL. Before that it can run a cleanup function
//! ([`Witness::start_with_cleanup`]).
//!
//! Cost: a fork at the start, about 50 µs per signal.
#![allow(unsafe_code, reason = "the command line is overwritten in place")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Result, helper_process, process, signals};

/// A request: a signal's number and 0; 0 and a process to watch, or zeros; [`COPY_COMMAND_LINE`]
/// and the number of bytes that follow; [`SET_CLEANUP_TARGET`] and a process.
type WitnessRequest = [i32; 2];
const COPY_COMMAND_LINE: i32 = -1;
const SET_CLEANUP_TARGET: i32 = -2;
/// The witness's cleanup function; its argument is the process set by
/// [`Witness::set_cleanup_target`].
type Cleanup = fn(u32);
const REQUEST_BYTES: usize = size_of::<WitnessRequest>();
/// Interval between checks of a stopped process.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Upper bound for a reply, in case the witness is stopped or has no processor.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// A new process has its command line within this many intervals; an ended one has none.
const COMMAND_LINE_POLLS: u32 = 10;
const COMMAND_LINE_INTERVAL: Duration = Duration::from_millis(1);

/// Handle of the witness process.
#[derive(Debug)]
pub struct Witness {
    socket: UnixStream,
    pid: u32,
    /// Size of its command line in bytes.
    words: usize,
}

impl Witness {
    /// Forks the witness. It does not know earlier signals.
    ///
    /// # Errors
    /// [`crate::Error::Call`] when processes or descriptors are exhausted.
    pub fn start() -> Result<Self> {
        Self::fork(None)
    }

    /// Forks a witness that calls `cleanup` with the process of [`Self::set_cleanup_target`] if
    /// this process ends without dropping it, which means that it was killed. As after any fork,
    /// `cleanup` must not allocate.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_cleanup(cleanup: fn(u32)) -> Result<Self> {
        Self::fork(Some(cleanup))
    }

    fn fork(cleanup: Option<Cleanup>) -> Result<Self> {
        let parent = Pid::from_raw(i32::try_from(std::process::id()).unwrap_or(0));
        let words = command_line();
        let (socket, pid) = helper_process::fork(|socket| watch(socket, parent, words, cleanup))?;
        let _ = socket.set_read_timeout(Some(REPLY_TIMEOUT));
        Ok(Self { socket, pid, words: words.1 })
    }

    /// Overwrites the witness's command line with that of process `pid`, truncated to its size.
    pub fn copy_command_line(&mut self, pid: u32) {
        let Some(mut words) = (0..COMMAND_LINE_POLLS).find_map(|_| command_line_of(pid)) else { return };
        words.truncate(self.words);
        let Ok(bytes) = i32::try_from(words.len()) else { return };
        if self.request([COPY_COMMAND_LINE, bytes]).is_some() {
            let _ = self.socket.write_all(&words);
        }
    }

    /// Sets the process passed to the cleanup function.
    pub fn set_cleanup_target(&mut self, pid: u32) {
        let _ = self.request([SET_CLEANUP_TARGET, i32::try_from(pid).unwrap_or(0)]);
    }

    /// The witness's pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether `signal` has reached the witness since the last request for it. `None` without a
    /// reply.
    pub fn has_received(&mut self, signal: i32) -> Option<bool> {
        self.request([signal, 0])?;
        let mut reply = [0_i32.to_le_bytes(); 2];
        loop {
            self.socket.read_exact(reply.as_flattened_mut()).ok()?;
            // A late reply to an earlier request is skipped.
            if i32::from_le_bytes(reply[0]) == signal {
                return Some(i32::from_le_bytes(reply[1]) != 0);
            }
        }
    }

    /// Starts sending SIGCONT to this process whenever process `pid` is not stopped. Call it before
    /// stopping this process, which then cannot notice that `pid` continues.
    pub fn resume_with(&mut self, pid: u32) {
        let _ = self.request([0, i32::try_from(pid).unwrap_or(0)]);
    }

    /// Stops sending SIGCONT.
    pub fn stop_resuming(&mut self) {
        let _ = self.request([0, 0]);
    }

    fn request(&mut self, request: WitnessRequest) -> Option<()> {
        self.socket.write_all(request.map(i32::to_le_bytes).as_flattened()).ok()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // If another caller has reaped it, the pid may belong to another process.
        if let Ok(None) = process::wait4(Some(self.pid), false) {
            // SIGKILL also ends a stopped witness.
            let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
            let _ = process::wait4(Some(self.pid), true);
        }
    }
}

/// The command line of process `pid`. `None` during its exec(2), after a short sleep.
fn command_line_of(pid: u32) -> Option<Vec<u8>> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|words| !words.is_empty());
    if words.is_none() {
        std::thread::sleep(COMMAND_LINE_INTERVAL);
    }
    words
}

/// Address and size of this process's command line.
fn command_line() -> (usize, usize) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // Fields 48 and 49 of proc_pid_stat(5); the first field after the name is number 3.
    let ends: Vec<usize> = fields.skip(45).take(2).filter_map(|field| field.parse().ok()).collect();
    match ends[..] {
        [start, end] if start > 0 && end > start => (start, end - start),
        _ => (0, 0),
    }
}

/// Reads `bytes` bytes over the command line at `words`.
fn overwrite_command_line(socket: &OwnedFd, words: (usize, usize), bytes: usize) {
    if words.1 == 0 || bytes > words.1 {
        return;
    }
    // SAFETY: the kernel reports this range as the command line, writable memory of the first
    // thread's stack. The witness runs none of the parent's code, so nothing else refers to it.
    let mut buffer = unsafe { std::slice::from_raw_parts_mut(words.0 as *mut u8, words.1) };
    buffer.fill(0);
    buffer = &mut buffer[..bytes];
    while let Ok(read @ 1..) = rustix::io::read(socket, &mut *buffer) {
        buffer = &mut buffer[read..];
    }
}

/// The main function of the witness. It runs after a fork, so it never allocates.
fn watch(socket: &OwnedFd, parent: Option<Pid>, words: (usize, usize), cleanup: Option<Cleanup>) {
    // A stopped witness continues when its owner dies, and then finds its socket closed.
    let _ = process::set_parent_death_signal(Some(if cleanup.is_some() { libc::SIGCONT } else { libc::SIGKILL }));
    let _ = rustix::thread::set_name(c"signal-witness");
    let mut bytes = [0_i32.to_le_bytes(); 2];
    let (mut watched, mut cleanup_target) = (None, None);
    loop {
        wait_for_request(socket, watched, parent);
        if rustix::io::read(socket, bytes.as_flattened_mut()) != Ok(REQUEST_BYTES) {
            // An owner that drops the witness kills it first, so here the owner was killed.
            if let Some((cleanup, pid)) = cleanup.zip(cleanup_target) {
                cleanup(pid);
            }
            return;
        }
        match bytes.map(i32::from_le_bytes) {
            [COPY_COMMAND_LINE, bytes] => overwrite_command_line(socket, words, usize::try_from(bytes).unwrap_or(0)),
            [SET_CLEANUP_TARGET, pid] => cleanup_target = u32::try_from(pid).ok().filter(|&pid| pid > 0),
            [0, pid] => watched = Pid::from_raw(pid),
            [signal, _] => {
                let reply = [signal, signals::take(signal).is_some().into()].map(i32::to_le_bytes);
                let _ = rustix::io::write(socket, reply.as_flattened());
            }
        }
    }
}

/// Waits for a request, and meanwhile continues `parent` whenever `watched` is not stopped.
fn wait_for_request(socket: &OwnedFd, watched: Option<Pid>, parent: Option<Pid>) {
    let (Some(watched), Some(parent)) = (watched, parent) else { return };
    let mut path = [0; 32];
    let _ = write!(&mut path[..], "/proc/{}/stat", watched.as_raw_nonzero());
    let interval = Timespec::try_from(POLL_INTERVAL).unwrap_or_default();
    while poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&interval)) == Ok(0) {
        if !is_stopped(&path) {
            let _ = kill_process(parent, Signal::CONT);
        }
    }
}

/// Whether the process of a zero-terminated path `/proc/PID/stat` is stopped by a signal or a
/// tracer.
fn is_stopped(path: &[u8]) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    let Ok(path) = std::ffi::CStr::from_bytes_until_nul(path) else { return false };
    let Ok(file) = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let mut line = [0; 64];
    let Ok(read) = rustix::io::read(&file, &mut line) else { return false };
    let line = &line[..read];
    let state = line.iter().rposition(|&byte| byte == b')').and_then(|end| line.get(end + 2));
    matches!(state, Some(b'T' | b't'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_stopped_process_differs_from_a_running_one() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let path = format!("/proc/{}/stat\0", child.id());
        assert!(!is_stopped(path.as_bytes()));
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).unwrap();
        while process::stat(child.id()).unwrap().state != process::State::Stopped {
            std::thread::yield_now();
        }
        assert!(is_stopped(path.as_bytes()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_received_signal_is_reported_once_and_the_witness_ends_with_its_owner() {
        let mut witness = Witness::start().unwrap();
        let pid = Pid::from_raw(i32::try_from(witness.pid()).unwrap()).unwrap();
        assert_eq!(witness.has_received(libc::SIGUSR1), Some(false));
        kill_process(pid, Signal::USR1).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(witness.has_received(libc::SIGUSR1), Some(true));
        assert_eq!(witness.has_received(libc::SIGUSR1), Some(false));
        assert_eq!(witness.has_received(libc::SIGTERM), Some(true), "SIGTERM does not end it");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        // It has no command line yet in the middle of its exec, at which spawn returns.
        while !command_line_of(child.id()).is_some_and(|line| line.starts_with(b"sleep")) {
            std::thread::yield_now();
        }
        witness.copy_command_line(child.id());
        assert_eq!(witness.has_received(libc::SIGUSR1), Some(false), "a reply follows the copy");
        let words = std::fs::read(format!("/proc/{}/cmdline", witness.pid())).unwrap();
        assert!(words.starts_with(b"sleep\x001000\0"), "{words:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        drop(witness);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn a_cleanup_runs_only_when_the_owner_is_killed() {
        fn end(pid: u32) {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut witness = Witness::start_with_cleanup(end).unwrap();
        witness.set_cleanup_target(child.id());
        drop(witness);
        assert!(child.try_wait().unwrap().is_none(), "a dropped witness runs no cleanup");
        let mut witness = Witness::start_with_cleanup(end).unwrap();
        witness.set_cleanup_target(child.id());
        // The witness sees the same when its owner is killed.
        witness.socket.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_stopped_witness_ends_with_its_owner() {
        let witness = Witness::start().unwrap();
        let pid = Pid::from_raw(i32::try_from(witness.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        drop(witness);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
