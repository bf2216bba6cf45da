//! A traced thread: its state, its pending signals, and system calls made on its behalf.

use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::ptrace::{SignalInfo, Tracee, TraceeRegisters, is_raised_by_code};

use super::call_stub::CallStub;
use super::status::{has_pending_signal, ignores_signal};
use crate::error::{Result, ignore_gone};

/// Code segment selector of 64-bit code.
const CODE_SELECTOR_64_BIT: u64 = 0x33;
/// Size of a `syscall` instruction.
const SYSCALL_BYTES: u64 = 2;
/// Missing in libc for some systems.
const SYS_IO_PGETEVENTS: libc::c_long = 333;
/// Calls that fail with EINTR after a ptrace stop although no signal arrived (signal(7)). Socket
/// calls do so when they have a timeout.
const ENDED_BY_STOPS: [libc::c_long; 25] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_connect,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_splice,
    libc::SYS_sendfile,
    SYS_IO_PGETEVENTS,
];

/// A traced thread.
#[derive(Debug)]
pub(crate) struct TracedThread {
    /// The ptrace handle.
    pub(crate) tracee: Tracee,
    pub(crate) state: ThreadState,
    /// Whether its current stop can deliver a signal on resume: it is a signal-delivery stop.
    pub(crate) delivers_signal: bool,
    /// It belongs to another process that shares the memory, such as a vfork child. It has its own
    /// descriptor table.
    pub(crate) is_other_process: bool,
    /// It was in a system call when a stop was requested and has not stopped since. It does not
    /// resume in the code cache.
    pub(crate) is_in_call: bool,
    /// An operation needs it: `resume_all` skips it.
    pub(crate) is_reserved: bool,
    /// Signals that arrived during other operations, to be delivered on resume.
    signals: Vec<SignalInfo>,
    /// Signals that were sent again, with their original `siginfo`.
    resent: Vec<SignalInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    Running,
    Stopped,
    /// Stopped by job control; its registers can be accessed.
    JobStopped,
    /// Stopped by job control and listening: it must be interrupted before its registers can be
    /// accessed.
    Listening,
    /// A stop was requested while it is in the kernel, for example at a missing page. It stops
    /// before it returns to user mode.
    StopPending,
    /// At its exit stop, until [`Threads::finish_exit`](super::threads::Threads::finish_exit).
    Exiting,
}

impl TracedThread {
    pub(crate) const fn new(tracee: Tracee, state: ThreadState) -> Self {
        Self {
            tracee,
            state,
            delivers_signal: false,
            is_other_process: false,
            is_in_call: false,
            is_reserved: false,
            signals: Vec::new(),
            resent: Vec::new(),
        }
    }

    /// Whether it is stopped, so that its registers can be accessed.
    #[must_use]
    pub(crate) const fn is_stopped(&self) -> bool {
        matches!(self.state, ThreadState::Stopped | ThreadState::JobStopped)
    }

    /// Whether it must be interrupted before it is stopped.
    pub(crate) const fn must_interrupt(&self) -> bool {
        matches!(self.state, ThreadState::Running | ThreadState::Listening)
    }

    /// Whether it has signals to deliver on resume.
    pub(crate) const fn has_signals(&self) -> bool {
        !self.signals.is_empty()
    }

    /// Whether one of these signals has an effect, for example runs a handler.
    pub(crate) fn has_effective_signals(&self) -> bool {
        self.signals.iter().any(|kept| !ignores_signal(self.tracee.thread(), kept.signal()))
    }

    /// Whether the signal of the current stop can stay pending in the kernel during an injected
    /// call. A queued signal would lose its place. A signal raised by an instruction cannot be
    /// blocked.
    fn can_stay_pending(&self) -> bool {
        matches!(self.signals.as_slice(), [one] if one.signal() < libc::SIGRTMIN() && !is_raised_by_code(one.signal()))
    }

    /// Removes a pending signal of this number; returns whether there was one.
    pub(crate) fn remove_signal(&mut self, signal: i32) -> bool {
        let found = self.signals.iter().position(|kept| kept.signal() == signal);
        found.map(|index| self.signals.remove(index)).is_some()
    }

    /// Stores the signal of the current stop.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn store_signal(&mut self) -> Result<()> {
        let info = match self.tracee.signal_info() {
            Err(error) => return ignore_gone(Err(error)),
            Ok(info) => info,
        };
        self.store(info);
        Ok(())
    }

    /// If signals of this number were sent again, the oldest of them comes first: queued signals
    /// keep their order.
    fn store(&mut self, info: SignalInfo) {
        let resent = self.resent.iter().position(|resent| resent.signal() == info.signal());
        let next = resent.map_or(info, |index| self.resent.remove(index));
        if resent.is_some() && !info.is_sent_by_us() {
            self.resent.push(info);
        }
        self.signals.push(next);
    }

    /// The signal to resume with, or 0. All others are sent again and arrive one by one.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn next_signal(&mut self) -> Result<i32> {
        let mut kept = std::mem::take(&mut self.signals).into_iter();
        let first = if self.delivers_signal { kept.next() } else { None };
        let rest: Vec<SignalInfo> = kept.collect();
        for info in &rest {
            ignore_gone(self.tracee.send(info.signal()))?;
        }
        // These are older than the signals that were sent again before.
        self.resent.splice(0..0, rest);
        let Some(first) = first else { return Ok(0) };
        // Fails if the thread is gone.
        let _ = self.tracee.set_signal_info(&first);
        Ok(first.signal())
    }

    /// Restarts a system call that only our stop has interrupted.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn restart_call(&self) -> Result<()> {
        let Ok(registers) = self.tracee.registers() else { return Ok(()) };
        let ended = registers.rax.cast_signed() == -i64::from(libc::EINTR);
        let call = registers.orig_rax;
        if !ended || !ENDED_BY_STOPS.contains(&call.cast_signed()) || has_pending_signal(self.tracee.thread()) {
            return Ok(());
        }
        let rip = registers.rip - SYSCALL_BYTES;
        ignore_gone(self.tracee.set_registers(&TraceeRegisters { rax: call, orig_rax: u64::MAX, rip, ..registers }))
    }

    /// Detaches it and delivers its first signal.
    pub(crate) fn detach(mut self) {
        let signal = if self.is_stopped() { self.next_signal().unwrap_or(0) } else { 0 };
        self.tracee.detach_with_signal(signal);
    }

    /// Makes a system call on its behalf while it is stopped; see [`Tracee::call`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn call(
        &mut self,
        (memory, stub): (&ProcessMemory, CallStub),
        call: (&'static str, libc::c_long),
        arguments: [u64; 6],
    ) -> Result<u64> {
        let at = stub.prepare(memory, &self.tracee.registers()?, self.tracee.signal_mask()?)?;
        // The signal of the current stop stays pending in the kernel meanwhile, like those that
        // arrive now. It is reported again.
        let signal = if self.delivers_signal && self.can_stay_pending() { self.signals.remove(0).signal() } else { 0 };
        let mut came = Vec::new();
        let result = self.tracee.call(at, call, arguments, signal, &mut |info| came.push(info));
        came.into_iter().for_each(|info| self.store(info));
        self.delivers_signal = false;
        stub.finish(memory)?;
        // SIGCONT may have ended the job-control stop meanwhile.
        if self.state == ThreadState::JobStopped && !self.tracee.is_stopped() {
            self.state = ThreadState::Stopped;
        }
        Ok(result?)
    }
}

/// Whether these registers belong to 64-bit code.
pub(crate) const fn is_64_bit(registers: &TraceeRegisters) -> bool {
    registers.cs == CODE_SELECTOR_64_BIT
}
