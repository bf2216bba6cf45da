//! The two clocks that following a program goes by, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, as samples have it.
#[cfg(target_arch = "x86_64")]
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Processor time of this thread: what others take is not in it.
pub fn processor_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
