//! A lock that handlers in signals may take: a word that spins. Its holders make a system call or two and wait for nothing else.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tries before a waiting thread sleeps.
const TRIES: u32 = 100;
/// How long it sleeps: 50 µs.
static NAP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };

/// Waits a moment, given how often the caller has waited already. A thread of real-time priority that only yields would keep the
/// holder of a lower priority from running, so it sleeps after a while. Async-signal-safe.
#[allow(unsafe_code, reason = "sleeps in a signal handler")]
pub(crate) fn pause(tries: &mut u32) {
    *tries = tries.saturating_add(1);
    if *tries < TRIES {
        std::thread::yield_now();
    } else {
        // SAFETY: reads a constant; a sleep that a signal ends early is one more try.
        unsafe { libc::nanosleep(&raw const NAP, std::ptr::null_mut()) };
    }
}

/// Takes the lock. The wait ends: no holder waits for a fault or for another thread (`without_signals`, `fork`).
pub(crate) fn lock(word: &AtomicBool) {
    let mut tries = 0;
    while word.swap(true, Ordering::Acquire) {
        pause(&mut tries);
    }
}

pub(crate) fn unlock(word: &AtomicBool) {
    word.store(false, Ordering::Release);
}
