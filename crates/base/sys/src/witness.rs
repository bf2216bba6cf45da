//! A witness: a process of our own process group that tells a signal to the group from one to this process alone.
//!
//! ```text
//!   kill -- -PGID ──▶ program, witness, we      all three have it: there is nothing to pass on
//!   kill PID      ──▶ we                        the witness has none: it is passed on
//! ```
//! The kernel does not report to whom a signal was sent. But it gives a signal for a group to each member within one system call, the
//! newest member first. The witness is our child, hence newer: when this process has such a signal, the witness has it too. A service
//! manager that sends a signal to each process of a control group reaches it as well, a little earlier or later.
//!
//! The witness blocks all signals and takes none by itself. So its answer depends on what the kernel delivered, not on when the witness
//! ran. It takes a signal when it is asked for it.
//!
//! It ends with this process, by SIGKILL too. Before that it can do a last thing for a process that was killed
//! ([`Witness::start_with_heir`]).
//!
//! Cost: a fork at the start, some 50 µs for each signal.
#![allow(unsafe_code, reason = "the kernel is told where the witness has its command line")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Result, forked, process, signals};

/// A request: a signal's number; zero and a process that is to be watched, or zeros; [`IMITATE`] and a number of bytes that follow;
/// [`INHERIT`] and a process.
type Request = [i32; 2];
const IMITATE: i32 = -1;
const INHERIT: i32 = -2;
/// What the witness does with a process that it has inherited.
type Heir = fn(u32);
const REQUEST_BYTES: usize = size_of::<Request>();
/// How often a stopped process is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// An answer takes longer only where the witness has no processor, or is stopped.
const PATIENCE: Duration = Duration::from_millis(500);

/// A process that was just started has its command line within so many moments. One that has ended has none.
const SPAWNING: u32 = 10;
const MOMENT: Duration = Duration::from_millis(1);

/// The witness's process.
#[derive(Debug)]
pub struct Witness {
    line: UnixStream,
    pid: u32,
    /// Bytes of its command line.
    words: usize,
}

impl Witness {
    /// Forks the witness. Signals that came before are not known to it.
    ///
    /// # Errors
    /// [`crate::Error::Call`] where there can be no more processes or descriptors.
    pub fn start() -> Result<Self> {
        Self::fork(None)
    }

    /// The same. When this process ends without dropping the witness, since it is killed, the witness calls `heir` with the process of
    /// [`Self::inherit`]. As after any fork, `heir` must not allocate.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_heir(heir: fn(u32)) -> Result<Self> {
        Self::fork(Some(heir))
    }

    fn fork(heir: Option<Heir>) -> Result<Self> {
        let parent = Pid::from_raw(i32::try_from(std::process::id()).unwrap_or(0));
        let words = command_line();
        let (line, pid) = forked::fork(|line| watch(line, parent, words, heir))?;
        let _ = line.set_read_timeout(Some(PATIENCE));
        Ok(Self { line, pid, words: words.1 })
    }

    /// Gives the witness the command line of process `pid`, as far as there is room in its own.
    pub fn imitate(&mut self, pid: u32) {
        let Some(mut words) = (0..SPAWNING).find_map(|_| command_line_of(pid)) else { return };
        words.truncate(self.words);
        let Ok(bytes) = i32::try_from(words.len()) else { return };
        if self.request([IMITATE, bytes]).is_some() {
            let _ = self.line.write_all(&words);
        }
    }

    /// Names the process that is handed to the heir.
    pub fn inherit(&mut self, pid: u32) {
        let _ = self.request([INHERIT, i32::try_from(pid).unwrap_or(0)]);
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether `signal` has reached the witness since it was last asked for it. `None` where it does not answer.
    pub fn has_received(&mut self, signal: i32) -> Option<bool> {
        self.request([signal, 0])?;
        let mut answer = [0_i32.to_le_bytes(); 2];
        loop {
            self.line.read_exact(answer.as_flattened_mut()).ok()?;
            // An earlier answer that came too late is none.
            if i32::from_le_bytes(answer[0]) == signal {
                return Some(i32::from_le_bytes(answer[1]) != 0);
            }
        }
    }

    /// From now on sends SIGCONT to this process whenever process `pid` is not stopped. For the moment before this process stops, which
    /// then cannot see that the other one goes on.
    pub fn continue_with(&mut self, pid: u32) {
        let _ = self.request([0, i32::try_from(pid).unwrap_or(0)]);
    }

    /// No longer.
    pub fn stay(&mut self) {
        let _ = self.request([0, 0]);
    }

    fn request(&mut self, request: Request) -> Option<()> {
        self.line.write_all(request.map(i32::to_le_bytes).as_flattened()).ok()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // Where somebody else has reaped it, the number may be another process's.
        if let Ok(None) = process::wait4(Some(self.pid), false) {
            // A witness that is stopped ends, too, when it is killed.
            let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
            let _ = process::wait4(Some(self.pid), true);
        }
    }
}

/// The command line of process `pid`. `None` in the middle of its exec(2), after a moment.
fn command_line_of(pid: u32) -> Option<Vec<u8>> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|words| !words.is_empty());
    if words.is_none() {
        std::thread::sleep(MOMENT);
    }
    words
}

/// Where this process has its command line, and how many bytes.
fn command_line() -> (usize, usize) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // Fields 48 and 49 of proc_pid_stat(5); the third is the first behind the name.
    let ends: Vec<usize> = fields.skip(45).take(2).filter_map(|field| field.parse().ok()).collect();
    match ends[..] {
        [start, end] if start > 0 && end > start => (start, end - start),
        _ => (0, 0),
    }
}

/// Reads `bytes` bytes over the command line at `words`.
fn imitate(line: &OwnedFd, words: (usize, usize), bytes: usize) {
    if words.1 == 0 || bytes > words.1 {
        return;
    }
    // SAFETY: the kernel says that the command line lies here: writable memory of the first thread's stack, which nothing in the
    // witness reads, as it runs nothing of the parent's.
    let mut room = unsafe { std::slice::from_raw_parts_mut(words.0 as *mut u8, words.1) };
    room.fill(0);
    room = &mut room[..bytes];
    while let Ok(read @ 1..) = rustix::io::read(line, &mut *room) {
        room = &mut room[read..];
    }
}

/// The witness's whole life. No allocation: it runs after a fork.
fn watch(line: &OwnedFd, parent: Option<Pid>, words: (usize, usize), heir: Option<Heir>) {
    // A witness that is stopped when its owner dies is continued, and sees that the line is closed.
    let _ = process::set_parent_death_signal(Some(if heir.is_some() { libc::SIGCONT } else { libc::SIGKILL }));
    let _ = rustix::thread::set_name(c"signal-witness");
    let mut bytes = [0_i32.to_le_bytes(); 2];
    let (mut watched, mut inherited) = (None, None);
    loop {
        wait_for_request(line, watched, parent);
        if rustix::io::read(line, bytes.as_flattened_mut()) != Ok(REQUEST_BYTES) {
            // An owner that drops the witness kills it first.
            if let Some((heir, pid)) = heir.zip(inherited) {
                heir(pid);
            }
            return;
        }
        match bytes.map(i32::from_le_bytes) {
            [IMITATE, bytes] => imitate(line, words, usize::try_from(bytes).unwrap_or(0)),
            [INHERIT, pid] => inherited = u32::try_from(pid).ok().filter(|&pid| pid > 0),
            [0, pid] => watched = Pid::from_raw(pid),
            [signal, _] => {
                let answer = [signal, signals::take(signal).is_some().into()].map(i32::to_le_bytes);
                let _ = rustix::io::write(line, answer.as_flattened());
            }
        }
    }
}

/// Waits for a request, and continues `parent` meanwhile whenever `watched` is not stopped.
fn wait_for_request(line: &OwnedFd, watched: Option<Pid>, parent: Option<Pid>) {
    let (Some(watched), Some(parent)) = (watched, parent) else { return };
    let mut path = [0; 32];
    let _ = write!(&mut path[..], "/proc/{}/stat", watched.as_raw_nonzero());
    let look = Timespec::try_from(LOOK).unwrap_or_default();
    while poll(&mut [PollFd::new(line, PollFlags::IN)], Some(&look)) == Ok(0) {
        if !is_stopped(&path) {
            let _ = kill_process(parent, Signal::CONT);
        }
    }
}

/// Whether the process of a zero-terminated `/proc/PID/stat` is stopped, by a signal or its tracer.
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
    fn a_stopped_process_is_told_from_one_that_runs() {
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
    fn what_the_witness_received_is_answered_once_and_it_ends_with_its_owner() {
        let mut witness = Witness::start().unwrap();
        let pid = Pid::from_raw(i32::try_from(witness.pid()).unwrap()).unwrap();
        assert_eq!(witness.has_received(libc::SIGUSR1), Some(false));
        kill_process(pid, Signal::USR1).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(witness.has_received(libc::SIGUSR1), Some(true));
        assert_eq!(witness.has_received(libc::SIGUSR1), Some(false));
        assert_eq!(witness.has_received(libc::SIGTERM), Some(true), "it does not end by it");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        witness.imitate(child.id());
        assert_eq!(witness.has_received(libc::SIGUSR1), Some(false), "it answers when it is done");
        let words = std::fs::read(format!("/proc/{}/cmdline", witness.pid())).unwrap();
        assert!(words.starts_with(b"sleep\x001000\0"), "{words:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        drop(witness);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn an_heir_gets_the_process_of_an_owner_that_was_killed_and_of_no_other() {
        fn end(pid: u32) {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut witness = Witness::start_with_heir(end).unwrap();
        witness.inherit(child.id());
        drop(witness);
        assert!(child.try_wait().unwrap().is_none(), "an owner that ends by itself leaves nothing");
        let mut witness = Witness::start_with_heir(end).unwrap();
        witness.inherit(child.id());
        // So it looks to the witness when its owner is killed.
        witness.line.shutdown(std::net::Shutdown::Both).unwrap();
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
