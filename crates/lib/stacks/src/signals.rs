//! Blocking signals.

#![allow(unsafe_code, reason = "calls the system")]

/// Blocks all signals until it is dropped, including the two that glibc reserves and its functions
/// would not block: one of them cancels threads.
#[derive(Debug)]
pub(crate) struct BlockedSignals(u64);

impl BlockedSignals {
    pub(crate) fn new() -> Self {
        Self(set_signals(u64::MAX))
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        set_signals(self.0);
    }
}

/// Sets the signal mask and returns the previous one.
fn set_signals(signals: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: both masks are words of this frame, of the size that is passed.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const signals,
            &raw mut before,
            size_of::<u64>(),
        )
    };
    before
}
