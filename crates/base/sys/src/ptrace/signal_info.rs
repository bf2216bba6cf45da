//! Details of the signals that stop a traced thread.

/// Details of a signal (`siginfo_t`), as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalInfo(pub(super) [i32; 32]);

impl SignalInfo {
    /// Index of `si_code`.
    const CODE: usize = 2;

    /// The signal's number.
    #[must_use]
    pub const fn signal(&self) -> i32 {
        self.0[0]
    }

    /// Whether this process sent it by [`super::Tracee::send`].
    #[must_use]
    pub fn is_sent_by_us(&self) -> bool {
        const SENDER: usize = 4;
        self.code() == libc::SI_TKILL && u32::try_from(self.0[SENDER]) == Ok(std::process::id())
    }

    /// Whether an instruction of the thread raised it.
    #[must_use]
    pub const fn is_raised(&self) -> bool {
        self.code() > 0
    }

    /// `si_code`: where the signal comes from.
    pub(super) const fn code(&self) -> i32 {
        self.0[Self::CODE]
    }
}

/// Signals that instructions raise. If one is blocked when raised, the kernel kills the program.
pub(super) const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGILL)
    | bit(libc::SIGSYS)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP);

/// Whether instructions raise this signal. [`super::Tracee::call`] leaves such signals unblocked.
#[must_use]
pub const fn is_raised_by_code(signal: i32) -> bool {
    signal > 0 && signal <= 64 && FAULTS & bit(signal) != 0
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}
