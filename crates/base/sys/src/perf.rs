//! The counters of perf_event_open(2) that this user can use, and why others are unavailable.
//!
//! Each event is opened once, on this process, in user mode only, and closed. `dtlb_read_misses` is
//! the portable event nearest to page walks: on Intel the kernel uses that name for loads that
//! cause a walk. Walk *cycles* are a raw event of each CPU model. A virtual machine usually has no
//! hardware events.

use std::io;

use fieldstone_wire::Cause;
use perf_event::Builder;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware, Software};
use serde::Serialize;

use crate::kernel_file;

/// Whether an event can be counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Counter {
    /// It can.
    Available,
    /// The machine (or its hypervisor) or the kernel has no such counter; holds the kernel's
    /// message.
    Absent(String),
    /// It may exist, but this user may not use it; holds the kernel's message.
    Denied(String),
}

impl Counter {
    /// Whether it can be counted.
    #[must_use]
    pub const fn is_available(&self) -> bool {
        matches!(self, Self::Available)
    }

    pub(crate) fn from_result<T>(result: io::Result<T>) -> Self {
        match result {
            Ok(_) => Self::Available,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                Self::Denied(Cause(error).to_string())
            }
            Err(error) => Self::Absent(Cause(error).to_string()),
        }
    }
}

/// The counters of this machine that this user can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// CPU cycles.
    pub cycles: Counter,
    /// Instructions.
    pub instructions: Counter,
    /// Loads that missed the data TLB.
    pub dtlb_read_misses: Counter,
    /// Page faults, counted by the kernel.
    pub page_faults: Counter,
    /// `kernel.perf_event_paranoid`: up to 2 users may count their own programs, at -1 everything;
    /// some distributions add 3 and 4, which allow nothing. `None` without perf events in the
    /// kernel.
    pub paranoid: Option<i64>,
}

/// Opens and closes each event.
#[must_use]
pub fn counters() -> Counters {
    let dtlb = Cache { which: CacheId::DTLB, operation: CacheOp::READ, result: CacheResult::MISS };
    Counters {
        cycles: probe(Hardware::CPU_CYCLES),
        instructions: probe(Hardware::INSTRUCTIONS),
        dtlb_read_misses: probe(dtlb),
        page_faults: probe(Software::PAGE_FAULTS),
        paranoid: kernel_file::text("/proc/sys/kernel/perf_event_paranoid").and_then(|text| text.parse().ok()),
    }
}

fn probe(event: impl Event) -> Counter {
    Counter::from_result(Builder::new(event).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denied_counter_differs_from_an_absent_one() {
        let refused = |errno| Counter::from_result::<()>(Err(io::Error::from_raw_os_error(errno)));
        assert!(matches!(refused(libc::EACCES), Counter::Denied(_)));
        assert!(matches!(refused(libc::EPERM), Counter::Denied(_)));
        assert!(matches!(refused(libc::ENOENT), Counter::Absent(_)));
        assert!(matches!(refused(libc::EOPNOTSUPP), Counter::Absent(_)));
    }

    #[test]
    fn an_available_counter_counts() {
        let found = counters();
        if !found.page_faults.is_available() {
            println!("SKIP no software events for this user: {found:?}");
            return;
        }
        // User mode only: user code causes the fault, so it counts.
        let mut counter = Builder::new(Software::PAGE_FAULTS).build().unwrap();
        counter.enable().unwrap();
        let touched = std::hint::black_box(vec![1_u8; 8 << 20]);
        counter.disable().unwrap();
        assert!(counter.read().unwrap() > 0, "{} bytes touched", touched.len());
    }
}
