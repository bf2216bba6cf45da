//! All threads of a process, held: each can be stopped alone, and all together.
//!
//! ```text
//!   seize every thread of /proc/PID/task, again until none is new     (what a held thread starts is held from its first instruction)
//!   stop_all    every one stands still in user mode or in a system call; what waits to be delivered is kept
//!   resume_all  each goes on, with its signal
//! ```
//! A signal that comes to a held thread stops it first. [`Threads::attend`] hands it on, as long as `before_signal` is done.

use std::collections::BTreeMap;

use fieldstone_sys::process;
use fieldstone_sys::ptrace::{Registers, Stop, Tracee};

use crate::error::Result;

/// A held thread.
#[derive(Debug)]
pub(crate) struct Held {
    /// The thread.
    pub(crate) tracee: Tracee,
    state: State,
    /// Whether the stop that it is in can deliver a signal when it ends: one that a signal made.
    delivers: bool,
    /// Somebody works on it: it does not go on with all the others.
    pinned: bool,
    /// Signals that came while it was needed for something else, to be delivered when it goes on.
    kept: Vec<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    Stands,
    /// Stopped by job control: stays so.
    Listens,
    /// Asked to stop, while it is in the kernel for longer, such as for a page of ours: it stops before it is in user mode again.
    Waits,
}

/// Looks at a thread that was asked to stop, between two looks at where it waits.
const LOOKS: u32 = 64;
/// A thread that was asked to stop and has run for so long since is in the kernel: in user mode it would have stopped at once. The kernel's
/// access to a page of ours goes round like that, when the thread has something to do first.
const IN_KERNEL_NS: u64 = 2_000_000;

/// The threads of a process.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    pid: u32,
    held: BTreeMap<u32, Held>,
    /// Processes that it has forked, which are held too, and are not its threads.
    children: Vec<Tracee>,
}

/// Something that happened to a thread beside signals.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// Another program runs in the process.
    Exec,
    /// The process has no thread any more.
    Ended,
}

impl Threads {
    /// Holds every thread of process `pid`.
    ///
    /// # Errors
    /// Where this user may not, or a debugger holds one.
    pub(crate) fn seize(pid: u32) -> Result<Self> {
        let mut this = Self { pid, ..Self::default() };
        // A thread that is not held yet may start another one meanwhile.
        loop {
            let before = this.held.len();
            for thread in tasks(pid) {
                if this.held.contains_key(&thread) {
                    continue;
                }
                match Tracee::seize(thread) {
                    Ok(tracee) => this.hold(tracee, State::Runs),
                    // It ended between being listed and being held.
                    Err(fieldstone_sys::Error::NoSuchProcess { .. }) => {}
                    // It was started by one that is held: that one tells of it.
                    Err(_) if tracer_of(thread) == Some(std::process::id()) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if this.held.len() == before {
                return Ok(this);
            }
        }
    }

    fn hold(&mut self, tracee: Tracee, state: State) {
        self.held.insert(tracee.thread(), Held { tracee, state, delivers: false, pinned: false, kept: Vec::new() });
    }

    /// Their numbers.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.held.keys().copied()
    }

    /// One that stands still, in whose name something can be done.
    pub(crate) fn standing(&mut self) -> Option<&mut Held> {
        self.held.values_mut().find(|held| held.stands())
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
        // All are asked before one is waited for.
        for held in self.held.values_mut().filter(|held| held.state == State::Runs) {
            gone_is_fine(held.tracee.interrupt())?;
        }
        while let Some(thread) = self.held.iter().find(|(_, held)| held.state == State::Runs).map(|(&number, _)| number)
        {
            self.wait_for(thread)?;
        }
        Ok(())
    }

    /// Has one stand still until [`Self::resume`]; whether it is still there.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn stop(&mut self, thread: u32) -> Result<bool> {
        let Some(held) = self.held.get_mut(&thread) else { return Ok(false) };
        if held.state == State::Runs {
            gone_is_fine(held.tracee.interrupt())?;
            self.wait_for(thread)?;
        }
        let Some(held) = self.held.get_mut(&thread) else { return Ok(false) };
        held.pinned = held.stands();
        Ok(held.pinned)
    }

    /// Until it does not run any more.
    fn wait_for(&mut self, thread: u32) -> Result<()> {
        let (mut looked, mut begun_ns) = (0_u32, None);
        while let Some(held) = self.held.get_mut(&thread).filter(|held| held.state == State::Runs) {
            if let Some(stop) = held.tracee.try_wait()? {
                self.note(thread, stop)?;
                continue;
            }
            looked += 1;
            if looked.is_multiple_of(LOOKS) {
                let spent_ns = processor_ns(thread);
                let since_ns = spent_ns.saturating_sub(*begun_ns.get_or_insert(spent_ns));
                if sleeps_deeply(thread) || since_ns > IN_KERNEL_NS {
                    held.state = State::Waits;
                }
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Takes a stop in: the thread stands still then, or is gone.
    fn note(&mut self, thread: u32, stop: Stop) -> Result<Option<Happening>> {
        let Some(held) = self.held.get_mut(&thread) else { return Ok(None) };
        held.state = State::Stands;
        held.delivers = matches!(stop, Stop::Signal(_));
        match stop {
            Stop::Asked => {}
            Stop::Signal(signal) => held.kept.push(signal),
            Stop::Group => held.state = State::Listens,
            Stop::Cloned(new) | Stop::Forked(new) => {
                // It stands in the middle of its system call: nothing can be done in its name there.
                held.state = State::Runs;
                gone_is_fine(held.tracee.resume(0))?;
                self.adopt(new, matches!(stop, Stop::Cloned(_)))?;
            }
            // It had borrowed our memory (vfork) and has its own now, or all of the process is another program.
            Stop::Exec if thread != self.pid => drop(self.held.remove(&thread)),
            Stop::Exec => return Ok(Some(Happening::Exec)),
            Stop::Gone => {
                self.held.remove(&thread);
                return Ok(self.held.is_empty().then_some(Happening::Ended));
            }
        }
        Ok(None)
    }

    /// A new thread, or a child that runs in our memory, or one with a copy of it: it begins stopped.
    fn adopt(&mut self, new: u32, in_our_memory: bool) -> Result<()> {
        let mut tracee = Tracee::held(new);
        if tracee.wait()? == Stop::Gone {
            return Ok(());
        }
        if in_our_memory {
            self.hold(tracee, State::Stands);
        } else {
            self.children.push(tracee);
        }
        Ok(())
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
            State::Runs => return Ok(()),
            State::Listens => return gone_is_fine(held.tracee.listen()),
            State::Waits => {
                // It stops when it wakes, and `attend` lets it go on then.
                held.state = State::Runs;
                return Ok(());
            }
            State::Stands => {}
        }
        held.state = State::Runs;
        let mut kept = std::mem::take(&mut held.kept).into_iter();
        // One goes with the resumption; the rest are sent again, and come in their turn.
        let first = if held.delivers { kept.next().unwrap_or(0) } else { 0 };
        for signal in kept {
            gone_is_fine(held.tracee.send(signal))?;
        }
        gone_is_fine(held.tracee.resume(first))
    }

    /// Lets go of all.
    pub(crate) fn let_go(&mut self) {
        self.held.clear();
    }

    /// Looks after threads that have stopped by themselves. `before_signal` is called for each that a signal is about to be delivered
    /// to, while it stands still.
    ///
    /// # Errors
    /// As ptrace(2), and what `before_signal` says.
    pub(crate) fn attend(
        &mut self,
        before_signal: &mut dyn FnMut(&Tracee, &mut Registers) -> bool,
    ) -> Result<Option<Happening>> {
        let threads: Vec<u32> = self.numbers().collect();
        for thread in threads {
            let Some(held) = self.held.get_mut(&thread).filter(|held| held.state != State::Stands) else { continue };
            let Some(stop) = held.tracee.try_wait()? else { continue };
            let happening = self.note(thread, stop)?;
            if happening.is_some() {
                return Ok(happening);
            }
            if let (Stop::Signal(_), Some(held)) = (stop, self.held.get_mut(&thread)) {
                let mut registers = held.tracee.registers()?;
                if before_signal(&held.tracee, &mut registers) {
                    held.tracee.set_registers(&registers)?;
                }
            }
            self.resume(thread)?;
            if let Stop::Cloned(new) = stop {
                self.resume(new)?;
            }
        }
        Ok(None)
    }
}

impl Held {
    /// Whether it stands still, so that its registers can be read.
    #[must_use]
    pub(crate) fn stands(&self) -> bool {
        self.state == State::Stands
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

    /// Does one instruction; whether it has done it, and neither stopped for a signal before it nor waits for a page of ours.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn step(&mut self) -> Result<bool> {
        self.tracee.step()?;
        let mut looks = 0_u32;
        let stop = loop {
            if let Some(stop) = self.tracee.try_wait()? {
                break stop;
            }
            looks += 1;
            if looks == LOOKS * LOOKS {
                gone_is_fine(self.tracee.interrupt())?;
            }
            std::thread::yield_now();
        };
        self.delivers = matches!(stop, Stop::Signal(_));
        match stop {
            Stop::Signal(libc::SIGTRAP) => Ok(true),
            Stop::Signal(signal) => {
                self.kept.push(signal);
                Ok(false)
            }
            _ => Ok(false),
        }
    }
}

/// Whether a thread sleeps in the kernel where no signal wakes it, as the kernel's own access to a page of a userfaultfd does. It stops
/// before it is in user mode again.
fn sleeps_deeply(thread: u32) -> bool {
    process::stat(thread).is_ok_and(|stat| stat.state == process::State::DiskSleep)
}

/// Processor time that a thread has had, in nanoseconds.
fn processor_ns(thread: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The number of the system call that a thread is in; none where it faulted in user mode, or runs.
#[must_use]
pub(crate) fn in_system_call(thread: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Who traces a thread.
fn tracer_of(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
}

fn tasks(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A thread that ended is found so at the next wait.
fn gone_is_fine(result: fieldstone_sys::Result<()>) -> Result<()> {
    match result {
        Err(fieldstone_sys::Error::NoSuchProcess { .. }) => Ok(()),
        other => other.map_err(Into::into),
    }
}
