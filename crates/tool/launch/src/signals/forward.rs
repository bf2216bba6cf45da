//! Passing signals on, so that each reaches the program exactly as often as without us.
//!
//! ```text
//!   to the group (terminal, kill -- -PGID)   the program has it         nothing to do
//!   to each process (a control group's end)  the program has it         nothing to do
//!   to this process only (kill PID)          the program lacks it       passed on after [`PATIENCE`]
//! ```
//! All signals that can be passed on are blocked here and wait. Of each one, the [`Witness`] is asked first and our own is taken then:
//! a second one that comes between the two merges with the first, as it would in a program that has not yet run its handler.
//! What the witness lacks is undecided for [`PATIENCE`]: a service manager sends to one process after the other, and timeout(1) to its
//! child and then to the group. One to the group that comes meanwhile stands for both.
//!
//! The witness has the program's command line, so that `pkill -f` finds it where it finds the program, and only there.
//!
//! A program that is stopped stops this process by the same signal, so that a shell sees it; SIGCONT reaches both, by the group or
//! passed on.

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

use super::{ENDING, heeded, send_group};
use crate::error::{Error, Result};
use crate::launch::{Running, Treatment, Wiring, launch};
use crate::program::Program;

/// How long after this process another one may get the same signal from a sender that goes through a list.
const PATIENCE: Duration = Duration::from_millis(10);
/// Members of a group have a signal to it within this time.
const ONE_CALL: Duration = Duration::from_millis(1);

/// What a user, a terminal or a service manager sends. Not among them: what the kernel sends for a fault or a limit of the process
/// itself, and SIGCHLD.
const PASSED_ON: [i32; 17] = [
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

/// Passes signals on to a program that runs in the foreground.
#[derive(Debug)]
pub struct Forward {
    signals: Vec<i32>,
    pending: OwnedFd,
    /// `None` where there can be no more processes: then what the kernel sent is taken for sent to the group.
    witness: Option<Witness>,
    /// Set when a signal comes that asks a program to end.
    ending: Option<Arc<AtomicBool>>,
}

impl Forward {
    /// Takes over the signals that a user or a service manager sends. To be called before the program is started, so
    /// that none is lost, and before the first thread. What our own parent had us ignore (nohup) stays ignored, by the program too.
    ///
    /// # Errors
    /// [`Error::Linux`] where the kernel refuses.
    pub fn prepare() -> Result<Self> {
        Self::prepare_with(Witness::start)
    }

    /// The same. Should this process be killed while the program runs, `heir` is called with the program's number in a process that is
    /// left. It must not allocate.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    #[cfg(target_arch = "x86_64")]
    pub fn prepare_with_heir(heir: fn(u32)) -> Result<Self> {
        Self::prepare_with(|| Witness::start_with_cleanup(heir))
    }

    fn prepare_with(witness: impl FnOnce() -> fieldstone_sys::Result<Witness>) -> Result<Self> {
        let signals = heeded(&PASSED_ON.into_iter().chain(real_time()).collect::<Vec<_>>());
        block(&signals)?;
        let pending = signal_fd(&signals)?;
        Ok(Self { signals, pending, witness: witness().ok(), ending: None })
    }

    /// The same; sets `ending` when a signal comes that asks a program to end.
    #[must_use]
    pub fn noting(self, ending: &Arc<AtomicBool>) -> Self {
        Self { ending: Some(Arc::clone(ending)), ..self }
    }

    /// Starts `program` in the foreground. What came before that is passed on to it: it missed that. What comes from now on waits for
    /// [`Self::until_end`].
    pub fn launch(&mut self, program: &Program, treatment: &Treatment) -> Result<Running> {
        let mut missed = Vec::new();
        for &signal in self.signals.iter().filter(|&&signal| is_pending(signal)) {
            let _ = self.witness.as_mut().map(|witness| witness.has_received(signal));
            missed.extend(take(signal));
        }
        let running = launch(program, treatment, Wiring::inherited())?;
        let pid = running.child.id();
        missed.iter().for_each(|taken| forward(taken, pid));
        if let Some(witness) = &mut self.witness {
            witness.set_cleanup_target(pid);
            witness.copy_command_line(pid);
        }
        Ok(running)
    }

    /// Waits for process `pid` to end, and passes on what is sent to us meanwhile.
    pub fn until_end(self, pid: u32) -> Result<ExitStatus> {
        let over =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| Error::system("wait for signals")(errno.into()))?;
        let witness = Arc::new(Mutex::new(self.witness));
        let mut passing = Passing {
            pid,
            leads: is_leader(),
            signals: self.signals,
            witness_pid: lock(&witness).as_ref().map(Witness::pid),
            witness: Arc::clone(&witness),
            ending: self.ending,
            undecided: Vec::new(),
            unsettled: Vec::new(),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| passing.follow(&self.pending, &over));
            let ended = wait(pid, &witness);
            // Any number wakes the thread.
            let _ = rustix::io::write(&over, &1_u64.to_le_bytes());
            ended
        })
    }
}

/// Waits for the program's end. While it is stopped, so is this process.
fn wait(pid: u32, witness: &Mutex<Option<Witness>>) -> Result<ExitStatus> {
    loop {
        match wait_change(pid)? {
            ChildChange::Ended(ended) => return Ok(ended.status),
            ChildChange::Stopped(signal) => {
                // A shell that is about to continue it must not see this process stop after that.
                sleep(PATIENCE);
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

/// Whether this process leads its group, as the program would without us.
fn is_leader() -> bool {
    stat(std::process::id()).is_ok_and(|own| own.pgrp == own.pid)
}

/// The thread that passes on.
struct Passing {
    pid: u32,
    leads: bool,
    signals: Vec<i32>,
    witness: Arc<Mutex<Option<Witness>>>,
    witness_pid: Option<u32>,
    ending: Option<Arc<AtomicBool>>,
    /// Those that the witness lacked, and when they are passed on.
    undecided: Vec<(Instant, ReceivedSignal)>,
    /// Those that the witness had, and when it is asked whether it has another one that merged with ours.
    unsettled: Vec<(Instant, i32)>,
}

impl Passing {
    fn follow(&mut self, pending: &OwnedFd, over: &OwnedFd) {
        loop {
            let next = self.undecided.iter().map(|of| of.0).chain(self.unsettled.iter().map(|of| of.0)).min();
            let left = next.map(|at| at.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut sources = [PollFd::new(pending, PollFlags::IN), PollFd::new(over, PollFlags::IN)];
            let _ = poll(&mut sources, left.as_ref());
            if !sources[1].revents().is_empty() {
                return;
            }
            for signal in self.signals.clone() {
                if is_pending(signal) {
                    self.receive(signal);
                }
            }
            self.decide();
            self.settle();
        }
    }

    fn receive(&mut self, signal: i32) {
        let witnessed = self.witness_has(signal);
        let Some(taken) = take(signal) else { return };
        // The witness continues us where the program was continued; and we stop ourselves.
        if taken.sender.is_some_and(|sender| Some(sender) == self.witness_pid || sender == std::process::id()) {
            return;
        }
        if ENDING.contains(&signal) {
            self.ending.iter().for_each(|ending| ending.store(true, SeqCst));
        }
        let now = Instant::now();
        if witnessed.unwrap_or(taken.sender.is_none()) {
            // Real-time signals do not merge.
            if !real_time().contains(&signal) {
                self.undecided.retain(|(_, earlier)| earlier.signal != signal);
                self.unsettled.push((now + PATIENCE, signal));
            }
            self.pass_to_another_group(&taken);
        } else {
            self.undecided.push((now + PATIENCE, taken));
        }
    }

    fn witness_has(&self, signal: i32) -> Option<bool> {
        lock(&self.witness).as_mut().and_then(|witness| witness.has_received(signal))
    }

    /// Passes on what the witness still lacks.
    fn decide(&mut self) {
        for (_, taken) in take_due(&mut self.undecided) {
            if self.witness_has(taken.signal) != Some(true) {
                self.pass(&taken);
            }
        }
    }

    /// Has the witness forget what merged with an earlier one here: it would stand for one to this process later.
    fn settle(&mut self) {
        for (_, signal) in take_due(&mut self.unsettled) {
            if self.witness_has(signal) == Some(true) {
                // Or it has just come, to us too.
                sleep(ONE_CALL);
                take(signal).inspect(|taken| self.pass_to_another_group(taken));
            }
        }
    }

    fn pass(&self, taken: &ReceivedSignal) {
        forward(taken, self.pid);
    }

    /// A program that we lead the group of would lead it itself without us, and could not leave it by setpgid(2).
    fn pass_to_another_group(&self, taken: &ReceivedSignal) {
        let Ok(program) = stat(self.pid) else { return };
        let has_left = self.leads && stat(std::process::id()).is_ok_and(|own| own.pgrp != program.pgrp);
        match has_left {
            true if program.pgrp == self.pid => send_group(self.pid, taken.signal),
            true => self.pass(taken),
            false => {}
        }
    }
}

/// Takes out of `all` what is due.
fn take_due<T>(all: &mut Vec<(Instant, T)>) -> Vec<(Instant, T)> {
    let now = Instant::now();
    all.extract_if(.., |of| of.0 <= now).collect()
}
