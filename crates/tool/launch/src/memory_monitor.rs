//! Watching a program and its children while they run: memory over time, and the last look before each leaves.
//!
//! A thread looks at every process of the tree, first often, then at longer intervals, so that looking never takes
//! more than a twentieth of a processor. A process with an agent that leaves by `exit` waits (half a second at most)
//! until it was looked at; one that is killed is known by the look before.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::{Duration, Instant};

use fieldstone_sys::process;
use fieldstone_wire::{Phase, ProcessSlot};

use crate::attribution;
use crate::clock::thread_cpu_ns;
use crate::identity::{Identity, inner_pid};
use crate::memory_snapshot::take_snapshot;
use crate::session::SharedSession;
use crate::memory_history::{PageReadCallback, MemoryHistory, slot_of};

const FIRST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);

/// A thread that watches. Dropping it without [`MemoryMonitor::finish`] ends it too.
#[derive(Debug)]
pub struct MemoryMonitor {
    stop: Arc<AtomicBool>,
    session: Option<Arc<SharedSession>>,
    thread: Option<JoinHandle<MemoryHistory>>,
}

impl MemoryMonitor {
    /// Watches the tree below process `root`.
    #[must_use]
    pub fn start(root: u32, session: Option<Arc<SharedSession>>) -> Self {
        Self::start_with_callback(root, session, None)
    }

    /// The same; `callback` is called each time the pages of a process were read.
    #[must_use]
    pub fn start_with_callback(root: u32, session: Option<Arc<SharedSession>>, callback: Option<PageReadCallback>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let watcher = MonitorThread {
            root,
            session: session.clone(),
            stop: Arc::clone(&stop),
            since: Instant::now(),
            attention: 0,
            history: MemoryHistory::new(callback),
        };
        Self { stop, session, thread: Some(spawn(|| watcher.follow())) }
    }

    /// Ends the watch; what was seen.
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
        // It ends: the thread was woken, and looks at `stop` after each step.
        thread.join().ok()
    }
}

impl Drop for MemoryMonitor {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread's own state.
struct MonitorThread {
    root: u32,
    session: Option<Arc<SharedSession>>,
    stop: Arc<AtomicBool>,
    since: Instant,
    /// The session's count when it was last without_ignored.
    attention: u32,
    history: MemoryHistory,
}

impl MonitorThread {
    fn follow(mut self) -> MemoryHistory {
        let mut interval = FIRST_INTERVAL;
        while !self.stop.load(SeqCst) {
            let (began, busy_ns) = (Instant::now(), thread_cpu_ns());
            for pid in self.tree() {
                self.sample(pid, false);
            }
            interval = (interval + interval / 20).min(LONGEST_INTERVAL);
            let cost = Duration::from_nanos(thread_cpu_ns() - busy_ns);
            self.rest(began + interval.max(cost * 20));
        }
        self.history
    }

    /// The processes below the root, and itself.
    fn tree(&self) -> Vec<u32> {
        let mut pids = process::descendants(self.root).unwrap_or_default();
        pids.push(self.root);
        pids
    }

    /// Waits until `until`, and meanwhile looks at each process that leaves.
    fn rest(&mut self, until: Instant) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stop.load(SeqCst) {
                return;
            }
            let Some(session) = self.session.clone() else {
                park_timeout(left);
                continue;
            };
            let now = session.wait(self.attention, left);
            if now != self.attention {
                self.attention = now;
                self.sample_leaving(&session);
            }
        }
    }

    fn sample_leaving(&mut self, session: &SharedSession) {
        for slot in session.record().claimed_slots() {
            if slot.phase.load(SeqCst) == Phase::Leaving as u32 {
                if let Some(pid) = self.pid_of_slot(slot) {
                    self.sample(pid, true);
                }
                session.release(&slot.phase);
            }
        }
    }

    /// Which process of ours a slot is of: it holds the number in the process's own pid namespace.
    fn pid_of_slot(&self, slot: &ProcessSlot) -> Option<u32> {
        let inner = slot.pid.load(SeqCst);
        self.history.pid_of_inner(inner).or_else(|| self.tree().into_iter().find(|&pid| inner_pid(pid) == inner))
    }

    /// Looks at a process; with `last`, it is about to leave.
    fn sample(&mut self, pid: u32, last: bool) {
        // A process that has ended between being listed and being looked at was seen before, or was too short-lived.
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
    fn a_watch_sees_a_tree_and_ends_when_told() {
        let mut shell = Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        let watch = MemoryMonitor::start(shell.id(), None);
        let seen = |watch: &MemoryMonitor| {
            process::descendants(shell.id()).is_ok_and(|below| !below.is_empty()) && watch.thread.is_some()
        };
        while !seen(&watch) {
            std::thread::yield_now();
        }
        std::thread::sleep(LONGEST_INTERVAL);
        let history = watch.finish();
        let below = process::descendants(shell.id()).unwrap();
        assert!(below.iter().all(|&pid| history.peak_bytes(pid) > 0), "the child is seen");
        assert!(history.peak_bytes(shell.id()) > 0);
        assert_eq!(history.primary(Some("no-such-name")), None);
        crate::signals::send(below[0], libc::SIGKILL);
        shell.wait().unwrap();
    }
}
