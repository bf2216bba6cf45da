//! All traced threads of a process: stop and resume one or all of them.
//!
//! ```text
//!   seize         every thread of /proc/PID/task, repeated until no new one appears
//!                 (ptrace traces a new thread of a traced thread from its first instruction)
//!   stop_all      every thread is stopped in user mode or in a system call; its signals are stored
//!   resume_all    every thread continues with its signal; job-control stops stay in force
//! ```
//! A thread that exits stops before its end and waits for [`Threads::finish_exit`]. A signal for a
//! traced thread stops it first. [`Threads::handle_stops`] calls `before_signal`, then delivers it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fieldstone_sys::process::has_ended;
use fieldstone_sys::ptrace::{Stop, Tracee, share_memory};
use fieldstone_sys::scheduling;

use super::status::{
    cpu_time_ns, has_seccomp_filter, is_exiting, is_in_uninterruptible_sleep, is_kernel_worker, process_of, threads_of,
    traced_by, tracer_of,
};
use super::traced_thread::{ThreadState, TracedThread, is_64_bit};
use crate::error::{Result, ignore_gone};

/// Polls of a thread between two reads of its state in `/proc`.
const POLLS_PER_CHECK: u32 = 32;
/// A thread that has used this much processor time since its stop was requested is in the kernel,
/// since a thread in user mode stops at once. A kernel access to a missing page spins like this
/// while other work is pending for the thread. A virtual processor that the host does not run looks
/// the same, usually for a few milliseconds.
const IN_KERNEL_NS: u64 = 10_000_000;
/// The same limit at seizure, where no thread waits for us yet and the thread may be creating
/// another one.
const IN_KERNEL_FIRST_NS: u64 = 10 * IN_KERNEL_NS;

/// How long to wait for a killed tracer to release its tracees.
const LONGEST_TRACER_EXIT: Duration = Duration::from_secs(5);
/// Calls of `handle_stops` between two searches for unreported threads.
const ROUNDS_PER_SEARCH: u32 = 16;

/// The traced threads of one process.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    pid: u32,
    threads: BTreeMap<u32, TracedThread>,
    /// Calls of [`Self::handle_stops`], modulo [`ROUNDS_PER_SEARCH`].
    rounds: u32,
    /// Forked child processes, which are traced and stopped, and are not threads of the process.
    children: Vec<Tracee>,
    /// The end of the process, until `handle_stops` has reported it.
    end: Option<ProcessEnd>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// It executes another program.
    Exec,
    /// It has no thread any more.
    Exited,
}

impl Threads {
    /// Traces every thread of process `pid`. All are stopped on return.
    ///
    /// # Errors
    /// If this user may not trace it, or another tracer does.
    pub(crate) fn seize(pid: u32) -> Result<Self> {
        let mut this = Self::default();
        this.pid = pid;
        // Both an untraced thread and a traced one may create a thread meanwhile. A traced thread
        // does not report a creation that had begun before. Such a thread is listed once its
        // creator is stopped.
        loop {
            let before = this.threads.len();
            for thread in threads_of(pid) {
                // Kernel workers never run in user mode.
                if !this.threads.contains_key(&thread) && !is_kernel_worker(thread) {
                    this.seize_one(thread)?;
                }
            }
            if this.threads.len() == before {
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
                    self.threads.insert(thread, TracedThread::new(tracee, ThreadState::Running));
                    return Ok(());
                }
                Err(error) => error,
            };
            // It exited after it was listed, or it is a first thread that remains listed until all
            // others have exited.
            if matches!(error, fieldstone_sys::Error::NoSuchProcess { .. }) || has_ended(thread) {
                return Ok(());
            }
            match tracer_of(thread) {
                // A traced thread has created it: ptrace reports it later.
                Some(tracer) if tracer == rustix::thread::gettid().as_raw_pid().cast_unsigned() => return Ok(()),
                // A killed tracer keeps its tracees until the end of its exit.
                Some(tracer) if is_exiting(tracer) && begun.elapsed() < LONGEST_TRACER_EXIT => std::thread::yield_now(),
                Some(tracer) => return Err(traced_by(self.pid, tracer)),
                // Its tracer may have detached since.
                None if !was_free => was_free = true,
                None => return Err(error.into()),
            }
        }
    }

    /// Their thread numbers.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.threads.keys().copied()
    }

    /// A stopped thread that can make an injected call. Threads without pending signals come first,
    /// threads stopped by job control last. `is_unfit` judges a thread's instruction pointer.
    pub(crate) fn callable(&mut self, is_unfit: &dyn Fn(u64) -> bool) -> Option<&mut TracedThread> {
        let is_over = self.is_over();
        let can = |traced: &&mut TracedThread| traced.is_stopped() && !traced.is_other_process && !is_over;
        let mut able: Vec<&mut TracedThread> = self.threads.values_mut().filter(can).collect();
        // If the first thread is killed, the kernel reports its exit only after all others: waiting
        // for it takes long.
        let pid = self.pid;
        able.sort_by_key(|traced| {
            (traced.state == ThreadState::JobStopped, traced.tracee.thread() == pid, traced.has_signals())
        });
        let is_fit = |traced: &&mut TracedThread| {
            let can = |registers| is_64_bit(&registers) && !is_unfit(registers.rip);
            !has_seccomp_filter(traced.tracee.thread())
                && !traced.tracee.has_syscall_dispatch()
                && traced.tracee.registers().is_ok_and(can)
        };
        able.into_iter().find(is_fit)
    }

    /// Whether the process has ended or executes another program. No operation is possible then.
    pub(crate) const fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// A traced thread, or `None` if it is gone.
    pub(crate) fn get_mut(&mut self, thread: u32) -> Option<&mut TracedThread> {
        self.threads.get_mut(&thread)
    }

    /// Stops all threads: none is in user mode on return. A thread in uninterruptible sleep, for
    /// example at a missing page, stops when it wakes.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn stop_all(&mut self) -> Result<()> {
        self.stop_all_within(IN_KERNEL_NS)
    }

    fn stop_all_within(&mut self, in_kernel_ns: u64) -> Result<()> {
        // Interrupt all before waiting for the first.
        for traced in self.threads.values_mut().filter(|traced| traced.must_interrupt()) {
            ignore_gone(traced.tracee.interrupt())?;
        }
        while let Some(thread) =
            self.threads.iter().find(|(_, traced)| traced.must_interrupt()).map(|(&number, _)| number)
        {
            self.wait_for(thread, in_kernel_ns)?;
        }
        Ok(())
    }

    /// Stops one thread until [`Self::resume`]; returns whether it is stopped.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn stop(&mut self, thread: u32) -> Result<bool> {
        let Some(traced) = self.threads.get_mut(&thread) else { return Ok(false) };
        if traced.must_interrupt() {
            ignore_gone(traced.tracee.interrupt())?;
            self.wait_for(thread, IN_KERNEL_NS)?;
        }
        let Some(traced) = self.threads.get_mut(&thread) else { return Ok(false) };
        traced.is_reserved = traced.is_stopped();
        Ok(traced.is_reserved)
    }

    /// Requests a stop of a thread that is known to wait for a missing page in a system call,
    /// without waiting for the stop.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn request_stop(&mut self, thread: u32) -> Result<()> {
        let Some(traced) = self.threads.get_mut(&thread).filter(|traced| traced.must_interrupt()) else {
            return Ok(());
        };
        (traced.state, traced.is_in_call) = (ThreadState::StopPending, true);
        ignore_gone(traced.tracee.interrupt())
    }

    /// Polls a thread whose stop was requested; returns whether it is still in the kernel.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn poll_stop(&mut self, thread: u32) -> Result<bool> {
        let waits =
            |this: &Self| this.threads.get(&thread).is_some_and(|traced| traced.state == ThreadState::StopPending);
        if waits(self)
            && let Some(traced) = self.threads.get_mut(&thread)
            && let Some(stop) = traced.tracee.try_wait()?
        {
            self.record_stop(thread, stop)?;
        }
        Ok(waits(self))
    }

    /// Waits until a thread is stopped, or has run in the kernel for `in_kernel_ns`.
    fn wait_for(&mut self, thread: u32, in_kernel_ns: u64) -> Result<()> {
        let (mut polls, mut begun_ns) = (0_u32, None);
        while let Some(traced) = self.threads.get_mut(&thread).filter(|traced| traced.must_interrupt()) {
            if let Some(stop) = traced.tracee.try_wait()? {
                self.record_stop(thread, stop)?;
                // Its stop reported a new thread. It resumed since, which cancelled the interrupt.
                if let Some(traced) = self.threads.get(&thread).filter(|traced| traced.must_interrupt()) {
                    ignore_gone(traced.tracee.interrupt())?;
                }
                continue;
            }
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_CHECK) {
                let spent_ns = cpu_time_ns(thread);
                let since_ns = spent_ns.saturating_sub(*begun_ns.get_or_insert(spent_ns));
                if is_in_uninterruptible_sleep(thread) || since_ns > in_kernel_ns || has_ended(thread) {
                    traced.state = ThreadState::StopPending;
                }
            }
            scheduling::spin_or_sleep(polls);
        }
        Ok(())
    }

    /// Records a stop: the thread is stopped or gone afterwards.
    fn record_stop(&mut self, thread: u32, stop: Stop) -> Result<()> {
        let Some(traced) = self.threads.get_mut(&thread) else { return Ok(()) };
        (traced.state, traced.is_in_call) = (ThreadState::Stopped, false);
        traced.delivers_signal = matches!(stop, Stop::Signal(_));
        match stop {
            Stop::Interrupted | Stop::Call => traced.restart_call()?,
            Stop::Signal(_) => traced.store_signal()?,
            Stop::Group => traced.state = ThreadState::JobStopped,
            Stop::Cloned(new) | Stop::Forked(new) => {
                // It is in the middle of its system call: no call can be injected there.
                traced.state = ThreadState::Running;
                ignore_gone(traced.tracee.resume(0))?;
                self.add_new(new, matches!(stop, Stop::Cloned(_)) || share_memory(thread, new))?;
            }
            // A vfork child has left the shared memory, or the whole process executes another
            // program.
            Stop::Exec if thread != self.pid => drop(self.threads.remove(&thread)),
            Stop::Exec => self.end = Some(ProcessEnd::Exec),
            Stop::Ending => traced.state = ThreadState::Exiting,
            Stop::Gone => {
                self.threads.remove(&thread);
                if self.threads.is_empty() {
                    self.end.get_or_insert(ProcessEnd::Exited);
                }
            }
        }
        Ok(())
    }

    /// Takes over a new thread, a child that shares the memory, or a child with a copy of it. It
    /// starts stopped.
    fn add_new(&mut self, new: u32, in_our_memory: bool) -> Result<()> {
        let mut tracee = Tracee::attached(new);
        let state = match tracee.wait()? {
            Stop::Gone => return Ok(()),
            Stop::Ending => ThreadState::Exiting,
            _ => ThreadState::Stopped,
        };
        if in_our_memory {
            let mut traced = TracedThread::new(tracee, state);
            traced.is_other_process = process_of(new) != Some(self.pid);
            self.threads.insert(new, traced);
        } else {
            self.children.push(tracee);
        }
        Ok(())
    }

    /// Threads whose stop was requested and that are in the kernel since.
    pub(crate) fn pending_stops(&self) -> Vec<u32> {
        self.in_state(ThreadState::StopPending)
    }

    fn in_state(&self, state: ThreadState) -> Vec<u32> {
        self.threads.iter().filter(|(_, traced)| traced.state == state).map(|(&thread, _)| thread).collect()
    }

    /// Number of children since the last [`Self::take_children`].
    pub(crate) const fn new_children(&self) -> usize {
        self.children.len()
    }

    /// The children forked since the last call; they are stopped.
    pub(crate) fn take_children(&mut self) -> Vec<Tracee> {
        std::mem::take(&mut self.children)
    }

    /// Resumes all threads with their signals, except those stopped by [`Self::stop`].
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn resume_all(&mut self) -> Result<()> {
        let threads: Vec<u32> =
            self.threads.iter().filter(|(_, traced)| !traced.is_reserved).map(|(&thread, _)| thread).collect();
        threads.into_iter().try_for_each(|thread| self.resume(thread))
    }

    /// Resumes one thread.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn resume(&mut self, thread: u32) -> Result<()> {
        let Some(traced) = self.threads.get_mut(&thread) else { return Ok(()) };
        traced.is_reserved = false;
        match traced.state {
            ThreadState::Running | ThreadState::Listening | ThreadState::Exiting => return Ok(()),
            ThreadState::JobStopped => {
                traced.state = ThreadState::Listening;
                return ignore_gone(traced.tracee.listen());
            }
            ThreadState::StopPending => {
                // It stops when it wakes; `handle_stops` resumes it then.
                traced.state = ThreadState::Running;
                return Ok(());
            }
            ThreadState::Stopped => {}
        }
        traced.state = ThreadState::Running;
        let signal = traced.next_signal()?;
        ignore_gone(traced.tracee.resume(signal))
    }

    /// Threads at their exit stop, which wait for `finish_exit`.
    pub(crate) fn exiting(&self) -> Vec<u32> {
        self.in_state(ThreadState::Exiting)
    }

    /// Lets one thread exit.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn finish_exit(&mut self, thread: u32) -> Result<()> {
        let Some(traced) = self.threads.get_mut(&thread) else { return Ok(()) };
        traced.state = ThreadState::Running;
        ignore_gone(traced.tracee.resume(0))
    }

    /// Detaches all threads. If the process has ended, its parent is notified only now.
    pub(crate) fn detach_all(&mut self) {
        let mut threads = std::mem::take(&mut self.threads);
        // The kernel reports the end of the first thread only after that of all others.
        let first = threads.remove(&self.pid);
        for mut traced in threads.into_values().chain(first) {
            if has_ended(traced.tracee.thread()) {
                let _ = traced.tracee.try_wait();
                // The first thread may have exited long before the others. It no longer stops, and
                // needs no detach.
                std::mem::forget(traced);
            } else {
                traced.detach();
            }
        }
    }

    /// Handles the threads that have stopped by themselves. It calls `before_signal` for each
    /// stopped thread that is about to receive a signal.
    ///
    /// # Errors
    /// As ptrace(2), and those of `before_signal`.
    pub(crate) fn handle_stops(
        &mut self,
        before_signal: &mut dyn FnMut(&mut TracedThread) -> Result<()>,
    ) -> Result<Option<ProcessEnd>> {
        let threads: Vec<u32> = self.numbers().collect();
        for thread in threads {
            // SIGKILL also ends a stopped thread.
            let Some(traced) = self.threads.get_mut(&thread) else { continue };
            let Some(stop) = traced.tracee.try_wait()? else { continue };
            self.record_stop(thread, stop)?;
            if self.is_over() {
                break;
            }
            if let Some(traced) =
                self.threads.get_mut(&thread).filter(|traced| traced.is_stopped() && traced.has_signals())
            {
                before_signal(traced)?;
            }
            self.resume(thread)?;
            if let Stop::Cloned(new) | Stop::Forked(new) = stop {
                self.resume(new)?;
            }
        }
        self.rounds = (self.rounds + 1) % ROUNDS_PER_SEARCH;
        if self.rounds == 0 && has_ended(self.pid) {
            self.reap_unreported();
        }
        Ok(self.end.take())
    }

    /// Reaps threads that ptrace traces but never reported: their creators were killed while
    /// creating them. The process ends only after they are reaped.
    fn reap_unreported(&self) {
        let unknown = |thread: &u32| !self.threads.contains_key(thread);
        for thread in threads_of(self.pid).into_iter().filter(unknown) {
            let mut tracee = Tracee::attached(thread);
            if has_ended(thread) {
                let _ = tracee.try_wait();
            } else if tracee.is_ending() {
                tracee.detach_with_signal(0);
            } else {
                // ptrace reports it next.
                std::mem::forget(tracee);
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.detach_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn the_parent_sees_the_end_although_the_tracer_lives_on() {
        let mut shell = Command::new("sh");
        let script = "sleep 100 >&- 2>&- & echo $!; wait $!; echo $?";
        let mut shell = shell.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let pid: u32 = lines.next().unwrap().unwrap().parse().unwrap();
        let mut threads = Threads::seize(pid).unwrap();
        threads.resume_all().unwrap();
        assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
        while threads.exiting().is_empty() {
            assert_eq!(threads.handle_stops(&mut |_| Ok(())).unwrap(), None);
        }
        threads.finish_exit(pid).unwrap();
        while !has_ended(pid) {
            std::thread::yield_now();
        }
        drop(threads);
        let (sender, receiver) = channel();
        std::thread::spawn(move || sender.send(lines.next().unwrap().unwrap()));
        let status = receiver.recv_timeout(Duration::from_secs(30));
        assert_eq!(status.as_deref(), Ok("137"), "the shell waits for a process that has ended");
        assert!(shell.wait().unwrap().success());
    }
}
