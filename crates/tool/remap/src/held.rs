//! A held thread: whether it stands still, what waits to be delivered to it, and what is done in its name.

use fieldstone_sys::ptrace::{Registers, SignalInfo, Tracee, is_raised_by_code};

use crate::error::Result;
use crate::home::Way;
use crate::memory::Memory;
use crate::tasks::{has_signal, ignores};
use crate::threads::gone_is_fine;

/// The selector of 64-bit code.
const CODE_OF_64_BITS: u64 = 0x33;
/// Bytes of a `syscall` instruction.
const SYSCALL_BYTES: u64 = 2;
/// Not in libc for every system.
const SYS_IO_PGETEVENTS: libc::c_long = 333;
/// Calls that end with EINTR when their thread is stopped, though no signal has come (signal(7)): those of sockets where they have a
/// timeout.
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

/// A held thread.
#[derive(Debug)]
pub(crate) struct Held {
    /// The thread.
    pub(crate) tracee: Tracee,
    pub(crate) state: State,
    /// Whether the stop that it is in can deliver a signal when it ends: one that a signal made.
    pub(crate) delivers: bool,
    /// It is another process that runs in the same memory: a child by vfork, say. It has descriptors of its own.
    pub(crate) is_child: bool,
    /// It was in a system call when it was asked to stop, and has not stopped since: it will not go on in code of ours.
    pub(crate) in_call: bool,
    /// Somebody works on it: it does not go on with all the others.
    pub(crate) pinned: bool,
    /// Signals that came while it was needed for something else, to be delivered when it goes on.
    kept: Vec<SignalInfo>,
    /// Those that were sent once more, with what they told first.
    resent: Vec<SignalInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Runs,
    Stands,
    /// Stopped by job control, and at hand as one that stands.
    Stopped,
    /// Stopped by job control, and left so: it has to be asked before it is at hand.
    Listens,
    /// Asked to stop, while it is in the kernel for longer, such as for a page of ours: it stops before it is in user mode again.
    Waits,
    /// About to end, until it is [seen off](crate::threads::Threads::see_off).
    Ends,
}

impl Held {
    pub(crate) const fn new(tracee: Tracee, state: State) -> Self {
        Self {
            tracee,
            state,
            delivers: false,
            is_child: false,
            in_call: false,
            pinned: false,
            kept: Vec::new(),
            resent: Vec::new(),
        }
    }

    /// Whether it stands still, so that its registers can be read.
    #[must_use]
    pub(crate) const fn stands(&self) -> bool {
        matches!(self.state, State::Stands | State::Stopped)
    }

    /// Whether it has to be stopped before it stands still.
    pub(crate) const fn is_loose(&self) -> bool {
        matches!(self.state, State::Runs | State::Listens)
    }

    /// Whether a signal is delivered to it when it goes on.
    pub(crate) const fn has_signals(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether one of them has an effect, such as a handler that runs.
    pub(crate) fn has_effective_signals(&self) -> bool {
        self.kept.iter().any(|kept| !ignores(self.tracee.thread(), kept.signal()))
    }

    /// Whether the signal in whose stop it is can wait in the kernel: not one with a queue, where it would come last, and none that cannot be
    /// blocked meanwhile. Such a one would come in the middle of our call; a trap of ours would end the program.
    fn keeps_a_plain_one(&self) -> bool {
        matches!(self.kept.as_slice(), [one] if one.signal() < libc::SIGRTMIN() && !is_raised_by_code(one.signal()))
    }

    /// Takes back one that was kept for it; whether there was one.
    pub(crate) fn take_back(&mut self, signal: i32) -> bool {
        let found = self.kept.iter().position(|kept| kept.signal() == signal);
        found.map(|index| self.kept.remove(index)).is_some()
    }

    /// Takes in the signal in whose stop it is.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn keep_signal(&mut self) -> Result<()> {
        let info = match self.tracee.signal_info() {
            Err(error) => return gone_is_fine(Err(error)),
            Ok(info) => info,
        };
        self.keep(info);
        Ok(())
    }

    /// Where some of its kind were sent once more, the oldest of them comes first: signals with a queue come in their order.
    fn keep(&mut self, info: SignalInfo) {
        let resent = self.resent.iter().position(|resent| resent.signal() == info.signal());
        let next = resent.map_or(info, |index| self.resent.remove(index));
        if resent.is_some() && !info.is_sent_by_us() {
            self.resent.push(info);
        }
        self.kept.push(next);
    }

    /// The signal that it goes on with, or 0. The others are sent once more, and come in their turn.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn next_signal(&mut self) -> Result<i32> {
        let mut kept = std::mem::take(&mut self.kept).into_iter();
        let first = if self.delivers { kept.next() } else { None };
        let rest: Vec<SignalInfo> = kept.collect();
        for info in &rest {
            gone_is_fine(self.tracee.send(info.signal()))?;
        }
        // They are older than those that were sent once more before.
        self.resent.splice(0..0, rest);
        let Some(first) = first else { return Ok(0) };
        // Refused where it is gone.
        let _ = self.tracee.set_signal_info(&first);
        Ok(first.signal())
    }

    /// Has a call made again that our stop has ended, though nothing has happened in the program.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn begin_again(&self) -> Result<()> {
        let Ok(registers) = self.tracee.registers() else { return Ok(()) };
        let ended = registers.rax.cast_signed() == -i64::from(libc::EINTR);
        let call = registers.orig_rax;
        if !ended || !ENDED_BY_STOPS.contains(&call.cast_signed()) || has_signal(self.tracee.thread()) {
            return Ok(());
        }
        let rip = registers.rip - SYSCALL_BYTES;
        gone_is_fine(self.tracee.set_registers(&Registers { rax: call, orig_rax: u64::MAX, rip, ..registers }))
    }

    /// Lets go of it, with its signals.
    pub(crate) fn let_go(mut self) {
        let signal = if self.stands() { self.next_signal().unwrap_or(0) } else { 0 };
        self.tracee.detach_with_signal(signal);
    }

    /// Makes a system call in its name, while it stands still; see [`Tracee::call`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn call(
        &mut self,
        (memory, way): (&Memory, Way),
        call: (&'static str, libc::c_long),
        arguments: [u64; 6],
    ) -> Result<u64> {
        let at = way.prepare(memory, &self.tracee.registers()?, self.tracee.signal_mask()?)?;
        // The signal in whose stop it is waits in the kernel meanwhile, as those do that come now. It is reported again.
        let signal = if self.delivers && self.keeps_a_plain_one() { self.kept.remove(0).signal() } else { 0 };
        let mut came = Vec::new();
        let result = self.tracee.call(at, call, arguments, signal, &mut |info| came.push(info));
        came.into_iter().for_each(|info| self.keep(info));
        self.delivers = false;
        way.end(memory)?;
        // Its process may have been let go on meanwhile.
        if self.state == State::Stopped && !self.tracee.is_stopped() {
            self.state = State::Stands;
        }
        Ok(result?)
    }
}

/// Whether these are of 64-bit code.
pub(crate) const fn is_of_64_bits(registers: &Registers) -> bool {
    registers.cs == CODE_OF_64_BITS
}
