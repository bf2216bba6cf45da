//! Page walks of a process, counted by the hardware, where there is hardware that counts them.
//!
//! A walk's event is another one on each family of CPUs ([`table`]); cycles are counted beside it, so that walk cycles can be told
//! as a share. Counters are opened on a process and inherited by the threads and children that it makes from then on: those that
//! it already has are not counted (a thread's number in place of the process's counts that thread). User mode only, as [`crate::perf`].
//!
//! The kernel takes turns when there are more events than counters; what is read is scaled up by the share of the time that an
//! event was counted.
//!
//! Traps: under a hypervisor that lets events through, walk cycles leave out the walks of the host's own tables on some CPUs.
//! Walks that speculation began are counted, though no load may have waited for them.

pub mod table;

use std::io;

use perf_event::events::{Event, Hardware, Raw};
use perf_event::{Builder, Counter};
use serde::Serialize;

use crate::cpuid::Cpu;
use crate::perf;
use table::WalkEvents;

/// Counters that run.
#[derive(Debug)]
pub struct WalkCounters {
    walks: Vec<Counter>,
    walk_cycles: Vec<Counter>,
    cycles: Counter,
}

/// What was counted so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Walks {
    /// Walks for loads and stores.
    pub walks: u64,
    /// Cycles in which such a walk went on; `None` where the CPU has no event for them.
    pub walk_cycles: Option<u64>,
    /// Cycles of the process.
    pub cycles: u64,
}

impl WalkCounters {
    /// Counts for process `pid` from now on, on a CPU such as `cpu`.
    ///
    /// # Errors
    /// In words that name the remedy where there is one: this user may not, the machine has no counter, nobody knows the CPU's events.
    pub fn open(pid: u32, cpu: &Cpu) -> Result<Self, String> {
        match perf::counters().cycles {
            perf::Counter::Available => {}
            perf::Counter::Absent(why) => {
                return Err(format!("neither this machine nor its hypervisor, if it has one, offers counters ({why})"));
            }
            perf::Counter::Denied(why) => {
                return Err(format!(
                    "this user may not count ({why}): `echo 1 | sudo tee /proc/sys/kernel/perf_event_paranoid` allows it"
                ));
            }
        }
        let events = table::walk_events(cpu).ok_or_else(|| {
            format!("no event for page walks is known of {} family {} model {:#x}", cpu.vendor, cpu.family, cpu.model)
        })?;
        Self::open_events(pid, &events).map_err(|error| format!("the events of page walks cannot be counted: {error}"))
    }

    fn open_events(pid: u32, events: &WalkEvents) -> io::Result<Self> {
        let all = |configs: &[u64]| -> io::Result<Vec<Counter>> {
            configs.iter().map(|config| counting(pid, Raw::new(*config))).collect()
        };
        Ok(Self {
            walks: all(events.walks)?,
            walk_cycles: all(events.walk_cycles)?,
            cycles: counting(pid, Hardware::CPU_CYCLES)?,
        })
    }

    /// What was counted since they were opened, by children that have ended too.
    ///
    /// # Errors
    /// The errno of read(2).
    pub fn read(&mut self) -> io::Result<Walks> {
        let walk_cycles = if self.walk_cycles.is_empty() { None } else { Some(sum(&mut self.walk_cycles)?) };
        Ok(Walks { walks: sum(&mut self.walks)?, walk_cycles, cycles: scaled(&mut self.cycles)? })
    }
}

fn counting(pid: u32, event: impl Event) -> io::Result<Counter> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    Builder::new(event).observe_pid(pid).any_cpu().inherit(true).enabled(true).build()
}

fn sum(counters: &mut [Counter]) -> io::Result<u64> {
    counters.iter_mut().map(scaled).sum()
}

fn scaled(counter: &mut Counter) -> io::Result<u64> {
    let data = counter.read_full()?;
    let nanoseconds = |time: Option<std::time::Duration>| time.map_or(0, |time| time.as_nanos());
    Ok(scale(data.count(), nanoseconds(data.time_enabled()), nanoseconds(data.time_running())))
}

/// What `count` would be had the event been counted all the time that it was wanted.
fn scale(count: u64, enabled_ns: u128, running_ns: u128) -> u64 {
    if running_ns == 0 || running_ns >= enabled_ns {
        return count;
    }
    u64::try_from(u128::from(count) * enabled_ns / running_ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_half_of_the_time_counts_twice() {
        assert_eq!(scale(100, 10, 5), 200);
        assert_eq!(scale(100, 10, 10), 100);
        assert_eq!(scale(0, 10, 0), 0);
        assert_eq!(scale(u64::MAX, 10, 5), u64::MAX);
    }

    /// Reads a word of each page of 256 MiB on small pages, far beyond any reach, `rounds` times.
    fn wander(rounds: u64) -> u64 {
        let memory = vec![1_u64; 32 << 20];
        let pages = memory.len() / 512;
        (0..rounds * pages as u64).fold(0, |sum, step| {
            let page = usize::try_from(step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap() % pages;
            sum + memory[page * 512]
        })
    }

    #[test]
    fn walks_are_counted_or_the_reason_is_told() {
        let cpu = crate::cpuid::cpu();
        let has_counters = perf::counters().cycles.is_available();
        // The thread's number: a process's is that of its first thread.
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        match WalkCounters::open(thread, &cpu) {
            Ok(mut counters) => {
                assert!(has_counters);
                let before = counters.read().unwrap();
                std::hint::black_box(wander(16));
                let after = counters.read().unwrap();
                assert!(after.cycles > before.cycles);
                assert!(after.walks > before.walks, "{before:?} {after:?}");
            }
            Err(why) => {
                let known = table::walk_events(&cpu).is_some();
                assert!(!has_counters || !known, "there are counters and events, and yet: {why}");
                println!("SKIP no hardware counters of page walks: {why}");
            }
        }
    }

    #[test]
    fn an_unknown_cpu_and_a_process_that_is_not_there_are_told() {
        let why = WalkCounters::open(std::process::id(), &Cpu::default()).unwrap_err();
        assert!(why.contains("counter") || why.contains("known"), "{why}");
        let error = counting(u32::MAX, Hardware::CPU_CYCLES).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
