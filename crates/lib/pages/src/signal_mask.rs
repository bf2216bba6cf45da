//! The signal mask under which the crate's locks are held and its threads run.

#![allow(unsafe_code, reason = "changes a thread's signal mask")]

use std::ffi::c_int;
use std::ptr::null_mut;

/// The signals of faults.
pub(crate) const FAULT_SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Runs `f` with all signals blocked except those of faults: for lock holders, because a signal
/// handler's access to controlled memory could wait for the lock, and for threads that must receive
/// no signal.
pub(crate) fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: the sets are live locals, initialised before they are read; this thread's mask is
    // restored.
    unsafe {
        let mut before = std::mem::zeroed::<libc::sigset_t>();
        let all = all_but_faults();
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        result
    }
}

/// All signals except those of faults.
pub(crate) fn all_but_faults() -> libc::sigset_t {
    // SAFETY: sigfillset initialises the set, which consists of integers.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        FAULT_SIGNALS.iter().for_each(|&fault| _ = libc::sigdelset(&raw mut all, fault));
        all
    }
}
