//! Forwards signals so that each one reaches the program exactly as often as without this process.
//!
//! ```text
//!   sent to                                   the program     action
//!   the group (terminal, kill -- -PGID)       received it     none
//!   each process (stop of a control group)    received it     none
//!   this process only (kill PID)              did not         forwarded after GRACE_PERIOD
//! ```
//! The [`Witness`] is a process of the same group. It shows whether a signal was sent to the group.
//!
//! 1. All signals that can be forwarded are blocked in this process and stay pending.
//! 2. For each pending signal, the thread first asks the witness, then takes the signal here. A
//!    second signal between these two steps merges with the first, as in any program before its
//!    handler runs.
//! 3. If the witness did not receive the signal, the thread waits for [`GRACE_PERIOD`]. A service
//!    manager signals one process after the other, and timeout(1) signals its child before the
//!    group.
//! 4. If the witness has still not received it, the thread forwards the signal.
//!
//! The witness has the program's command line, so that `pkill -f` matches both or neither.
//!
//! When the program stops, this process stops by the same signal, so that a shell notices it.
//! SIGCONT reaches both, through the group or by forwarding.

use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fieldstone_sys::process::{ChildChange, State, stat, wait_change};
use fieldstone_sys::signals::{ReceivedSignal, block, forward, is_pending, real_time, signal_fd, stop_by, take};
use fieldstone_sys::witness::Witness;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{TERMINATION_SIGNALS, send_group, without_ignored};
use crate::error::{Error, Result};
use crate::launch::{ChildOptions, RunningProgram, Treatment, launch};
use crate::program::Program;

/// Time within which a sender that signals processes one by one has signalled all of them.
const GRACE_PERIOD: Duration = Duration::from_millis(10);
/// Time within which one call of kill(2) has signalled all members of a group.
const GROUP_DELIVERY: Duration = Duration::from_millis(1);

/// Signals that users, terminals and service managers send. Excluded are SIGCHLD, and those that
/// the kernel sends for a fault or a limit of the receiving process.
const FORWARDED: [i32; 17] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGABRT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGURG,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGWINCH,
    libc::SIGPWR,
];

/// Forwards signals to a program that runs in the foreground.
#[derive(Debug)]
pub struct SignalForwarder {
    signals: Vec<i32>,
    pending: OwnedFd,
    /// `None` if no more processes can be created. Then a signal without a sender (sent by the
    /// kernel) counts as sent to the group.
    witness: Option<Witness>,
    /// Set when a signal arrives that asks a program to end.
    ending: Option<Arc<AtomicBool>>,
}

impl SignalForwarder {
    /// Blocks the signals to forward. Call it before the first thread and before the program
    /// starts, so that no signal is lost. Signals that were ignored at the start (nohup) stay
    /// ignored, here and in the program.
    ///
    /// # Errors
    /// [`Error::Linux`] if the kernel refuses.
    pub fn prepare() -> Result<Self> {
        Self::prepare_with(Witness::start)
    }

    /// Like [`Self::prepare`]. If this process is killed while the program runs, another process
    /// calls `on_death` with the program's process number. `on_death` must not allocate.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn prepare_with_death_handler(on_death: fn(u32)) -> Result<Self> {
        Self::prepare_with(|| Witness::start_with_cleanup(on_death))
    }

    fn prepare_with(witness: impl FnOnce() -> fieldstone_sys::Result<Witness>) -> Result<Self> {
        let signals = without_ignored(&FORWARDED.into_iter().chain(real_time()).collect::<Vec<_>>());
        block(&signals)?;
        let pending = signal_fd(&signals)?;
        Ok(Self { signals, pending, witness: witness().ok(), ending: None })
    }

    /// Sets `ending` when a signal arrives that asks a program to end.
    #[must_use]
    pub fn with_ending_flag(self, ending: &Arc<AtomicBool>) -> Self {
        Self { ending: Some(Arc::clone(ending)), ..self }
    }

    /// Starts `program` in the foreground and forwards the signals that arrived before. Later
    /// signals stay pending until [`Self::wait_for_exit`].
    ///
    /// # Errors
    /// As [`crate::launch::launch`].
    pub fn launch(&mut self, program: &Program, treatment: &Treatment) -> Result<RunningProgram> {
        let mut missed = Vec::new();
        for &signal in self.signals.iter().filter(|&&signal| is_pending(signal)) {
            let _ = self.witness.as_mut().map(|witness| witness.has_received(signal));
            missed.extend(take(signal));
        }
        let running = launch(program, treatment, ChildOptions::inherited())?;
        let pid = running.child.id();
        missed.iter().for_each(|taken| forward(taken, pid));
        if let Some(witness) = &mut self.witness {
            witness.set_cleanup_target(pid);
            witness.copy_command_line(pid);
        }
        Ok(running)
    }

    /// Waits for process `pid` to end. Meanwhile forwards the signals sent to this process.
    ///
    /// # Errors
    /// [`Error::System`] and [`Error::Linux`] if a descriptor cannot be created or `pid` is no child.
    pub fn wait_for_exit(self, pid: u32) -> Result<ExitStatus> {
        let ended =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| Error::system("wait for signals")(errno.into()))?;
        let witness = Arc::new(Mutex::new(self.witness));
        let mut forwarding = ForwardingThread {
            pid,
            is_leader: is_leader(),
            signals: self.signals,
            witness_pid: lock(&witness).as_ref().map(Witness::pid),
            witness: Arc::clone(&witness),
            ending: self.ending,
            undecided: Vec::new(),
            received: Vec::new(),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| forwarding.run(&self.pending, &ended));
            let status = wait(pid, &witness);
            // Any value wakes the thread.
            let _ = rustix::io::write(&ended, &1_u64.to_le_bytes());
            status
        })
    }
}

/// Waits for the program's end. Stops this process while the program is stopped.
fn wait(pid: u32, witness: &Mutex<Option<Witness>>) -> Result<ExitStatus> {
    loop {
        match wait_change(pid)? {
            ChildChange::Ended(ended) => return Ok(ended.status),
            ChildChange::Stopped(signal) => {
                // A shell may be about to continue the program: this process must not stop after
                // that.
                sleep(GRACE_PERIOD);
                if !stat(pid).is_ok_and(|program| program.state == State::Stopped) {
                    continue;
                }
                let Some(()) = lock(witness).as_mut().map(|witness| witness.resume_with(pid)) else { continue };
                stop_by(signal);
                lock(witness).as_mut().map(Witness::stop_resuming);
            }
        }
    }
}

fn lock(witness: &Mutex<Option<Witness>>) -> std::sync::MutexGuard<'_, Option<Witness>> {
    witness.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process leads its process group.
fn is_leader() -> bool {
    stat(std::process::id()).is_ok_and(|own| own.pgrp == own.pid)
}

/// The state of the thread that forwards.
struct ForwardingThread {
    pid: u32,
    is_leader: bool,
    signals: Vec<i32>,
    witness: Arc<Mutex<Option<Witness>>>,
    witness_pid: Option<u32>,
    ending: Option<Arc<AtomicBool>>,
    /// Signals that the witness had not received, and when to decide on forwarding them.
    undecided: Vec<(Instant, ReceivedSignal)>,
    /// Signals that the witness had received, and when to ask it for a second one that merged here.
    received: Vec<(Instant, i32)>,
}

impl ForwardingThread {
    fn run(&mut self, pending: &OwnedFd, ended: &OwnedFd) {
        loop {
            let undecided = self.undecided.iter().map(|(due, _)| *due);
            let next = undecided.chain(self.received.iter().map(|(due, _)| *due)).min();
            let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            let mut sources = [PollFd::new(pending, PollFlags::IN), PollFd::new(ended, PollFlags::IN)];
            let _ = poll(&mut sources, timeout.as_ref());
            if !sources[1].revents().is_empty() {
                return;
            }
            for signal in self.signals.clone() {
                if is_pending(signal) {
                    self.receive(signal);
                }
            }
            self.forward_undecided();
            self.discard_merged();
        }
    }

    fn receive(&mut self, signal: i32) {
        let witnessed = self.witness_has(signal);
        let Some(taken) = take(signal) else { return };
        // The witness continues this process after the program was continued, and this process
        // stops itself. Such signals are not forwarded.
        if taken.sender.is_some_and(|sender| Some(sender) == self.witness_pid || sender == std::process::id()) {
            return;
        }
        if TERMINATION_SIGNALS.contains(&signal) {
            self.ending.iter().for_each(|ending| ending.store(true, SeqCst));
        }
        let now = Instant::now();
        if witnessed.unwrap_or(taken.sender.is_none()) {
            // Real-time signals do not merge.
            if !real_time().contains(&signal) {
                self.undecided.retain(|(_, earlier)| earlier.signal != signal);
                self.received.push((now + GRACE_PERIOD, signal));
            }
            self.forward_to_other_group(&taken);
        } else {
            self.undecided.push((now + GRACE_PERIOD, taken));
        }
    }

    fn witness_has(&self, signal: i32) -> Option<bool> {
        lock(&self.witness).as_mut().and_then(|witness| witness.has_received(signal))
    }

    /// Forwards the due signals that the witness has still not received.
    fn forward_undecided(&mut self) {
        for (_, taken) in take_due(&mut self.undecided) {
            if self.witness_has(taken.signal) != Some(true) {
                self.forward(&taken);
            }
        }
    }

    /// Takes a signal from the witness that merged with an earlier one here. If it stayed, it would
    /// wrongly suppress the forwarding of a later signal.
    fn discard_merged(&mut self) {
        for (_, signal) in take_due(&mut self.received) {
            if self.witness_has(signal) == Some(true) {
                // It may also be a new signal to the group, which is then about to arrive here.
                sleep(GROUP_DELIVERY);
                take(signal).inspect(|taken| self.forward_to_other_group(taken));
            }
        }
    }

    fn forward(&self, taken: &ReceivedSignal) {
        forward(taken, self.pid);
    }

    /// Forwards a signal to a program that left the group led by this process. Without this
    /// process, the program would lead the group, and setpgid(2) would not let it leave.
    fn forward_to_other_group(&self, taken: &ReceivedSignal) {
        let Ok(program) = stat(self.pid) else { return };
        let has_left = self.is_leader && stat(std::process::id()).is_ok_and(|own| own.pgrp != program.pgrp);
        match has_left {
            true if program.pgrp == self.pid => send_group(self.pid, taken.signal),
            true => self.forward(taken),
            false => {}
        }
    }
}

/// Removes the due entries from `all`.
fn take_due<T>(all: &mut Vec<(Instant, T)>) -> Vec<(Instant, T)> {
    let now = Instant::now();
    all.extract_if(.., |(due, _)| *due <= now).collect()
}
