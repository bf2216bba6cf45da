//! A held thread: whether it stands still, what waits to be delivered to it, and what is done in its name.

use fieldstone_sys::ptrace::Tracee;

use crate::error::Result;

/// A held thread.
#[derive(Debug)]
pub(crate) struct Held {
    /// The thread.
    pub(crate) tracee: Tracee,
    pub(crate) state: State,
    /// Whether the stop that it is in can deliver a signal when it ends: one that a signal made.
    pub(crate) delivers: bool,
    /// Somebody works on it: it does not go on with all the others.
    pub(crate) pinned: bool,
    /// Signals that came while it was needed for something else, to be delivered when it goes on.
    pub(crate) kept: Vec<i32>,
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
}

impl Held {
    pub(crate) const fn new(tracee: Tracee, state: State) -> Self {
        Self { tracee, state, delivers: false, pinned: false, kept: Vec::new() }
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

    /// Takes back one that was kept for it; whether there was one.
    pub(crate) fn take_back(&mut self, signal: i32) -> bool {
        let found = self.kept.iter().position(|&kept| kept == signal);
        found.map(|index| self.kept.remove(index)).is_some()
    }

    /// Makes a system call in its name, while it stands still; see [`Tracee::call`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn call(
        &mut self,
        instruction: u64,
        call: (&'static str, libc::c_long),
        arguments: [u64; 6],
    ) -> Result<u64> {
        let kept = &mut self.kept;
        let result = self.tracee.call(instruction, call, arguments, &mut |signal| kept.push(signal));
        // The last stop was that of a step.
        self.delivers = true;
        Ok(result?)
    }
}
