//! Samples of a running program's threads from outside: instruction pointer and registers, without
//! a signal or injected code.
//!
//! ```text
//! program    thread 1 ----x---------x---------x------      x: after a fixed amount of the thread's
//!            thread 2 --x---------x---(asleep)---x---         CPU time, the kernel or the tracer
//!                       |         |              |            records its registers
//!                       v         v              v
//! rings      one per CPU (perf), or one in all (ptrace); lock-free, read by [`Sampler::drain`]
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `method` | the methods of sampling |
//! | `sources` | how each method takes samples |
//! | `hardware` | which sampling hardware exists, and how it is opened |
//! | `registers` | the registers of a sample |
//!
//! | method | how | cost | needs |
//! |---|---|---|---|
//! | [`SamplingMethod::Perf`] | perf_event_open(2), the software clock with user registers (`perf`) | 1 % at 1 kHz, 15 % at 10 kHz | `kernel.perf_event_paranoid` at most 2 |
//! | [`SamplingMethod::Ptrace`] | `PTRACE_SEIZE` and one stop per sample (`ptrace`) | about 20 µs per sample: at most [`MAX_STOPS_PER_SECOND`] per second and thread | permission to trace |
//!
//! Both sample a thread once per fixed amount of its *CPU* time. A sleeping thread has no cost and
//! no samples; time in the kernel is not sampled. Existing threads are found in `/proc/PID/task`;
//! the kernel adds later ones as they are created. Forked children are not sampled.
//!
//! If the processor has sampling hardware ([`HardwareSource`]), it also records accessed addresses
//! and taken branches.
//!
//! The sampler survives an exec and then samples the new program. Times are of `CLOCK_MONOTONIC`.
//!
//! Source: Cachekata, section 6.2, which uses hardware counters and a hypervisor. No counters are
//! needed here.

mod hardware;
pub(crate) mod method;
mod registers;
#[cfg_attr(not(target_arch = "x86_64"), path = "sampling/no_sources.rs")]
mod sources;

use std::fmt;
use std::fs::metadata;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{PTracer, Pid, PidfdFlags, geteuid, pidfd_open, set_ptracer};

use crate::error::denial;
use crate::{Error, Result};

pub use hardware::{HardwareSample, HardwareSource, MemoryAccess};
pub use method::SamplingMethod;
pub use registers::SampledRegisters;

/// Upper limit of stops per second and thread by ptrace: each costs two context switches.
pub const MAX_STOPS_PER_SECOND: u32 = 100;

/// Largest product of threads and CPUs for which [`Sampler::pause`] pauses.
pub const MAX_PAUSED_EVENTS: usize = 256;

/// The state of a thread in user mode at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Thread id.
    pub tid: u32,
    /// Time by `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The CPU that it ran on.
    pub cpu: u32,
    /// Its registers. The instruction at `rip` has not been executed yet.
    pub registers: SampledRegisters,
}

/// Results of one drain, without its samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Samples lost because a ring was full: drain more often, or sample less.
    pub lost: u64,
    /// Times that the kernel throttled a thread because its samples exceeded
    /// `kernel.perf_event_max_sample_rate`.
    pub throttled: u64,
    /// Samples without registers of 64-bit code.
    pub unusable: u64,
    /// Exited threads, at least all those with samples. Later threads may reuse the numbers.
    pub exited: Vec<u32>,
    /// Whether the process has ended: no further samples follow.
    pub ended: bool,
}

/// A source of samples; one file each in `sources`.
trait SampleSource: Send {
    /// Appends the available samples, unordered, and returns the counts. Does not set `ended`.
    fn drain(&mut self, samples: &mut Vec<Sample>) -> Result<Drained>;

    /// Appends the available hardware samples, unordered.
    fn drain_hardware_samples(&mut self, _: &mut Vec<HardwareSample>) {}

    /// The hardware in use.
    fn hardware_sources(&self) -> Vec<HardwareSource> {
        Vec::new()
    }

    /// Stops sampling; returns whether that is possible.
    fn pause(&mut self) -> Result<bool>;

    /// Restarts sampling.
    fn resume(&mut self) -> Result<()>;
}

/// Samples all threads of one process. Dropping it ends the sampling and releases the process.
///
/// The process is never reaped here: its parent receives SIGCHLD and the exit status as usual.
pub struct Sampler {
    source: Box<dyn SampleSource>,
    process: OwnedFd,
    method: SamplingMethod,
    hertz: u32,
}

impl Sampler {
    /// Starts sampling process `pid`, `hertz` times per second of each thread's CPU time: by perf
    /// events, or by ptrace if those are refused, then at most [`MAX_STOPS_PER_SECOND`] times per
    /// second.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], or [`Error::NotSampled`] with both refusals, or with the remedy
    /// for another user's process.
    pub fn open(pid: u32, hertz: u32) -> Result<Self> {
        match Self::open_by(SamplingMethod::Perf, pid, hertz) {
            Err(Error::NotSampled { why: first, .. }) => match Self::open_by(SamplingMethod::Ptrace, pid, hertz) {
                Err(Error::NotSampled { method, why, .. }) => {
                    let why = if is_anothers(pid) {
                        denial()
                    } else {
                        format!("{why}; and not by {}: {first}", SamplingMethod::Perf)
                    };
                    Err(Error::NotSampled { pid, method, why })
                }
                other => other,
            },
            other => other,
        }
    }

    /// As [`Sampler::open`], by this method alone.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`], or [`Error::NotSampled`] with the cause and the remedy.
    pub fn open_by(method: SamplingMethod, pid: u32, hertz: u32) -> Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Error::NoSuchProcess { pid })?;
        let process = pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => Error::NoSuchProcess { pid },
            other => Error::Call { call: "pidfd_open", source: other.into() },
        })?;
        if hertz == 0 {
            return Err(Error::NotSampled { pid, method, why: "the rate is 0 samples per second".into() });
        }
        let hertz = if method == SamplingMethod::Ptrace { hertz.min(MAX_STOPS_PER_SECOND) } else { hertz };
        let source = sources::open(method, pid, hertz)?;
        Ok(Self { source, process, method, hertz })
    }

    /// The method in use.
    #[must_use]
    pub const fn method(&self) -> SamplingMethod {
        self.method
    }

    /// Samples per second of a thread's CPU time.
    #[must_use]
    pub const fn hertz(&self) -> u32 {
        self.hertz
    }

    /// The sampling hardware in use; empty without such counters, as in virtual machines.
    #[must_use]
    pub fn hardware_sources(&self) -> Vec<HardwareSource> {
        self.source.hardware_sources()
    }

    /// Appends the hardware samples since the last such call, unordered. Never waits.
    pub fn drain_hardware_samples(&mut self, samples: &mut Vec<HardwareSample>) {
        self.source.drain_hardware_samples(samples);
    }

    /// Stops sampling until [`Sampler::resume`] and discards samples that were not drained, so the
    /// program runs at full speed. Returns whether it paused. It cannot with ptrace, or with more
    /// threads times CPUs than [`MAX_PAUSED_EVENTS`], because resuming reopens every event, at
    /// about 20 µs each.
    ///
    /// # Errors
    /// As [`Sampler::drain`]; sampling then continues.
    pub fn pause(&mut self) -> Result<bool> {
        self.source.pause()
    }

    /// Restarts sampling, new threads included. The next drain reports threads that have exited.
    ///
    /// # Errors
    /// As [`Sampler::open`]; sampling then stays paused.
    pub fn resume(&mut self) -> Result<()> {
        self.source.resume()
    }

    /// Waits at most `timeout` for the process to end; returns whether it has ended.
    ///
    /// # Errors
    /// [`Error::Call`] with the errno of poll(2).
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        let timeout = Timespec::try_from(timeout).ok();
        loop {
            let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                // A signal to this process ends the wait early; the caller's loop retries.
                Ok(0) | Err(Errno::INTR) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(Error::Call { call: "poll", source: errno.into() }),
            }
        }
    }

    /// Appends all samples since the last drain, in order of time, and returns the counts.
    ///
    /// Never waits. The rings hold several seconds of samples at 1 kHz; ten drains per second lose
    /// none.
    ///
    /// # Errors
    /// [`Error::NotSampled`] when sampling has failed while the process lives.
    pub fn drain(&mut self, samples: &mut Vec<Sample>) -> Result<Drained> {
        // Checked first, so that the drain below includes all samples before the end.
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

/// Whether its files belong to another user, because it is another user's process or not dumpable,
/// and this user is not root.
fn is_anothers(pid: u32) -> bool {
    let user = geteuid();
    !user.is_root() && metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() != user.as_raw())
}

impl AsFd for Sampler {
    /// Readable once the process has ended, for poll(2) on several descriptors.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").field("method", &self.method).field("hertz", &self.hertz).finish_non_exhaustive()
    }
}

/// Lets `tracer` and its descendants trace this process where Yama (`kernel.yama.ptrace_scope` 1)
/// would allow only its ancestors: `PR_SET_PTRACER`. Call it between fork and exec, which keeps it;
/// [`SamplingMethod::Ptrace`] needs it there.
///
/// # Errors
/// EINVAL on kernels without Yama, which do not need it.
pub fn allow_tracing(tracer: u32) -> std::io::Result<()> {
    let tracer = i32::try_from(tracer).ok().and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
    Ok(set_ptracer(PTracer::ProcessID(tracer))?)
}
