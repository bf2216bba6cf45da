//! A spinning lock that signal handlers may take. Its holders make one or two system calls and do
//! not wait.

use std::sync::atomic::{AtomicBool, Ordering};

/// Attempts before a waiting thread sleeps.
const TRIES: u32 = 100;
/// How long it sleeps: 50 µs.
static SLEEP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };

/// Waits briefly; `tries` counts the caller's attempts. Sleeps after a while, because a real-time
/// thread that only yields would keep a holder of lower priority from running. Async-signal-safe.
#[allow(unsafe_code, reason = "sleeps in a signal handler")]
pub(crate) fn pause(tries: &mut u32) {
    *tries = tries.saturating_add(1);
    if *tries < TRIES {
        std::thread::yield_now();
    } else {
        // SAFETY: nanosleep reads a constant; a sleep that a signal ends early is one more attempt.
        unsafe { libc::nanosleep(&raw const SLEEP, std::ptr::null_mut()) };
    }
}

/// Takes the lock. The wait terminates: no holder waits for a fault or another thread
/// (`without_signals`, `fork`).
pub(crate) fn lock(word: &AtomicBool) {
    let mut tries = 0;
    while word.swap(true, Ordering::Acquire) {
        pause(&mut tries);
    }
}

pub(crate) fn unlock(word: &AtomicBool) {
    word.store(false, Ordering::Release);
}
