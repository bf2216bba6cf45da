//! Samples the memory of a process tree over time, and of each process before it exits.
//!
//! A thread samples every process of the tree, first every 10 ms, then at longer intervals. A
//! process with an agent that calls `exit` waits, at most half a second, until it has been sampled.
//! For a process that is killed, the previous sample is the last one. Cost: at most a twentieth of
//! a processor.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::{Duration, Instant};

use fieldstone_sys::process;
use fieldstone_wire::{ProcessPhase, ProcessSlot};

use crate::attribution;
use crate::clock::thread_cpu_ns;
use crate::identity::{Identity, inner_pid};
use crate::memory_history::{MemoryHistory, PageReadCallback, slot_of};
use crate::memory_snapshot::take_snapshot;
use crate::session::SharedSession;

const FIRST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);

/// The handle of the monitor thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct MemoryMonitor {
    stop: Arc<AtomicBool>,
    session: Option<Arc<SharedSession>>,
    thread: Option<JoinHandle<MemoryHistory>>,
}

impl MemoryMonitor {
    /// Monitors process `root` and its descendants.
    #[must_use]
    pub fn start(root: u32, session: Option<Arc<SharedSession>>) -> Self {
        Self::start_with_callback(root, session, None)
    }

    /// Like [`Self::start`], and calls `callback` after each reading of a process's pages.
    #[must_use]
    pub fn start_with_callback(
        root: u32,
        session: Option<Arc<SharedSession>>,
        callback: Option<PageReadCallback>,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let monitor = MonitorThread {
            root,
            session: session.clone(),
            stop: Arc::clone(&stop),
            since: Instant::now(),
            attention: 0,
            history: MemoryHistory::new(callback),
        };
        Self { stop, session, thread: Some(spawn(|| monitor.run())) }
    }

    /// Ends the thread and returns the samples.
    #[must_use]
    pub fn finish(mut self) -> MemoryHistory {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<MemoryHistory> {
        let thread = self.thread.take()?;
        self.stop.store(true, SeqCst);
        thread.thread().unpark();
        if let Some(session) = &self.session {
            session.wake_waiter();
        }
        // The thread was woken, and checks `stop` after each step.
        thread.join().ok()
    }
}

impl Drop for MemoryMonitor {
    fn drop(&mut self) {
        self.end();
    }
}

/// The state of the thread.
struct MonitorThread {
    root: u32,
    session: Option<Arc<SharedSession>>,
    stop: Arc<AtomicBool>,
    since: Instant,
    /// The session's `attention` counter at the last check.
    attention: u32,
    history: MemoryHistory,
}

impl MonitorThread {
    fn run(mut self) -> MemoryHistory {
        let mut interval = FIRST_INTERVAL;
        while !self.stop.load(SeqCst) {
            let (began, busy_ns) = (Instant::now(), thread_cpu_ns());
            for pid in self.tree() {
                self.sample(pid, false);
            }
            interval = (interval + interval / 20).min(LONGEST_INTERVAL);
            let cost = Duration::from_nanos(thread_cpu_ns() - busy_ns);
            self.wait_until(began + interval.max(cost * 20));
        }
        self.history
    }

    /// The root and its descendants.
    fn tree(&self) -> Vec<u32> {
        let mut pids = process::descendants(self.root).unwrap_or_default();
        pids.push(self.root);
        pids
    }

    /// Waits until `until`. Meanwhile samples each process that exits.
    fn wait_until(&mut self, until: Instant) {
        loop {
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() || self.stop.load(SeqCst) {
                return;
            }
            let Some(session) = self.session.clone() else {
                park_timeout(remaining);
                continue;
            };
            let now = session.wait(self.attention, remaining);
            if now != self.attention {
                self.attention = now;
                self.sample_exiting(&session);
            }
        }
    }

    /// Samples each process that waits to exit, and releases it.
    fn sample_exiting(&mut self, session: &SharedSession) {
        for slot in session.record().claimed_slots() {
            if slot.phase.load(SeqCst) == ProcessPhase::Leaving as u32 {
                if let Some(pid) = self.pid_of_slot(slot) {
                    self.sample(pid, true);
                }
                session.release(&slot.phase);
            }
        }
    }

    /// The process of a slot. The slot contains the number in the process's own pid namespace.
    fn pid_of_slot(&self, slot: &ProcessSlot) -> Option<u32> {
        let inner = slot.pid.load(SeqCst);
        self.history.pid_of_inner(inner).or_else(|| self.tree().into_iter().find(|&pid| inner_pid(pid) == inner))
    }

    /// Samples a process. `last` means that the process is exiting.
    fn sample(&mut self, pid: u32, last: bool) {
        // The process ended after it was listed: its previous sample, if there is one, is the last.
        let Ok(stat) = process::stat(pid) else { return };
        if !self.history.is_known(pid, &stat.comm) {
            self.history.insert(pid, Identity::of(pid, &stat.comm), stat.comm);
        }
        let session = self.session.as_deref();
        let slot = session.and_then(|session| slot_of(session, self.history.inner_pid(pid)));
        let spans = slot.map_or_else(Vec::new, |slot| attribution::spans(pid, slot.spans.load(SeqCst)));
        let Ok(mut now) = take_snapshot(pid, &slot.map_or(0..0, region_of), &spans) else { return };
        let unused = slot.map_or(0, |slot| slot.reserve_left_bytes.load(SeqCst));
        now.mapped_bytes = now.mapped_bytes.saturating_sub(unused);
        if now.point.resident_bytes > 0 {
            now.point.t_s = self.since.elapsed().as_secs_f64();
            self.history.add_snapshot(pid, now, last);
        }
    }
}

fn region_of(slot: &ProcessSlot) -> Range<u64> {
    slot.base.load(SeqCst)..slot.limit.load(SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_monitor_samples_the_tree_and_ends_on_request() {
        let mut shell = Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        let monitor = MemoryMonitor::start(shell.id(), None);
        let has_child = |monitor: &MemoryMonitor| {
            process::descendants(shell.id()).is_ok_and(|below| !below.is_empty()) && monitor.thread.is_some()
        };
        while !has_child(&monitor) {
            std::thread::yield_now();
        }
        std::thread::sleep(LONGEST_INTERVAL);
        let history = monitor.finish();
        let below = process::descendants(shell.id()).unwrap();
        assert!(below.iter().all(|&pid| history.peak_bytes(pid) > 0), "the child is sampled");
        assert!(history.peak_bytes(shell.id()) > 0);
        assert_eq!(history.primary(Some("no-such-name")), None);
        crate::signals::send(below[0], libc::SIGKILL);
        shell.wait().unwrap();
    }
}
