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
use fieldstone_wire::{ProcessPhase, ProcessSlot};

use crate::attribution;
use crate::clock::processor_ns;
use crate::identity::{Identity, inner_pid};
use crate::look::look;
use crate::session::SharedSession;
use crate::sight::{Inspector, Sight, slot_of};

const FIRST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);

/// A thread that watches. Dropping it without [`Watch::finish`] ends it too.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    session: Option<Arc<SharedSession>>,
    thread: Option<JoinHandle<Sight>>,
}

impl Watch {
    /// Watches the tree below process `root`.
    #[must_use]
    pub fn start(root: u32, session: Option<Arc<SharedSession>>) -> Self {
        Self::inspected(root, session, None)
    }

    /// The same; `inspector` is called each time the pages of a process were read.
    #[must_use]
    pub fn inspected(root: u32, session: Option<Arc<SharedSession>>, inspector: Option<Inspector>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let watcher = Watcher {
            root,
            session: session.clone(),
            stop: Arc::clone(&stop),
            since: Instant::now(),
            attention: 0,
            sight: Sight::new(inspector),
        };
        Self { stop, session, thread: Some(spawn(|| watcher.follow())) }
    }

    /// Ends the watch; what was seen.
    #[must_use]
    pub fn finish(mut self) -> Sight {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Sight> {
        let thread = self.thread.take()?;
        self.stop.store(true, SeqCst);
        thread.thread().unpark();
        if let Some(session) = &self.session {
            session.call_attention();
        }
        // It ends: the thread was woken, and looks at `stop` after each step.
        thread.join().ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread's own state.
struct Watcher {
    root: u32,
    session: Option<Arc<SharedSession>>,
    stop: Arc<AtomicBool>,
    since: Instant,
    /// The session's count when it was last heeded.
    attention: u32,
    sight: Sight,
}

impl Watcher {
    fn follow(mut self) -> Sight {
        let mut interval = FIRST_INTERVAL;
        while !self.stop.load(SeqCst) {
            let (began, busy_ns) = (Instant::now(), processor_ns());
            for pid in self.tree() {
                self.look_at(pid, false);
            }
            interval = (interval + interval / 20).min(LONGEST_INTERVAL);
            let cost = Duration::from_nanos(processor_ns() - busy_ns);
            self.rest(began + interval.max(cost * 20));
        }
        self.sight
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
                self.see_off(&session);
            }
        }
    }

    fn see_off(&mut self, session: &SharedSession) {
        for slot in session.record().claimed_slots() {
            if slot.phase.load(SeqCst) == ProcessPhase::Leaving as u32 {
                if let Some(pid) = self.process_of(slot) {
                    self.look_at(pid, true);
                }
                session.release(&slot.phase);
            }
        }
    }

    /// Which process of ours a slot is of: it holds the number in the process's own pid namespace.
    fn process_of(&self, slot: &ProcessSlot) -> Option<u32> {
        let inner = slot.pid.load(SeqCst);
        self.sight.process_of(inner).or_else(|| self.tree().into_iter().find(|&pid| inner_pid(pid) == inner))
    }

    /// Looks at a process; with `last`, it is about to leave.
    fn look_at(&mut self, pid: u32, last: bool) {
        // A process that has ended between being listed and being looked at was seen before, or was too short-lived.
        let Ok(stat) = process::stat(pid) else { return };
        if !self.sight.knows(pid, &stat.comm) {
            self.sight.introduce(pid, Identity::of(pid, &stat.comm), stat.comm);
        }
        let session = self.session.as_deref();
        let slot = session.and_then(|session| slot_of(session, self.sight.inner_pid(pid)));
        let spans = slot.map_or_else(Vec::new, |slot| attribution::spans(pid, slot.spans.load(SeqCst)));
        let Ok(mut now) = look(pid, &slot.map_or(0..0, region_of), &spans) else { return };
        let unused = slot.map_or(0, |slot| slot.reserve_left_bytes.load(SeqCst));
        now.mapped_bytes = now.mapped_bytes.saturating_sub(unused);
        if now.point.resident_bytes > 0 {
            now.point.t_s = self.since.elapsed().as_secs_f64();
            self.sight.note(pid, now, last);
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
        let watch = Watch::start(shell.id(), None);
        let seen = |watch: &Watch| {
            process::descendants(shell.id()).is_ok_and(|below| !below.is_empty()) && watch.thread.is_some()
        };
        while !seen(&watch) {
            std::thread::yield_now();
        }
        std::thread::sleep(LONGEST_INTERVAL);
        let sight = watch.finish();
        let below = process::descendants(shell.id()).unwrap();
        assert!(below.iter().all(|&pid| sight.peak_bytes(pid) > 0), "the child is seen");
        assert!(sight.peak_bytes(shell.id()) > 0);
        assert_eq!(sight.primary(Some("no-such-name")), None);
        crate::signals::send(below[0], libc::SIGKILL);
        shell.wait().unwrap();
    }
}
