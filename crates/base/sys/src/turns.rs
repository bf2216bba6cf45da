//! Turns on a processor, for a thread that serves others which wait for it while every processor has work.
//!
//! Who looks again and again and yields in between (sched_yield(2)) gives its processor to a busy thread for a whole turn, some
//! milliseconds. So it looks on for as long as a thread on another processor takes to answer, and sleeps then, shortly: who wakes is let in
//! before the turn of another one is over, if its own turns are shorter, or it is nicer to itself ([`come_first`]).
#![allow(unsafe_code, reason = "two system calls, with a structure of ours")]

use std::mem::size_of;
use std::time::Duration;

use crate::error::{Error, Result};

/// Shorter than the turn of any other thread, some 3 ms, and longer than what there is to do at once as a rule; in nanoseconds.
const TURN_NS: u64 = 1_000_000;
/// The highest priority of those that share a processor.
const HIGHEST: i32 = -20;
/// A thread on another processor answers within so many looks, or it is not running.
const LOOKS: u32 = 40;
/// How long to sleep then.
const NAP: Duration = Duration::from_micros(20);

/// Has the calling thread come before others from now on: by the highest priority of ordinary threads, if this user may have it, and by
/// shorter turns, if the kernel is 6.12 or later. It is woken on time.
///
/// # Errors
/// As sched_setattr(2) and prctl(2), where a filter for system calls refuses them.
pub fn come_first() -> Result<()> {
    // SAFETY: all its fields are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = u32::try_from(size_of::<libc::sched_attr>()).unwrap_or(0);
    let done = |result: libc::c_long, call| {
        if result < 0 { Err(Error::Call { call, source: std::io::Error::last_os_error() }) } else { Ok(()) }
    };
    // SAFETY: the kernel writes no more than `size` bytes, which are there.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    done(got, "sched_getattr")?;
    let set = |nice| {
        let wanted = libc::sched_attr { size, sched_runtime: TURN_NS, sched_nice: nice, ..attributes };
        // SAFETY: the kernel reads `size` bytes, which are there.
        done(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) }, "sched_setattr")
    };
    set(HIGHEST).or_else(|_| set(attributes.sched_nice))?;
    // SAFETY: no pointer.
    done(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) }.into(), "prctl")
}

/// Between two looks at something that another thread does soon: nothing at first, then a nap. `looks` is how often it was looked at.
pub fn pause(looks: u32) {
    if looks < LOOKS {
        std::hint::spin_loop();
    } else {
        nap();
    }
}

/// Lets others have the processor for a moment.
pub fn nap() {
    std::thread::sleep(NAP);
}

#[cfg(test)]
mod tests {
    use super::come_first;

    /// Its priority and the time slice, which a thread that is started by this one would have, too.
    #[test]
    fn a_thread_that_comes_first_has_shorter_turns_than_others() {
        let turn = || {
            come_first().unwrap();
            let text = std::fs::read_to_string("/proc/thread-self/sched").unwrap_or_default();
            let slice =
                text.lines().find_map(|line| line.strip_prefix("se.slice")?.split(':').nth(1)?.trim().parse().ok());
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let nice: i32 = stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().parse().unwrap();
            (slice, nice)
        };
        let (slice, nice): (Option<u64>, i32) = std::thread::spawn(turn).join().unwrap();
        match slice {
            Some(slice) => assert_eq!(slice, super::TURN_NS),
            None => println!("SKIP this kernel does not tell a thread's time slice"),
        }
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(nice == super::HIGHEST, is_root, "nice {nice}");
    }
}
