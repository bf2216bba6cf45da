//! Turns on a processor, for a thread that serves others which wait for it while every processor has work.
//!
//! Who looks again and again and yields in between (sched_yield(2)) gives its processor to a busy thread for a whole turn, some
//! milliseconds. So it looks on for as long as a thread on another processor takes to answer, and sleeps then, shortly: who wakes is let in
//! before the turn of another one is over, if its own turns are short ([`take_short`]).
#![allow(unsafe_code, reason = "two system calls, with a structure of ours")]

use std::mem::size_of;
use std::time::Duration;

use crate::error::{Error, Result};

/// The shortest turn that the kernel gives, in nanoseconds.
const SHORT_NS: u64 = 100_000;
/// A thread on another processor answers within so many looks, or it is not running.
const LOOKS: u32 = 40;
/// How long to sleep then.
const NAP: Duration = Duration::from_micros(20);

/// Has the calling thread take short turns from now on, and be woken on time: it gets them sooner. Kernels before 6.12 give all threads
/// the same turns.
///
/// # Errors
/// As sched_setattr(2) and prctl(2), where a filter for system calls refuses them.
pub fn take_short() -> Result<()> {
    // SAFETY: all its fields are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = u32::try_from(size_of::<libc::sched_attr>()).unwrap_or(0);
    let failed = |call| move || Error::Call { call, source: std::io::Error::last_os_error() };
    let done = |result: libc::c_long, call| if result < 0 { Err(failed(call)()) } else { Ok(()) };
    // SAFETY: the kernel writes no more than `size` bytes, which are there.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    done(got, "sched_getattr")?;
    attributes.size = size;
    attributes.sched_runtime = SHORT_NS;
    // SAFETY: the kernel reads `size` bytes, which are there.
    done(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) }, "sched_setattr")?;
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
