//! Page walks of a process, counted by the hardware.
//!
//! Each CPU family has its own event ([`table`]). Cycles are counted with it, so walk cycles can be
//! reported as a share. A counter is opened on a process and inherited by threads and children
//! created later. Existing threads are not counted; a thread's number in place of the process's
//! counts that thread. User mode only, as in [`crate::perf`].
//!
//! The kernel multiplexes when there are more events than counters. Values are scaled up by the
//! share of time that an event was counted.
//!
//! Limits: under a hypervisor, some CPUs leave the walks of the host's tables out of the walk
//! cycles. Speculative walks are counted, even if no load waited for them.

pub mod table;

use std::io;

use fieldstone_wire::Cause;
use perf_event::events::{Event, Hardware, Raw};
use perf_event::{Builder, Counter};
use serde::Serialize;

use crate::cpuid::Cpu;
use crate::perf;
use table::WalkEvents;

/// Running counters.
#[derive(Debug)]
pub struct WalkCounters {
    walks: Vec<Counter>,
    walk_cycles: Vec<Counter>,
    cycles: Counter,
}

/// Counts since the counters were opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WalkCounts {
    /// Page walks for loads and stores.
    pub walks: u64,
    /// Cycles with such a walk in progress; `None` without an event for them.
    pub walk_cycles: Option<u64>,
    /// Cycles of the process.
    pub cycles: u64,
}

impl WalkCounters {
    /// Starts counting for process `pid` on a CPU of model `cpu`.
    ///
    /// # Errors
    /// A text with the remedy, if any: no permission, no hardware counter, or an unknown CPU.
    pub fn open(pid: u32, cpu: &Cpu) -> Result<Self, String> {
        match perf::counters().cycles {
            perf::Counter::Available => {}
            perf::Counter::Absent(why) => {
                return Err(format!("neither this machine nor a hypervisor provides counters ({why})"));
            }
            perf::Counter::Denied(why) => {
                return Err(format!(
                    "this user may not use counters ({why}): `echo 1 | sudo tee /proc/sys/kernel/perf_event_paranoid` allows it"
                ));
            }
        }
        let events = table::walk_events(cpu).ok_or_else(|| {
            format!("no event for page walks is known for {} family {} model {:#x}", cpu.vendor, cpu.family, cpu.model)
        })?;
        Self::open_events(pid, &events)
            .map_err(|error| format!("the events of page walks cannot be counted: {}", Cause(error)))
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

    /// Counts since the counters were opened; children that have ended are included.
    ///
    /// # Errors
    /// The errno of read(2).
    pub fn read(&mut self) -> io::Result<WalkCounts> {
        let walk_cycles = if self.walk_cycles.is_empty() { None } else { Some(sum(&mut self.walk_cycles)?) };
        Ok(WalkCounts { walks: sum(&mut self.walks)?, walk_cycles, cycles: scaled(&mut self.cycles)? })
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

/// Extrapolates `count` to the whole time that the event was enabled.
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
    fn a_count_of_half_the_time_is_doubled() {
        assert_eq!(scale(100, 10, 5), 200);
        assert_eq!(scale(100, 10, 10), 100);
        assert_eq!(scale(0, 10, 0), 0);
        assert_eq!(scale(u64::MAX, 10, 5), u64::MAX);
    }

    /// Reads one word in each page of 256 MiB on small pages, beyond any TLB's reach, `rounds`
    /// times.
    fn random_reads(rounds: u64) -> u64 {
        let memory = vec![1_u64; 32 << 20];
        let pages = memory.len() / 512;
        (0..rounds * pages as u64).fold(0, |sum, step| {
            let page = usize::try_from(step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap() % pages;
            sum + memory[page * 512]
        })
    }

    #[test]
    fn walks_are_counted_or_the_reason_is_reported() {
        let cpu = crate::cpuid::cpu();
        let has_counters = perf::counters().cycles.is_available();
        // The thread's number: a process's number is that of its first thread.
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        match WalkCounters::open(thread, &cpu) {
            Ok(mut counters) => {
                assert!(has_counters);
                let before = counters.read().unwrap();
                std::hint::black_box(random_reads(16));
                let after = counters.read().unwrap();
                assert!(after.cycles > before.cycles);
                assert!(after.walks > before.walks, "{before:?} {after:?}");
            }
            Err(why) => {
                let known = table::walk_events(&cpu).is_some();
                assert!(!has_counters || !known, "counters and events exist, but: {why}");
                println!("SKIP no hardware counters of page walks: {why}");
            }
        }
    }

    #[test]
    fn an_unknown_cpu_and_a_missing_process_are_errors() {
        let why = WalkCounters::open(std::process::id(), &Cpu::default()).unwrap_err();
        assert!(why.contains("counter") || why.contains("known"), "{why}");
        let error = counting(u32::MAX, Hardware::CPU_CYCLES).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
