//! Samples by ptrace(2), where perf is forbidden: the supervisor's side of the tracer process.
//!
//! ```text
//! supervisor   clone --------------------- read the ring ---------- SIGTERM, wait
//!                 \                        ^ (shared memory)           |
//! tracer         SEIZE each thread ... INTERRUPT, GETREGSET, CONT ... exits: the kernel detaches
//! ```
//!
//! Why a separate process ([`super::tracer`])? A tracee's stops are reported to *any* wait of any
//! thread of its tracer's process. A supervisor that waits for its child would receive the
//! sampler's stops instead of the child's exit, and the wrong wait could reap the child. With
//! another process as the tracer, the kernel keeps the two apart: the parent receives SIGCHLD and
//! the status as usual.
//!
//! The tracer is cloned without an exit signal, so it causes no SIGCHLD and `wait4(-1)` ignores it.
//! When it or this process dies, the kernel detaches all threads and lets them run. It exits on
//! SIGTERM, and when its parent has ended.
//!
//! Limit: a supervisor that kills all its descendants must drop the sampler first.
#![allow(unsafe_code, reason = "clone, signal masks and wait for a child without a signal have no safe form")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

use fieldstone_wire::Cause;

use super::sample_ring::{RingEntry, SampleRing, TracerPhase};
use super::tracer;
use crate::helper_process::block_signals;
use crate::sampling::{Drained, Sample, SampleSource, SamplingMethod};
use crate::{Error, Result, scheduling};

/// Upper bound for attaching, which stops no thread and usually takes milliseconds.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for a terminating tracer to release its tracees before it is killed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a tracer may stay stopped. Exiting threads of the program wait for it meanwhile.
const MAX_STOPPED: Duration = Duration::from_secs(2);

/// The tracer process.
pub(super) struct Stopper {
    pid: u32,
    ring: SampleRing,
    tracer: libc::pid_t,
    /// Lost samples up to the last drain.
    lost: u64,
    /// Time of the first of consecutive drains that found the tracer stopped.
    stopped_since: Option<Instant>,
}

impl Stopper {
    /// Seizes all threads of `pid` and starts sampling.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], or [`Error::NotSampled`] with the remedy.
    pub(super) fn start(pid: u32, hertz: u32) -> Result<Self> {
        let ring = SampleRing::map().map_err(|source| Error::Call { call: "mmap(MAP_SHARED)", source })?;
        let tracer = clone_tracer(pid, hertz, &ring).map_err(|source| Error::Call { call: "clone", source })?;
        let this = Self { pid, ring, tracer, lost: 0, stopped_since: None };
        let until = Instant::now() + ATTACH_TIMEOUT;
        loop {
            // Checked before the phase, so that a phase set just before its exit is read.
            let gone = this.tracer_has_ended() || Instant::now() > until;
            match this.ring.phase() {
                // A process that has ended meanwhile counts as sampled.
                TracerPhase::Running | TracerPhase::Ended => return Ok(this),
                TracerPhase::Refused => return Err(this.refusal(&this.ring.refusal())),
                TracerPhase::Starting if gone => return Err(this.failure("its tracer did not start")),
                TracerPhase::Starting => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn refusal(&self, error: &io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => Error::NoSuchProcess { pid: self.pid },
            Some(libc::EPERM | libc::EACCES) => self.failure(
                "permission denied, or a debugger traces it: `sudo sysctl kernel.yama.ptrace_scope=0` \
                 allows it for your own programs, `--cap-add SYS_PTRACE` in a container",
            ),
            _ => self.failure(&format!("the kernel refuses to trace it ({})", Cause(error))),
        }
    }

    fn failure(&self, why: &str) -> Error {
        Error::NotSampled { pid: self.pid, method: SamplingMethod::Ptrace, why: why.into() }
    }

    /// Whether the tracer has exited or was killed. Does not reap it.
    fn tracer_has_ended(&self) -> bool {
        self.tracer_has(libc::WEXITED)
    }

    /// Whether each drain for [`MAX_STOPPED`] has found the tracer stopped by a signal. A stopped
    /// tracer does not notice the program's end.
    fn is_stopped_for_long(&mut self) -> bool {
        if !self.tracer_has(libc::WSTOPPED) {
            self.stopped_since = None;
            return false;
        }
        self.stopped_since.get_or_insert_with(Instant::now).elapsed() > MAX_STOPPED
    }

    /// Whether the tracer is in one of these states of waitid(2), or does not exist. Does not reap
    /// it.
    fn tracer_has(&self, states: libc::c_int) -> bool {
        let Ok(tracer) = u32::try_from(self.tracer) else { return true };
        // SAFETY: siginfo_t consists of integers, for which zero is valid.
        let mut info = unsafe { MaybeUninit::<libc::siginfo_t>::zeroed().assume_init() };
        let flags = states | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        // SAFETY: the kernel writes one siginfo_t to a live local.
        let done = unsafe { libc::waitid(libc::P_PID, tracer, &raw mut info, flags) };
        // SAFETY: the call has filled the child's part, or has left the zeroes.
        done != 0 || unsafe { info.si_pid() } != 0
    }
}

impl SampleSource for Stopper {
    /// Samples by ptrace are too few to need pauses.
    fn pause(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn resume(&mut self) -> Result<()> {
        Ok(())
    }

    fn drain(&mut self, samples: &mut Vec<Sample>) -> Result<Drained> {
        // Checked before the ring is drained, so that its last entries are read.
        let gone = self.ring.phase() == TracerPhase::Running && self.tracer_has_ended();
        let mut drained = Drained::default();
        while let Some(entry) = self.ring.pop() {
            match entry {
                RingEntry::Sample(sample) => samples.push(sample),
                RingEntry::Exit(tid) => drained.exited.push(tid),
            }
        }
        let lost = self.ring.lost();
        drained.lost = lost - self.lost;
        self.lost = lost;
        // It may have set the phase `Ended` just before its exit.
        if gone && self.ring.phase() == TracerPhase::Running {
            return Err(self.failure("its tracer was killed: sample again"));
        }
        if self.ring.phase() == TracerPhase::Running && self.is_stopped_for_long() {
            return Err(self.failure("its tracer was stopped: sample again"));
        }
        Ok(drained)
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        // SAFETY: the tracer is an unreaped child of this process, so no other process has its
        // number.
        unsafe { libc::kill(self.tracer, libc::SIGTERM) };
        let until = Instant::now() + RELEASE_TIMEOUT;
        let mut polls = 0;
        while !self.tracer_has_ended() && Instant::now() < until {
            scheduling::spin_or_sleep(polls);
            polls += 1;
        }
        // SAFETY: the tracer is not reaped yet, so the number is its own. The wait terminates:
        // SIGKILL ends it, and its tracees continue.
        unsafe {
            libc::kill(self.tracer, libc::SIGKILL);
            while libc::waitpid(self.tracer, ptr::null_mut(), libc::__WALL) < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

/// Clones the tracer process; returns its number.
fn clone_tracer(pid: u32, hertz: u32, ring: &SampleRing) -> io::Result<libc::pid_t> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let parent = rustix::process::getpid().as_raw_nonzero().get();
    let former = block_signals();
    // SAFETY: without flags and stack this is a fork, except for the exit signal (none) and libc's
    // fork handlers. The child does not need those: it makes system calls on its own stack, does
    // not allocate, and never returns here.
    let tracer = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if tracer == 0 {
        tracer::run(pid, parent, hertz, ring);
    }
    let cloned = libc::pid_t::try_from(tracer).ok().filter(|&tracer| tracer > 0).ok_or_else(io::Error::last_os_error);
    // SAFETY: `block_signals` returned this mask, so it is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former, ptr::null_mut()) };
    cloned
}
