//! Where a running program's threads are and what is in their registers, seen from outside: no signal in it, no code of ours.
//!
//! ```text
//! program    thread 1 ----x---------x---------x------      x: so much of its own time has passed: the kernel, or the
//!            thread 2 --x---------x---(asleep)---x---         tracer, notes the registers
//!                       |         |              |
//!                       v         v              v
//! rings      one a CPU (perf), or one in all (ptrace); written without locks, read by [`Sampler::drain`]
//! ```
//!
//! | means | how | cost | needs |
//! |---|---|---|---|
//! | [`Means::Perf`] | perf_event_open(2), the software clock with the user registers (`perf`) | 1 % at 1 kHz, 15 % at 10 kHz | `kernel.perf_event_paranoid` at most 2 |
//! | [`Means::Ptrace`] | `PTRACE_SEIZE` and a stop a sample (`ptrace`) | some 20 µs a sample: at most [`MOST_STOPS`] a second a thread | to be allowed to trace |
//!
//! Both take a sample of a thread for each so many nanoseconds that it *runs*; a thread that sleeps costs nothing and has no
//! samples, and what it does in the kernel has none either. Threads that exist are found in `/proc/PID/task`, later ones are
//! taken along by the kernel as they are made. Forked children are not taken along.
//!
//! Beside the perf events of the clock there are those of the processor, where it has them ([`Hardware`]): they tell what was touched, and
//! where jumps led.
//!
//! An exec keeps the sampler; what it tells afterwards is of the new program. Time is that of `CLOCK_MONOTONIC`.
//!
//! Source: Cachekata, section 6.2, where hardware counters and a hypervisor did this. Here no counters are needed.

#[cfg(target_arch = "x86_64")]
mod events;
mod hardware;
#[cfg(target_arch = "x86_64")]
mod lane;
#[cfg(target_arch = "x86_64")]
mod perf;
#[cfg(target_arch = "x86_64")]
mod ptrace;
mod registers;
#[cfg(target_arch = "x86_64")]
mod rings;
#[cfg(target_arch = "x86_64")]
mod standing;
#[cfg(target_arch = "x86_64")]
mod tasks;
#[cfg(target_arch = "x86_64")]
mod tracer;

use std::fmt;
use std::fs::metadata;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{PTracer, Pid, PidfdFlags, geteuid, pidfd_open, set_ptracer};
use serde::Serialize;

use crate::{Error, Result};

pub use hardware::{Hardware, Told, Touched};
pub use registers::Registers;

/// Stops a second and thread that ptrace takes at most: each is two switches of the thread and its tracer.
pub const MOST_STOPS: u32 = 100;

/// Threads times CPUs with which [`Sampler::pause`] pauses at most.
pub const MOST_PAUSED: usize = 256;

/// How samples are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Means {
    /// By the kernel's perf events.
    Perf,
    /// By stopping each thread for a moment.
    Ptrace,
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Perf => "perf events",
            Self::Ptrace => "ptrace",
        })
    }
}

/// A thread in user mode at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The thread.
    pub tid: u32,
    /// When, by `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// Its registers. The instruction at `rip` has not run yet.
    pub registers: Registers,
}

/// What a drain found beside samples. Counts are of this drain alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Samples that found no room: drain more often, or sample less.
    pub lost: u64,
    /// Times that the kernel held a thread's samples back, since they came too fast for `kernel.perf_event_max_sample_rate`.
    pub throttled: u64,
    /// Samples that could not be used: no registers of 64-bit code in them.
    pub unusable: u64,
    /// Threads that have ended, all those at least that had samples. A number may be used again by a later thread.
    pub exited: Vec<u32>,
    /// Whether the process has ended: nothing comes any more.
    pub ended: bool,
}

/// What takes the samples; one file each.
trait Source: Send {
    /// Appends what there is, in no order, and tells the rest. `ended` is not its business.
    fn drain(&mut self, samples: &mut Vec<Sample>) -> Result<Drained>;

    /// Appends what the processors told, in no order.
    fn drain_told(&mut self, _: &mut Vec<Told>) {}

    /// What they tell by.
    fn told_by(&self) -> Vec<Hardware> {
        Vec::new()
    }

    /// Takes no samples until it is to resume; whether it can.
    fn pause(&mut self) -> Result<bool>;

    /// Takes samples again.
    fn resume(&mut self) -> Result<()>;
}

/// Samples of all threads of one process. Sampling ends, and the process is let go, when it is dropped.
///
/// The process is never reaped here: its parent gets its SIGCHLD and its exit status as if nobody looked on.
pub struct Sampler {
    source: Box<dyn Source>,
    process: OwnedFd,
    means: Means,
    hertz: u32,
}

impl Sampler {
    /// Samples process `pid` from now on, `hertz` times a second that a thread runs: by perf events, and where these are
    /// refused by ptrace, then at most [`MOST_STOPS`] times a second.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], and [`Error::NotSampled`] with both refusals where both are refused, or with the way out where it is another
    /// user's.
    pub fn open(pid: u32, hertz: u32) -> Result<Self> {
        match Self::open_by(Means::Perf, pid, hertz) {
            Err(Error::NotSampled { why: first, .. }) => match Self::open_by(Means::Ptrace, pid, hertz) {
                Err(Error::NotSampled { means, why, .. }) => {
                    let why = if is_anothers(pid) {
                        "it is another user's, or one that may not be dumped: root may (`sudo`), and of the former its owner".into()
                    } else {
                        format!("{why}; nor by {}: {first}", Means::Perf)
                    };
                    Err(Error::NotSampled { pid, means, why })
                }
                other => other,
            },
            other => other,
        }
    }

    /// As [`Sampler::open`], by these means alone.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], and [`Error::NotSampled`] with the reason and the way out.
    pub fn open_by(means: Means, pid: u32, hertz: u32) -> Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Error::NoSuchProcess { pid })?;
        let process = pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => Error::NoSuchProcess { pid },
            other => Error::Call { call: "pidfd_open", source: other.into() },
        })?;
        if hertz == 0 {
            return Err(Error::NotSampled { pid, means, why: "0 samples a second were asked for".into() });
        }
        let hertz = if means == Means::Ptrace { hertz.min(MOST_STOPS) } else { hertz };
        let source = source(means, pid, hertz)?;
        Ok(Self { source, process, means, hertz })
    }

    /// How it samples.
    #[must_use]
    pub const fn means(&self) -> Means {
        self.means
    }

    /// Samples a second that a thread runs.
    #[must_use]
    pub const fn hertz(&self) -> u32 {
        self.hertz
    }

    /// What the processors tell by, beside it: nothing where they have no counters for it, as in virtual machines.
    #[must_use]
    pub fn told_by(&self) -> Vec<Hardware> {
        self.source.told_by()
    }

    /// Appends what the processors told since the last such call, in no order. Never waits.
    pub fn drain_told(&mut self, told: &mut Vec<Told>) {
        self.source.drain_told(told);
    }

    /// Takes no samples until [`Sampler::resume`], and forgets those that were not drained: the program runs as if nobody looked on. Whether it
    /// can: not by ptrace, nor where there are more threads times CPUs than [`MOST_PAUSED`], since all events are opened anew afterwards: some
    /// 20 µs each.
    ///
    /// # Errors
    /// As [`Sampler::drain`]; then all goes on as before.
    pub fn pause(&mut self) -> Result<bool> {
        self.source.pause()
    }

    /// Takes samples again, of threads too that were made meanwhile. The next drain tells which have ended.
    ///
    /// # Errors
    /// As [`Sampler::open`]; then it goes on pausing.
    pub fn resume(&mut self) -> Result<()> {
        self.source.resume()
    }

    /// Waits until the process ends, for at most `timeout`; whether it has ended.
    ///
    /// # Errors
    /// [`Error::Call`] with the errno of poll(2).
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        let timeout = Timespec::try_from(timeout).ok();
        loop {
            let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                // A signal to us is no reason to look again at once, but the caller's loop is as good a place as ours.
                Ok(0) | Err(Errno::INTR) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(Error::Call { call: "poll", source: errno.into() }),
            }
        }
    }

    /// Appends all samples taken since the last drain, ordered by time among themselves, and tells what else happened.
    ///
    /// Never waits. The rings hold some seconds at 1 kHz; ten drains a second leave nothing behind.
    ///
    /// # Errors
    /// [`Error::NotSampled`] where sampling has broken down while the process lives.
    pub fn drain(&mut self, samples: &mut Vec<Sample>) -> Result<Drained> {
        // Asked first: what came before the end is drained below.
        let ended = self.wait(Duration::ZERO)?;
        let first = samples.len();
        let drained = match self.source.drain(samples) {
            Ok(drained) => Drained { ended, ..drained },
            Err(_) if ended => Drained { ended, ..Drained::default() },
            Err(error) => return Err(error),
        };
        if let Some(new) = samples.get_mut(first..) {
            new.sort_unstable_by_key(|sample| (sample.time_ns, sample.tid));
        }
        Ok(drained)
    }
}

/// Whether its files are not this user's, who may not do all the same: of another user, or not dumpable.
fn is_anothers(pid: u32) -> bool {
    let user = geteuid();
    !user.is_root() && metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() != user.as_raw())
}

impl AsFd for Sampler {
    /// Readable once the process has ended: for a poll(2) on several things.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").field("means", &self.means).field("hertz", &self.hertz).finish_non_exhaustive()
    }
}

#[cfg(target_arch = "x86_64")]
fn source(means: Means, pid: u32, hertz: u32) -> Result<Box<dyn Source>> {
    Ok(match means {
        Means::Perf => Box::new(events::Events::open(pid, hertz)?),
        Means::Ptrace => Box::new(ptrace::Stopper::start(pid, hertz)?),
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn source(means: Means, pid: u32, _: u32) -> Result<Box<dyn Source>> {
    let why = "registers are only known on x86-64: run it on such a machine";
    Err(Error::NotSampled { pid, means, why: why.into() })
}

/// Lets `tracer` and what it starts trace this process, where Yama (`kernel.yama.ptrace_scope` 1) would allow its ancestors
/// alone: `PR_SET_PTRACER`. For the moment between fork and exec, which keeps it; [`Means::Ptrace`] needs it there.
///
/// # Errors
/// EINVAL where the kernel has no Yama: then it is not needed.
pub fn allow_tracing(tracer: u32) -> std::io::Result<()> {
    let tracer = i32::try_from(tracer).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
    Ok(set_ptracer(PTracer::ProcessID(tracer))?)
}
