//! Samples by ptrace(2), where perf is forbidden: our side of the tracer's process.
//!
//! ```text
//! we           clone --------------------- read the lane ---------- SIGTERM, wait
//!                 \                        ^ (memory shared)          |
//! tracer           SEIZE each thread ... INTERRUPT, GETREGSET, CONT ... leaves: the kernel detaches
//! ```
//!
//! Why a process of its own ([`super::tracer`] is its life). A tracee's stops are reported to *any* wait of any thread of its
//! tracer's process, asked for or not: a supervisor that waits for its child would be told of each of our stops in place of
//! its end, and the child's end could be reaped by the wrong wait. With another process as the tracer the kernel keeps the
//! two apart: the parent gets SIGCHLD and the status as ever.
//!
//! The tracer is cloned with no signal for its end, so that no SIGCHLD of it arrives and `wait4(-1)` does not see it. When it
//! dies, or we do, the kernel detaches all threads and lets them run. It leaves at SIGTERM, and when its parent is gone.
//!
//! A supervisor that kills all its descendants at the end drops the sampler first.
#![allow(unsafe_code, reason = "clone, signal masks and wait for a child without a signal have no safe form")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

use super::lane::{Lane, Phase, Told};
use super::{Drained, Means, Sample, Source, tracer};
use crate::forked::block_signals;
use crate::{Error, Result, turns};

/// How long attaching may take: it stops nobody, so it is a matter of milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a tracer that was asked to leave may take to release its tracees, before it is killed.
const RELEASE: Duration = Duration::from_secs(2);
/// How long a tracer may be stopped. Threads of the program that end wait for it meanwhile.
const LONGEST_STOP: Duration = Duration::from_secs(2);

/// The tracer's process, as long as it is wanted.
pub(super) struct Stopper {
    pid: u32,
    lane: Lane,
    tracer: libc::pid_t,
    /// What was lost up to the last drain.
    lost: u64,
    /// Since when each drain has found the tracer stopped.
    stopped_since: Option<Instant>,
}

impl Stopper {
    /// Seizes all threads of `pid` and begins to sample them.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], and [`Error::NotSampled`] with the way out.
    pub(super) fn start(pid: u32, hertz: u32) -> Result<Self> {
        let lane = Lane::map().map_err(|source| Error::Call { call: "mmap(MAP_SHARED)", source })?;
        let tracer = clone_tracer(pid, hertz, &lane).map_err(|source| Error::Call { call: "clone", source })?;
        let this = Self { pid, lane, tracer, lost: 0, stopped_since: None };
        let until = Instant::now() + PATIENCE;
        loop {
            // Asked first: what it said before it left is heard.
            let gone = this.tracer_has_ended() || Instant::now() > until;
            match this.lane.phase() {
                // A process that has ended meanwhile has been sampled, however short.
                Phase::Running | Phase::Ended => return Ok(this),
                Phase::Refused => return Err(this.refused(&this.lane.refusal())),
                Phase::Starting if gone => return Err(this.broken("its tracer did not start")),
                Phase::Starting => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn refused(&self, error: &io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => Error::NoSuchProcess { pid: self.pid },
            Some(libc::EPERM | libc::EACCES) => self.broken(
                "this user may not trace it, or another tracer (a debugger) has it: `sudo sysctl kernel.yama.ptrace_scope=0` \
                 allows it for one's own programs, `--cap-add SYS_PTRACE` in a container",
            ),
            _ => self.broken(&format!("the kernel refuses to trace it ({error})")),
        }
    }

    fn broken(&self, why: &str) -> Error {
        Error::NotSampled { pid: self.pid, means: Means::Ptrace, why: why.into() }
    }

    /// Whether the tracer has left or was killed; it is not reaped by this.
    fn tracer_has_ended(&self) -> bool {
        self.tracer_has(libc::WEXITED)
    }

    /// Whether each drain for [`LONGEST_STOP`] has found the tracer stopped by a signal. It then does not notice that the program ends.
    fn is_stopped_for_long(&mut self) -> bool {
        if !self.tracer_has(libc::WSTOPPED) {
            self.stopped_since = None;
            return false;
        }
        self.stopped_since.get_or_insert_with(Instant::now).elapsed() > LONGEST_STOP
    }

    /// Whether the tracer is in one of these states of waitid(2), or is not there. It is not reaped by this.
    fn tracer_has(&self, states: libc::c_int) -> bool {
        let Ok(tracer) = u32::try_from(self.tracer) else { return true };
        // SAFETY: zeroes are a valid value of this structure of integers.
        let mut info = unsafe { MaybeUninit::<libc::siginfo_t>::zeroed().assume_init() };
        let flags = states | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        // SAFETY: the out-pointer is to a live local.
        let done = unsafe { libc::waitid(libc::P_PID, tracer, &raw mut info, flags) };
        // SAFETY: the call has filled the child's part, or has left the zeroes.
        done != 0 || unsafe { info.si_pid() } != 0
    }
}

impl Source for Stopper {
    /// Its samples are few.
    fn pause(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn resume(&mut self) -> Result<()> {
        Ok(())
    }

    fn drain(&mut self, samples: &mut Vec<Sample>) -> Result<Drained> {
        // Asked before the lane is emptied, so that its last words are heard.
        let gone = self.lane.phase() == Phase::Running && self.tracer_has_ended();
        let mut drained = Drained::default();
        while let Some(told) = self.lane.pop() {
            match told {
                Told::Sample(sample) => samples.push(sample),
                Told::Exit(tid) => drained.exited.push(tid),
            }
        }
        let lost = self.lane.lost();
        drained.lost = lost - self.lost;
        self.lost = lost;
        // It may have said that the process ended just before it left.
        if gone && self.lane.phase() == Phase::Running {
            return Err(self.broken("its tracer was killed: sample again"));
        }
        if self.lane.phase() == Phase::Running && self.is_stopped_for_long() {
            return Err(self.broken("its tracer was stopped: sample again"));
        }
        Ok(drained)
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        // SAFETY: a child of this process that is not reaped yet, so that the number is still its own.
        unsafe { libc::kill(self.tracer, libc::SIGTERM) };
        let until = Instant::now() + RELEASE;
        let mut looks = 0;
        while !self.tracer_has_ended() && Instant::now() < until {
            turns::pause(looks);
            looks += 1;
        }
        // SAFETY: not reaped yet, as before. The wait ends: a process that is killed leaves, and its tracees go on without it.
        unsafe {
            libc::kill(self.tracer, libc::SIGKILL);
            while libc::waitpid(self.tracer, ptr::null_mut(), libc::__WALL) < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

/// Clones the tracer's process; its number.
fn clone_tracer(pid: u32, hertz: u32, lane: &Lane) -> io::Result<libc::pid_t> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let parent = rustix::process::getpid().as_raw_nonzero().get();
    let former = block_signals();
    // SAFETY: no flags and no stack: a fork, but for the signal at its end (none) and for libc's own fork handlers, which the
    // child does not need: it makes system calls on its own stack, allocates nothing and never returns here.
    let tracer = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if tracer == 0 {
        tracer::live(pid, parent, hertz, lane);
    }
    let cloned = libc::pid_t::try_from(tracer).ok().filter(|&tracer| tracer > 0).ok_or_else(io::Error::last_os_error);
    // SAFETY: the mask is the one that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former, ptr::null_mut()) };
    cloned
}
