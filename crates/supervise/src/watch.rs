//! Watching a program and its children while they run: memory over time, and the last look before each leaves.
//!
//! A thread looks at every process of the tree, first often, then at longer intervals, so that looking never takes
//! more than a twentieth of the time. A process with an agent that leaves by `exit` waits (half a second at most)
//! until it was looked at; one that is killed is known by the look before.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use fieldstone_report::{Footprint, FootprintPoint, Outside as OutsideCount, ProcessStats, RegionStats};
use fieldstone_sys::process;
use fieldstone_wire::{Dormant, Outside, Phase, ProcessSlot};

use crate::look::{Look, Pages, look};
use crate::session::SharedSession;

const FIRST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);
/// Points kept for a process; when they are reached, every other one goes.
const MOST_POINTS: usize = 600;

/// What was seen of one process.
#[derive(Debug, Default)]
struct Seen {
    parent: u32,
    name: String,
    points: Vec<FootprintPoint>,
    peak: Look,
    pages: Pages,
    /// Resident bytes when `pages` was read.
    pages_at_bytes: u64,
    mapped_peak_bytes: u64,
}

/// Everything that was seen of a program's processes.
#[derive(Debug, Default)]
pub struct Sight {
    processes: BTreeMap<u32, Seen>,
}

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
        let stop = Arc::new(AtomicBool::new(false));
        let (told, shared) = (Arc::clone(&stop), session.clone());
        let thread = spawn(move || {
            let mut sight = Sight::default();
            sight.follow(root, shared.as_deref(), &told);
            sight
        });
        Self { stop, session, thread: Some(thread) }
    }

    /// Ends the watch; what was seen.
    #[must_use]
    pub fn finish(mut self) -> Sight {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Sight> {
        self.stop.store(true, SeqCst);
        if let Some(session) = &self.session {
            session.call_attention();
        }
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

impl Sight {
    fn follow(&mut self, root: u32, session: Option<&SharedSession>, stop: &AtomicBool) {
        let since = Instant::now();
        let mut interval = FIRST_INTERVAL;
        let mut attention = 0;
        while !stop.load(SeqCst) {
            let began = Instant::now();
            let mut pids = process::descendants(root).unwrap_or_default();
            pids.push(root);
            for pid in pids {
                self.look_at(pid, session, since.elapsed());
            }
            interval = (interval + interval / 20).max(began.elapsed() * 20).min(LONGEST_INTERVAL);
            attention = self.rest(session, attention, began + interval, since);
        }
    }

    /// Waits until `until`, and meanwhile looks at each process that leaves.
    fn rest(&mut self, session: Option<&SharedSession>, mut attention: u32, until: Instant, since: Instant) -> u32 {
        let Some(session) = session else {
            sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(50)));
            return 0;
        };
        let now = session.wait(attention, until.saturating_duration_since(Instant::now()));
        if now != attention {
            attention = now;
            for slot in session.record().claimed_slots() {
                if slot.phase.load(SeqCst) == Phase::Leaving as u32 {
                    let pid = slot.pid.load(SeqCst);
                    self.look_at(pid, Some(session), since.elapsed());
                    self.read_pages(pid);
                    session.release(&slot.phase);
                }
            }
        }
        attention
    }

    fn look_at(&mut self, pid: u32, session: Option<&SharedSession>, t: Duration) {
        let region = session.and_then(|session| slot_of(session, pid)).map_or(0..0, region_of);
        // A process that has ended between being listed and being looked at was seen before, or was too short-lived.
        let Ok(mut now) = look(pid, &region) else { return };
        let Ok(stat) = process::stat(pid) else { return };
        if now.point.resident_bytes == 0 {
            return;
        }
        now.point.t_s = t.as_secs_f64();
        let seen = self.processes.entry(pid).or_default();
        seen.parent = stat.ppid;
        seen.name = stat.comm;
        seen.mapped_peak_bytes = seen.mapped_peak_bytes.max(now.inside_bytes);
        seen.points.push(now.point);
        if seen.points.len() >= MOST_POINTS {
            let mut index = 0;
            seen.points.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        if now.point.resident_bytes >= seen.peak.point.resident_bytes {
            seen.peak = now;
        }
        if seen.peak.point.resident_bytes > seen.pages_at_bytes * 3 / 2 {
            self.read_pages(pid);
        }
    }

    fn read_pages(&mut self, pid: u32) {
        let Some(seen) = self.processes.get_mut(&pid) else { return };
        if seen.peak.inside_bytes > 0 {
            seen.pages = seen.peak.pages(pid);
            seen.pages_at_bytes = seen.peak.point.resident_bytes;
        }
    }

    /// The process with the largest resident memory, or the largest of that name.
    #[must_use]
    pub fn primary(&self, name: Option<&str>) -> Option<u32> {
        let called = |seen: &Seen| name.is_none_or(|name| is_called(&seen.name, name));
        let candidates = self.processes.iter().filter(|(_, seen)| called(seen));
        candidates.max_by_key(|(_, seen)| seen.peak.point.resident_bytes).map(|(&pid, _)| pid)
    }

    /// The name of a process.
    #[must_use]
    pub fn name(&self, pid: u32) -> Option<&str> {
        self.processes.get(&pid).map(|seen| seen.name.as_str())
    }

    /// Resident memory of a process when it had most, in bytes.
    #[must_use]
    pub fn peak_bytes(&self, pid: u32) -> u64 {
        self.processes.get(&pid).map_or(0, |seen| seen.peak.point.resident_bytes)
    }

    /// What process `pid` did with its memory, on pages of `kind`.
    #[must_use]
    pub fn footprint(&self, kind: &str, pid: u32, session: Option<&SharedSession>) -> Footprint {
        let region = session.and_then(|session| slot_of(session, pid)).map(|slot| self.region(pid, slot));
        let Some(seen) = self.processes.get(&pid) else {
            return Footprint { kind: kind.to_owned(), region, ..Footprint::default() };
        };
        Footprint {
            kind: kind.to_owned(),
            points: seen.points.clone(),
            permissions: seen.peak.permissions.clone(),
            region,
        }
    }

    /// Every process that had a region, in the order of their starts.
    #[must_use]
    pub fn processes(&self, session: &SharedSession, primary: Option<u32>) -> Vec<ProcessStats> {
        let mut slots = BTreeMap::new();
        for (order, slot) in session.record().claimed_slots().enumerate() {
            // A process that execs claims again: its last program counts.
            slots.insert(slot.pid.load(SeqCst), (order, slot));
        }
        let mut slots: Vec<_> = slots.into_iter().collect();
        slots.sort_by_key(|&(_, (order, _))| order);
        let stats = |(pid, (_, slot)): (u32, (usize, &ProcessSlot))| ProcessStats {
            pid,
            parent_pid: slot.parent.load(SeqCst),
            name: self.name(pid).unwrap_or("(too short-lived to be seen)").to_owned(),
            primary: Some(pid) == primary,
            region: self.region(pid, slot),
        };
        slots.into_iter().map(stats).collect()
    }

    fn region(&self, pid: u32, slot: &ProcessSlot) -> RegionStats {
        let mut stats = counted(slot);
        if let Some(seen) = self.processes.get(&pid) {
            stats.mapped_peak_bytes = seen.mapped_peak_bytes;
            stats.pages.clone_from(&seen.pages.shares);
            seen.pages.source.clone_into(&mut stats.pages_source);
            stats.contiguity = seen.pages.contiguity;
            stats.private_rw_inside_bytes = seen.peak.inside_bytes;
            stats.private_rw_outside_bytes = seen.peak.outside_bytes;
        }
        stats
    }
}

/// Whether a process's name (cut by the kernel to 15 bytes) is `name`.
fn is_called(comm: &str, name: &str) -> bool {
    comm == name || comm.len() == 15 && name.starts_with(comm)
}

fn slot_of(session: &SharedSession, pid: u32) -> Option<&ProcessSlot> {
    session.record().claimed_slots().filter(|slot| slot.pid.load(SeqCst) == pid).last()
}

fn region_of(slot: &ProcessSlot) -> Range<u64> {
    slot.base.load(SeqCst)..slot.limit.load(SeqCst)
}

/// What the agent counted.
fn counted(slot: &ProcessSlot) -> RegionStats {
    let load = |counters: &[std::sync::atomic::AtomicU64], reason: Outside| counters[reason as usize].load(SeqCst);
    let bytes = |reason| load(&slot.outside_bytes, reason);
    let count = |reason: &Outside| OutsideCount {
        reason: reason.words().to_owned(),
        calls: load(&slot.outside_calls, *reason),
        bytes: bytes(*reason),
    };
    let mut outside: Vec<_> = Outside::ALL.iter().map(count).filter(|count| count.calls > 0).collect();
    if slot.phase.load(SeqCst) == Phase::Dormant as u32 {
        let why = Dormant::words(slot.dormant.load(SeqCst)).unwrap_or("unknown");
        outside.push(OutsideCount { reason: format!("everything: {why}"), calls: 0, bytes: 0 });
    }
    let untouched = slot.exec_untouched.load(SeqCst);
    if untouched > 0 {
        let reason = "programs started that cannot carry the agent".to_owned();
        outside.push(OutsideCount { reason, calls: untouched, bytes: 0 });
    }
    RegionStats {
        base: slot.base.load(SeqCst),
        limit: slot.limit.load(SeqCst),
        served_bytes: slot.served_bytes.load(SeqCst),
        served_calls: slot.served_calls.load(SeqCst),
        outside,
        demoted_bytes: bytes(Outside::DemotedByFork) + bytes(Outside::DemotedByCall),
        fell_back_bytes: bytes(Outside::PoolEmpty) + bytes(Outside::NoUserfault),
        ..RegionStats::default()
    }
}
