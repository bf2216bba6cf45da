//! Samples by perf_event_open(2): one event per thread and CPU; all events of a CPU share one ring.
//!
//! ```text
//!            CPU 0            CPU 1
//! thread 1   event, ring 0    event, ring 1      the first event of a CPU owns the ring,
//! thread 2   event -> ring 0  event -> ring 1    the others use it (PERF_EVENT_IOC_SET_OUTPUT)
//! thread 3   (created later: inherits the events of its creator)
//! ```
//!
//! An event on all CPUs would need only one descriptor per thread. But the kernel gives no ring to
//! such an event if it is inherited, because copies on several CPUs would write to one ring. So
//! each event is bound to a CPU, counts while its thread runs there, and threads times CPUs
//! descriptors are needed. A thread created during the listing has its creator's events and its
//! own; [`super::rings`] removes the duplicates.
//!
//! The clock ([`clock`]) is a software event, which every kernel and virtual machine has: a timer
//! that runs while the thread runs. Its period is in nanoseconds, because a frequency above
//! `kernel.perf_event_max_sample_rate` is refused. Faster samples are throttled, and that is
//! reported.
#![allow(unsafe_code, reason = "the ioctl that points one event at another's ring has no safe form")]

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsRawFd;

use fieldstone_wire::Cause;
use perf_event::events::Software;
use perf_event::{Builder, Clock, Counter, SampleFlag, Sampler};

use super::registers::PERF_MASK;
use super::rings::{Open, Rings, Sampled};
use super::tasks;
use crate::sampling::SamplingMethod;
use crate::{Error, Result, kernel_file};

/// Size of a ring, about 650 samples. Two of them with control pages, which an exec needs, and the
/// hardware rings stay below the 516 KiB per CPU that any user may lock.
pub(super) const RING_BYTES: usize = 128 << 10;
/// The smallest size tried when the user may lock less.
const LEAST_RING_BYTES: usize = 16 << 10;
/// `_IO('$', 5)`.
const PERF_EVENT_IOC_SET_OUTPUT: u32 = 0x2405;

/// Fields that identify a sample: thread, time, event and CPU.
pub(super) const IDENTITY: SampleFlag =
    SampleFlag::IP.union(SampleFlag::TID).union(SampleFlag::TIME).union(SampleFlag::ID).union(SampleFlag::CPU);

/// An event: its trigger and its sampled fields.
pub(super) type EventBuilder = Builder<'static>;

/// A clock of each thread's CPU time, with registers. Candidates in order: the thread's clock
/// before the CPU's (some hypervisors' kernels lack one), inheritance by threads only before
/// inheritance by child processes (before Linux 5.13).
pub(super) fn clock(hertz: u32) -> Vec<EventBuilder> {
    let of = |clock: Software, threads_only: bool| {
        let mut builder = Builder::new(clock);
        builder.sample_period(u64::from(1_000_000_000 / hertz.max(1))).inherit_thread(threads_only);
        builder.sample(SampleFlag::REGS_USER).sample_regs_user(PERF_MASK);
        builder
    };
    [true, false]
        .into_iter()
        .flat_map(|alone| [of(Software::TASK_CLOCK, alone), of(Software::CPU_CLOCK, alone)])
        .collect()
}

/// Samples all threads of `pid` by one of these events, best first.
///
/// # Errors
/// [`Error::NoSuchProcess`], or [`Error::NotSampled`] with the remedy.
pub(super) fn open<S: Sampled>(pid: u32, kinds: &[EventBuilder], ring_bytes: usize) -> Result<Rings<S>> {
    let cpus = online_cpus();
    let mut events =
        OpenedEvents { pid, ring_bytes, kinds, rings: BTreeMap::new(), others: Vec::new(), threads: HashMap::new() };
    tasks::for_each(pid, |tid| events.open_thread(tid, &cpus))?;
    if events.rings.is_empty() {
        // Each listed thread has ended before its event was open.
        return Err(Error::NoSuchProcess { pid });
    }
    let open = Open { rings: events.rings.into_values().collect(), others: events.others };
    Ok(Rings::new(pid, kinds.to_vec(), open, events.threads))
}

/// The events opened so far.
struct OpenedEvents<'a> {
    pid: u32,
    ring_bytes: usize,
    /// Candidates to try; after a success, only the one that worked.
    kinds: &'a [EventBuilder],
    /// By CPU.
    rings: BTreeMap<usize, Sampler>,
    others: Vec<Counter>,
    /// The thread of each event, by the event's id.
    threads: HashMap<u64, u32>,
}

impl OpenedEvents<'_> {
    /// Opens the events of one thread; none for a thread that has ended.
    fn open_thread(&mut self, tid: u32, cpus: &[usize]) -> Result<()> {
        for &cpu in cpus {
            match self.open_event(tid, cpu) {
                Ok(counter) => self.point(counter, tid, cpu)?,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ESRCH) => return Ok(()),
                    // The CPU was taken offline meanwhile.
                    Some(libc::ENODEV) => {}
                    _ => return Err(self.refusal(&error, cpus.len())),
                },
            }
        }
        Ok(())
    }

    /// Opens one event, the first candidate that the kernel supports.
    fn open_event(&mut self, tid: u32, cpu: usize) -> io::Result<Counter> {
        loop {
            let (first, rest) =
                self.kinds.split_first().ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
            match build(tid, cpu, first) {
                Ok(counter) => {
                    self.kinds = std::slice::from_ref(first);
                    return Ok(counter);
                }
                Err(error) if is_unknown(&error) && !rest.is_empty() => self.kinds = rest,
                Err(error) => return Err(error),
            }
        }
    }

    /// Connects the event to its CPU's ring.
    fn point(&mut self, counter: Counter, tid: u32, cpu: usize) -> Result<()> {
        let failed = |source| Error::Call { call: "ioctl(PERF_EVENT_IOC_SET_OUTPUT)", source };
        if let Some(ring) = self.rings.get(&cpu) {
            // SAFETY: both descriptors are open events of this process; the kernel checks their
            // compatibility and keeps the ring alive.
            let done = unsafe { libc::ioctl(counter.as_raw_fd(), PERF_EVENT_IOC_SET_OUTPUT.into(), ring.as_raw_fd()) };
            if done != 0 {
                return Err(failed(io::Error::last_os_error()));
            }
            self.threads.insert(counter.id(), tid);
            self.others.push(counter);
            return Ok(());
        }
        let ring = self.map_ring(counter, tid, cpu)?;
        self.threads.insert(ring.id(), tid);
        self.rings.insert(cpu, ring);
        Ok(())
    }

    /// Maps a ring, a smaller one if the user may not lock so much.
    fn map_ring(&mut self, mut counter: Counter, tid: u32, cpu: usize) -> Result<Sampler> {
        loop {
            match counter.sampled(self.ring_bytes) {
                Ok(ring) => return Ok(ring),
                Err(error) if error.raw_os_error() == Some(libc::EPERM) && self.ring_bytes > LEAST_RING_BYTES => {
                    self.ring_bytes /= 2;
                    counter = self.open_event(tid, cpu).map_err(|error| self.refusal(&error, 1))?;
                }
                Err(error) => {
                    let why = format!(
                        "cannot map its rings ({}): `sudo sysctl kernel.perf_event_mlock_kb=2048` raises the limit",
                        Cause(error)
                    );
                    return Err(Error::NotSampled { pid: self.pid, method: SamplingMethod::Perf, why });
                }
            }
        }
    }

    fn refusal(&self, error: &io::Error, cpus: usize) -> Error {
        let why = match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => {
                let paranoid =
                    kernel_file::text("/proc/sys/kernel/perf_event_paranoid").unwrap_or_else(|| "hidden".into());
                format!(
                    "permission denied ({}; kernel.perf_event_paranoid is {paranoid}): `sudo sysctl \
                     kernel.perf_event_paranoid=2` allows it for your own programs, `--cap-add PERFMON` in a container",
                    Cause(error)
                )
            }
            Some(libc::EMFILE | libc::ENFILE) => format!(
                "one event per thread and CPU needs more than {} descriptors: raise the limit by `ulimit -n`",
                self.rings.len() + self.others.len() + cpus
            ),
            Some(libc::ENOSYS) => "this kernel has no perf events".into(),
            _ => format!("the kernel refuses the event ({})", Cause(error)),
        };
        Error::NotSampled { pid: self.pid, method: SamplingMethod::Perf, why }
    }
}

fn build(tid: u32, cpu: usize, kind: &EventBuilder) -> io::Result<Counter> {
    let tid = libc::pid_t::try_from(tid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let mut builder = kind.clone();
    // `task` adds records of exiting threads.
    builder
        .observe_pid(tid)
        .one_cpu(cpu)
        .inherit(true)
        .clockid(Clock::MONOTONIC)
        .task(true)
        .enabled(true)
        .sample(IDENTITY);
    builder.build()
}

/// Whether the kernel does not support this event, so that another candidate may work.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT | libc::EOPNOTSUPP | libc::E2BIG) | None)
}

/// The CPUs that threads can run on.
pub(super) fn online_cpus() -> Vec<usize> {
    let listed = kernel_file::text("/sys/devices/system/cpu/online").and_then(|text| cpu_list(&text));
    listed.unwrap_or_else(|| (0..std::thread::available_parallelism().map_or(1, usize::from)).collect())
}

/// Parses `0-2,5`; `None` for another format.
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?);
    }
    Some(cpus).filter(|cpus| !cpus.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Sample;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::Duration;

    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(cpu_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(cpu_list("7"), Some(vec![7]));
        assert_eq!((cpu_list(""), cpu_list("0-"), cpu_list("a")), (None, None, None));
        assert!(online_cpus().contains(&0));
    }

    #[test]
    fn lost_samples_are_counted() {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || while !stopped.load(Relaxed) {});
        // A ring of one page holds 20 samples; 10 kHz for 100 ms are 1000.
        let mut rings: Rings<Sample> = match open(std::process::id(), &clock(10_000), 4096) {
            Ok(rings) => rings,
            Err(Error::NotSampled { why, .. }) => {
                println!("SKIP no perf events: {why}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let mut samples = Vec::new();
        let mut lost = 0;
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(100));
            lost += rings.drain(&mut samples).unwrap().lost;
        }
        stop.store(true, Relaxed);
        assert!(samples.len() > 20 && lost > 100, "{} kept, {lost} lost", samples.len());
    }

    #[test]
    fn refusals_name_the_remedy() {
        let events = OpenedEvents {
            pid: 1,
            ring_bytes: 4096,
            kinds: &[],
            rings: BTreeMap::new(),
            others: Vec::new(),
            threads: HashMap::new(),
        };
        let message = |errno| events.refusal(&io::Error::from_raw_os_error(errno), 2).to_string();
        assert!(message(libc::EACCES).contains("sysctl kernel.perf_event_paranoid=2"), "{}", message(libc::EACCES));
        assert!(message(libc::EMFILE).contains("ulimit -n"), "{}", message(libc::EMFILE));
        assert!(is_unknown(&io::Error::from_raw_os_error(libc::EINVAL)));
        assert!(!is_unknown(&io::Error::from_raw_os_error(libc::EPERM)));
    }
}
