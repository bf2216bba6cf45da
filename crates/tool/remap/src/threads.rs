//! All threads of a process, held: each can be stopped alone, and all together.
//!
//! ```text
//!   seize every thread of /proc/PID/task, again until none is new     (what a held thread starts is held from its first instruction)
//!   stop_all    every one that is known stands still in user mode or in a system call; what waits to be delivered is kept
//!   resume_all  each goes on, with its signal; those that job control has stopped stay so
//! ```
//! One that ends stops before, and waits until [`Threads::see_off`].
//! A signal that comes to a held thread stops it first. [`Threads::attend`] hands it on, as long as `before_signal` is done.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fieldstone_sys::process::has_ended;
use fieldstone_sys::ptrace::{Stop, Tracee, share_memory};
use fieldstone_sys::scheduling;

use crate::error::{Error, Result};
use crate::held::{Held, State, is_of_64_bits};
use crate::tasks::{
    is_ending, is_filtered, is_kernels, process_of, processor_ns, repaired_by, sleeps_deeply, tasks, tracer_of,
};

/// Looks at a thread that was asked to stop, between two looks at where it waits.
const LOOKS: u32 = 32;
/// A thread that was asked to stop and has run for so long since is in the kernel: in user mode it would have stopped at once. The kernel's
/// access to a page of ours goes round like that, when the thread has something to do first. So seems to do who has a processor that the host
/// has given to somebody else, for some milliseconds as a rule.
const IN_KERNEL_NS: u64 = 10_000_000;
/// The same when it is seized: nobody waits for us yet, and it may be starting a thread.
const IN_KERNEL_FIRST_NS: u64 = 10 * IN_KERNEL_NS;

/// Who was killed lets go of what it traced within so long.
const LONGEST_END: Duration = Duration::from_secs(5);
/// Whether there are threads that nobody told of is asked once in so many rounds.
const ROUNDS: u32 = 16;

/// The threads of a process.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    pid: u32,
    held: BTreeMap<u32, Held>,
    /// Rounds of [`Self::attend`].
    rounds: u32,
    /// Processes that it has forked, which are held too, and are not its threads.
    children: Vec<Tracee>,
    /// What ended all this, until it is told.
    over: Option<Happening>,
}

/// Something that happened to a thread beside signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// Another program runs in the process.
    Exec,
    /// The process has no thread any more.
    Ended,
}

impl Threads {
    /// Holds every thread of process `pid`; all stand still.
    ///
    /// # Errors
    /// Where this user may not, or a debugger holds one.
    pub(crate) fn seize(pid: u32) -> Result<Self> {
        let mut this = Self::default();
        this.pid = pid;
        // A thread that is not held yet may start another one meanwhile. So may one that is: what it had begun to start before, it does not
        // tell of. When it stands still that is there.
        loop {
            let before = this.held.len();
            for thread in tasks(pid) {
                // Those that the kernel has made for itself never come to user mode.
                if !this.held.contains_key(&thread) && !is_kernels(thread) {
                    this.seize_one(thread)?;
                }
            }
            if this.held.len() == before {
                return Ok(this);
            }
            this.stop_all_within(IN_KERNEL_FIRST_NS)?;
        }
    }

    fn seize_one(&mut self, thread: u32) -> Result<()> {
        let (begun, mut was_free) = (Instant::now(), false);
        loop {
            let error = match Tracee::seize(thread) {
                Ok(tracee) => {
                    self.held.insert(thread, Held::new(tracee, State::Runs));
                    return Ok(());
                }
                Err(error) => error,
            };
            // It ended between being listed and being held, or is the first one, listed until all have ended.
            if matches!(error, fieldstone_sys::Error::NoSuchProcess { .. }) || has_ended(thread) {
                return Ok(());
            }
            match tracer_of(thread) {
                // It was started by one that is held: that one tells of it.
                Some(tracer) if tracer == rustix::thread::gettid().as_raw_pid().cast_unsigned() => return Ok(()),
                // Who was killed has it until its very end.
                Some(tracer) if is_ending(tracer) && begun.elapsed() < LONGEST_END => std::thread::yield_now(),
                Some(tracer) => {
                    let why = match repaired_by(thread) {
                        Some(other) => {
                            format!("it is under repair already: end process {other} first, with Ctrl-C or SIGTERM")
                        }
                        None => format!(
                            "process {tracer} traces it already, as a debugger does: have that let go of it first"
                        ),
                    };
                    return Err(Error::Refused { pid: self.pid, why });
                }
                // Not any more, perhaps.
                None if !was_free => was_free = true,
                None => return Err(error.into()),
            }
        }
    }

    /// Their numbers.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.held.keys().copied()
    }

    /// One that stands still, in whose name something can be done. One that no signal waits for comes first, and one that
    /// job control has stopped last. `unfit` is asked of where it stands.
    pub(crate) fn standing(&mut self, unfit: &dyn Fn(u64) -> bool) -> Option<&mut Held> {
        let is_over = self.is_over();
        let can = |held: &&mut Held| held.stands() && !held.is_child && !is_over;
        let mut able: Vec<&mut Held> = self.held.values_mut().filter(can).collect();
        // Of the first one no end is told until all others have ended, so that one that is killed meanwhile is waited for in vain.
        let pid = self.pid;
        able.sort_by_key(|held| (held.state == State::Stopped, held.tracee.thread() == pid, held.has_signals()));
        let is_fit = |held: &&mut Held| {
            let can = |registers| is_of_64_bits(&registers) && !unfit(registers.rip);
            !is_filtered(held.tracee.thread())
                && !held.tracee.has_syscall_dispatch()
                && held.tracee.registers().is_ok_and(can)
        };
        able.into_iter().find(is_fit)
    }

    /// Whether another program runs in the process, or none: nothing can be done any more.
    pub(crate) const fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// One of them.
    pub(crate) fn get_mut(&mut self, thread: u32) -> Option<&mut Held> {
        self.held.get_mut(&thread)
    }

    /// Has all stand still: none is in user mode afterwards. One that sleeps deeply in the kernel, such as for
    /// a page of ours, goes on sleeping, and stops when it wakes.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn stop_all(&mut self) -> Result<()> {
        self.stop_all_within(IN_KERNEL_NS)
    }

    fn stop_all_within(&mut self, in_kernel_ns: u64) -> Result<()> {
        // All are asked before one is waited for.
        for held in self.held.values_mut().filter(|held| held.is_loose()) {
            gone_is_fine(held.tracee.interrupt())?;
        }
        while let Some(thread) = self.held.iter().find(|(_, held)| held.is_loose()).map(|(&number, _)| number) {
            self.wait_for(thread, in_kernel_ns)?;
        }
        Ok(())
    }

    /// Has one stand still until [`Self::resume`]; whether it is still there.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn stop(&mut self, thread: u32) -> Result<bool> {
        let Some(held) = self.held.get_mut(&thread) else { return Ok(false) };
        if held.is_loose() {
            gone_is_fine(held.tracee.interrupt())?;
            self.wait_for(thread, IN_KERNEL_NS)?;
        }
        let Some(held) = self.held.get_mut(&thread) else { return Ok(false) };
        held.pinned = held.stands();
        Ok(held.pinned)
    }

    /// Asks one to stop that is known to wait in a system call for a page of ours: nobody has to find that out.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn ask(&mut self, thread: u32) -> Result<()> {
        let Some(held) = self.held.get_mut(&thread).filter(|held| held.is_loose()) else { return Ok(()) };
        (held.state, held.in_call) = (State::Waits, true);
        gone_is_fine(held.tracee.interrupt())
    }

    /// Whether one was asked to stop, and is in the kernel since; looks whether it has stopped meanwhile.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn still_waits(&mut self, thread: u32) -> Result<bool> {
        let waits = |this: &Self| this.held.get(&thread).is_some_and(|held| held.state == State::Waits);
        if waits(self)
            && let Some(held) = self.held.get_mut(&thread)
            && let Some(stop) = held.tracee.try_wait()?
        {
            self.note(thread, stop)?;
        }
        Ok(waits(self))
    }

    /// Until it does not run any more, or has been running in the kernel for so long.
    fn wait_for(&mut self, thread: u32, in_kernel_ns: u64) -> Result<()> {
        let (mut looked, mut begun_ns) = (0_u32, None);
        while let Some(held) = self.held.get_mut(&thread).filter(|held| held.is_loose()) {
            if let Some(stop) = held.tracee.try_wait()? {
                self.note(thread, stop)?;
                // One that has stopped to tell of a new thread, and goes on, does not know any more that it was asked.
                if let Some(held) = self.held.get(&thread).filter(|held| held.is_loose()) {
                    gone_is_fine(held.tracee.interrupt())?;
                }
                continue;
            }
            looked += 1;
            if looked.is_multiple_of(LOOKS) {
                let spent_ns = processor_ns(thread);
                let since_ns = spent_ns.saturating_sub(*begun_ns.get_or_insert(spent_ns));
                if sleeps_deeply(thread) || since_ns > in_kernel_ns || has_ended(thread) {
                    held.state = State::Waits;
                }
            }
            scheduling::spin_or_sleep(looked);
        }
        Ok(())
    }

    /// Takes a stop in: the thread stands still then, or is gone.
    fn note(&mut self, thread: u32, stop: Stop) -> Result<()> {
        let Some(held) = self.held.get_mut(&thread) else { return Ok(()) };
        (held.state, held.in_call) = (State::Stands, false);
        held.delivers = matches!(stop, Stop::Signal(_));
        match stop {
            Stop::Interrupted | Stop::Call => held.begin_again()?,
            Stop::Signal(_) => held.keep_signal()?,
            Stop::Group => held.state = State::Stopped,
            Stop::Cloned(new) | Stop::Forked(new) => {
                // It stands in the middle of its system call: nothing can be done in its name there.
                held.state = State::Runs;
                gone_is_fine(held.tracee.resume(0))?;
                self.adopt(new, matches!(stop, Stop::Cloned(_)) || share_memory(thread, new))?;
            }
            // It had borrowed our memory (vfork) and has its own now, or all of the process is another program.
            Stop::Exec if thread != self.pid => drop(self.held.remove(&thread)),
            Stop::Exec => self.over = Some(Happening::Exec),
            Stop::Ending => held.state = State::Ends,
            Stop::Gone => {
                self.held.remove(&thread);
                if self.held.is_empty() {
                    self.over.get_or_insert(Happening::Ended);
                }
            }
        }
        Ok(())
    }

    /// A new thread, or a child that runs in our memory, or one with a copy of it: it begins stopped.
    fn adopt(&mut self, new: u32, in_our_memory: bool) -> Result<()> {
        let mut tracee = Tracee::attached(new);
        let state = match tracee.wait()? {
            Stop::Gone => return Ok(()),
            Stop::Ending => State::Ends,
            _ => State::Stands,
        };
        if in_our_memory {
            let mut held = Held::new(tracee, state);
            held.is_child = process_of(new) != Some(self.pid);
            self.held.insert(new, held);
        } else {
            self.children.push(tracee);
        }
        Ok(())
    }

    /// Those that were asked to stop, and are in the kernel since.
    pub(crate) fn waiting(&self) -> Vec<u32> {
        self.in_state(State::Waits)
    }

    fn in_state(&self, state: State) -> Vec<u32> {
        self.held.iter().filter(|(_, held)| held.state == state).map(|(&thread, _)| thread).collect()
    }

    /// How many children were forked since [`Self::children`] was called.
    pub(crate) const fn born(&self) -> usize {
        self.children.len()
    }

    /// Children that were forked since the last call; they stand still.
    pub(crate) fn children(&mut self) -> Vec<Tracee> {
        std::mem::take(&mut self.children)
    }

    /// Lets all go on, with the signals that wait for them, but those that were stopped one by one.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn resume_all(&mut self) -> Result<()> {
        let threads: Vec<u32> = self.held.iter().filter(|(_, held)| !held.pinned).map(|(&thread, _)| thread).collect();
        threads.into_iter().try_for_each(|thread| self.resume(thread))
    }

    /// Lets one go on.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn resume(&mut self, thread: u32) -> Result<()> {
        let Some(held) = self.held.get_mut(&thread) else { return Ok(()) };
        held.pinned = false;
        match held.state {
            State::Runs | State::Listens | State::Ends => return Ok(()),
            State::Stopped => {
                held.state = State::Listens;
                return gone_is_fine(held.tracee.listen());
            }
            State::Waits => {
                // It stops when it wakes, and `attend` lets it go on then.
                held.state = State::Runs;
                return Ok(());
            }
            State::Stands => {}
        }
        held.state = State::Runs;
        let signal = held.next_signal()?;
        gone_is_fine(held.tracee.resume(signal))
    }

    /// Those that are about to end, and wait until they are seen off.
    pub(crate) fn ending(&self) -> Vec<u32> {
        self.in_state(State::Ends)
    }

    /// Lets one end.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn see_off(&mut self, thread: u32) -> Result<()> {
        let Some(held) = self.held.get_mut(&thread) else { return Ok(()) };
        held.state = State::Runs;
        gone_is_fine(held.tracee.resume(0))
    }

    /// Lets go of all.
    pub(crate) fn let_go(&mut self) {
        for (thread, held) in std::mem::take(&mut self.held) {
            if has_ended(thread) {
                // The first thread may have ended long before the others: it does not stop any more to be let go. Nothing is kept of it here.
                std::mem::forget(held);
            } else {
                held.let_go();
            }
        }
    }

    /// Looks after threads that have stopped by themselves. `before_signal` is called for each that a signal is about to be delivered
    /// to, while it stands still.
    ///
    /// # Errors
    /// As ptrace(2), and what `before_signal` says.
    pub(crate) fn attend(
        &mut self,
        before_signal: &mut dyn FnMut(&mut Held) -> Result<()>,
    ) -> Result<Option<Happening>> {
        let threads: Vec<u32> = self.numbers().collect();
        for thread in threads {
            // One that stands still can end, too: by SIGKILL.
            let Some(held) = self.held.get_mut(&thread) else { continue };
            let Some(stop) = held.tracee.try_wait()? else { continue };
            self.note(thread, stop)?;
            if self.is_over() {
                break;
            }
            if let Some(held) = self.held.get_mut(&thread).filter(|held| held.stands() && held.has_signals()) {
                before_signal(held)?;
            }
            self.resume(thread)?;
            if let Stop::Cloned(new) | Stop::Forked(new) = stop {
                self.resume(new)?;
            }
        }
        self.rounds = (self.rounds + 1) % ROUNDS;
        if self.rounds == 0 && has_ended(self.pid) {
            self.reap_unknown();
        }
        Ok(self.over.take())
    }

    /// A thread that was killed in the middle of starting another one does not tell of that, which is held all the same: and as long as nobody
    /// asks for it the process does not end.
    fn reap_unknown(&self) {
        let unknown = |thread: &u32| !self.held.contains_key(thread);
        for thread in tasks(self.pid).into_iter().filter(unknown) {
            let mut tracee = Tracee::attached(thread);
            if has_ended(thread) {
                let _ = tracee.try_wait();
            } else if tracee.is_ending() {
                tracee.detach_with_signal(0);
            } else {
                // One that is told of next.
                std::mem::forget(tracee);
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// A thread that ended is found so at the next wait.
pub(crate) fn gone_is_fine(result: fieldstone_sys::Result<()>) -> Result<()> {
    match result {
        Err(fieldstone_sys::Error::NoSuchProcess { .. }) => Ok(()),
        other => other.map_err(Into::into),
    }
}
