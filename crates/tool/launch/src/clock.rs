//! The two clocks used to monitor and repair programs, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`: the time base of samples.
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of the calling thread (`CLOCK_THREAD_CPUTIME_ID`).
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
