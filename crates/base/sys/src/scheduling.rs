//! Scheduling of a thread that other threads wait for while all processors are busy.
//!
//! A thread that polls and yields (sched_yield(2)) gives its processor to a busy thread for a whole
//! time slice, a few milliseconds. So [`spin_or_sleep`] spins briefly, long enough for a running
//! thread to reply, and then sleeps for about 20 µs. A woken thread preempts another one before the
//! end of its slice if it has a shorter slice or a higher priority ([`raise_priority`]).
#![allow(unsafe_code, reason = "two system calls, with a structure of the kernel")]

use std::mem::size_of;
use std::time::Duration;

use crate::error::{Error, Result};

/// Time slice in ns: shorter than the default of about 3 ms, longer than a usual burst of work.
const TIME_SLICE_NS: u64 = 1_000_000;
/// The highest priority of time-shared threads.
const HIGHEST_PRIORITY: i32 = -20;
/// Polls before sleeping; a thread that runs on another processor replies within them.
const SPIN_POLLS: u32 = 40;
/// How long to sleep between further polls.
const SLEEP: Duration = Duration::from_micros(20);

/// Gives the calling thread precedence: the highest time-shared priority if this user may set it, a
/// short time slice on Linux 6.12 or later, and exact timers.
///
/// # Errors
/// As sched_setattr(2) and prctl(2), if a system-call filter refuses them.
pub fn raise_priority() -> Result<()> {
    // SAFETY: sched_attr consists of integers, for which zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = u32::try_from(size_of::<libc::sched_attr>()).unwrap_or(0);
    let done = |result: libc::c_long, call| {
        if result < 0 { Err(Error::Call { call, source: std::io::Error::last_os_error() }) } else { Ok(()) }
    };
    // SAFETY: the kernel writes at most `size` bytes, the size of the live local.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    done(got, "sched_getattr")?;
    let set = |nice| {
        let wanted = libc::sched_attr { size, sched_runtime: TIME_SLICE_NS, sched_nice: nice, ..attributes };
        // SAFETY: the kernel reads `size` bytes, the size of the live local.
        done(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) }, "sched_setattr")
    };
    set(HIGHEST_PRIORITY).or_else(|_| set(attributes.sched_nice))?;
    // SAFETY: the request takes integers and no pointer.
    done(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) }.into(), "prctl")
}

/// Waits between two polls for something that another thread does soon: spins at first, then sleeps
/// about 20 µs. `polls` is the number of polls so far.
pub fn spin_or_sleep(polls: u32) {
    if polls < SPIN_POLLS {
        std::hint::spin_loop();
    } else {
        sleep_briefly();
    }
}

/// Sleeps for about 20 µs.
pub fn sleep_briefly() {
    std::thread::sleep(SLEEP);
}

#[cfg(test)]
mod tests {
    use super::raise_priority;

    /// Checks its priority and time slice, which its child threads would inherit.
    #[test]
    fn a_prioritised_thread_has_a_short_time_slice() {
        let attributes = || {
            raise_priority().unwrap();
            let text = std::fs::read_to_string("/proc/thread-self/sched").unwrap_or_default();
            let slice =
                text.lines().find_map(|line| line.strip_prefix("se.slice")?.split(':').nth(1)?.trim().parse().ok());
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let nice: i32 = stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().parse().unwrap();
            (slice, nice)
        };
        let (slice, nice): (Option<u64>, i32) = std::thread::spawn(attributes).join().unwrap();
        match slice {
            Some(slice) => assert_eq!(slice, super::TIME_SLICE_NS),
            None => println!("SKIP this kernel does not report a thread's time slice"),
        }
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(nice == super::HIGHEST_PRIORITY, is_root, "nice {nice}");
    }
}
