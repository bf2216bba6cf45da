//! The memory of a program's processes over time, combined with the agents' counters for reports.
//!
//! A report shows the pages of a process at its largest size. Its pages are therefore read again
//! when it has grown, at intervals that bound the cost, and when it exits, unless it has freed
//! memory. Cost: at most a twentieth of the time, without the last reading of each process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fieldstone_report::run::{UNSERVED_PROGRAMS, unserved_words};
use fieldstone_report::{Footprint, FootprintPoint, Outside as OutsideCount, ProcessStats, RegionStats, SmallPages};
use fieldstone_sys::process;
use fieldstone_wire::{DormancyReason, PlacementReason, ProcessPhase, ProcessSlot, Remedy, Session};

use crate::attribution::Cause;
use crate::identity::Identity;
use crate::memory_snapshot::{MemorySnapshot, RegionResidency, SmallPageReason};
use crate::session::SharedSession;
use crate::shared_record::ShareableRecord;

/// Limit of points for a process. At the limit, about every second point is removed.
const MAX_POINTS: usize = 600;
/// Shortest interval between two readings of pages, unless memory grows by half.
const PAGES_INTERVAL: Duration = Duration::from_millis(100);

/// The samples of one process.
#[derive(Debug, Default)]
struct ProcessHistory {
    name: String,
    identity: Identity,
    points: Vec<FootprintPoint>,
    peak: MemorySnapshot,
    reading: PageReading,
    mapped_peak_bytes: u64,
}

/// The last reading of a process's pages.
#[derive(Debug, Default)]
struct PageReading {
    pages: RegionResidency,
    /// Resident bytes at the time of the reading.
    resident_bytes: u64,
    /// Start and duration of the reading; `None` before the first one.
    timing: Option<(Instant, Duration)>,
}

/// The pages of a process were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageReadEvent {
    /// The process's number in the pid namespace of this command.
    pub pid: u32,
    /// The process's number in its own pid namespace.
    pub inner_pid: u32,
    /// Whether the process maps the record of an injected library.
    pub has_record: bool,
}

/// A function that the monitor thread calls after each reading of a process's pages.
pub struct PageReadCallback(Box<dyn FnMut(PageReadEvent) + Send>);

impl PageReadCallback {
    /// Wraps `callback`.
    pub fn new(callback: impl FnMut(PageReadEvent) + Send + 'static) -> Self {
        Self(Box::new(callback))
    }
}

impl fmt::Debug for PageReadCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageReadCallback").finish_non_exhaustive()
    }
}

/// The samples of all processes of a program.
#[derive(Debug, Default)]
pub struct MemoryHistory {
    processes: BTreeMap<u32, ProcessHistory>,
    on_page_read: Option<PageReadCallback>,
}

impl MemoryHistory {
    /// An empty history.
    pub(crate) fn new(on_page_read: Option<PageReadCallback>) -> Self {
        Self { on_page_read, ..Self::default() }
    }

    /// Whether process `pid` has a complete identity and still runs the program `name`.
    pub(crate) fn is_known(&self, pid: u32, name: &str) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.name == name && process.identity.is_complete())
    }

    /// Adds a process, or replaces its identity after an exec. Its samples are kept.
    pub(crate) fn insert(&mut self, pid: u32, identity: Identity, name: String) {
        let process = self.processes.entry(pid).or_default();
        (process.identity, process.name) = (identity, name);
    }

    /// The number of process `pid` in its own pid namespace; `pid` for an unknown process.
    pub(crate) fn inner_pid(&self, pid: u32) -> u32 {
        self.processes.get(&pid).map_or(pid, |process| process.identity.inner_pid)
    }

    /// The process with the number `inner` in its own pid namespace; `None` if it was never
    /// sampled.
    pub(crate) fn pid_of_inner(&self, inner: u32) -> Option<u32> {
        let mut matches = self.processes.iter().filter(|(_, process)| process.identity.inner_pid == inner);
        matches.next_back().map(|(&pid, _)| pid)
    }

    /// Adds a sample of a process that was inserted. `last` means that the process is exiting.
    /// Reads the process's pages if a reading is due.
    pub(crate) fn add_snapshot(&mut self, pid: u32, now: MemorySnapshot, last: bool) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.mapped_peak_bytes = process.mapped_peak_bytes.max(now.mapped_bytes);
        process.points.push(now.point);
        thin(&mut process.points);
        let began = Instant::now();
        if (now.mapped_bytes > 0 || now.has_served()) && process.reading.is_due(now.point.resident_bytes, last, began) {
            process.reading.pages = now.pages(pid);
            if let Some(PageReadCallback(callback)) = &mut self.on_page_read {
                callback(PageReadEvent { pid, inner_pid: process.identity.inner_pid, has_record: now.has_record });
            }
            process.reading.resident_bytes = now.point.resident_bytes;
            process.reading.timing = Some((began, began.elapsed()));
        }
        if now.point.resident_bytes >= process.peak.point.resident_bytes {
            process.peak = now;
        }
    }

    /// The process with the largest resident memory. `name`, the name of the executable file or of
    /// `argv[0]`, restricts the choice. `None` if no process matches.
    #[must_use]
    pub fn primary(&self, name: Option<&str>) -> Option<u32> {
        let matches = |process: &ProcessHistory| name.is_none_or(|name| process.identity.has_name(name));
        let candidates = self.processes.iter().filter(|(_, process)| matches(process));
        candidates.max_by_key(|(_, process)| process.peak.point.resident_bytes).map(|(&pid, _)| pid)
    }

    /// The `comm` of a process; `None` if it was never sampled.
    #[must_use]
    pub fn name(&self, pid: u32) -> Option<&str> {
        self.processes.get(&pid).map(|process| process.name.as_str())
    }

    /// The largest resident size of a process, in bytes; 0 if it was never sampled.
    #[must_use]
    pub fn peak_bytes(&self, pid: u32) -> u64 {
        self.processes.get(&pid).map_or(0, |process| process.peak.point.resident_bytes)
    }

    /// The memory of process `pid` over time, in a run with pages of `kind`.
    #[must_use]
    pub fn footprint(&self, kind: &str, pid: u32, session: Option<&SharedSession>) -> Footprint {
        let slot = session.and_then(|session| slot_of(session, self.inner_pid(pid)));
        let region = slot.map(|slot| self.region(pid, slot));
        let (points, permissions) = self
            .processes
            .get(&pid)
            .map_or_else(Default::default, |process| (process.points.clone(), process.peak.permissions.clone()));
        Footprint { kind: kind.to_owned(), points, permissions, region }
    }

    /// Statistics of every process with a region, in the order of their starts.
    #[must_use]
    pub fn processes(&self, session: &SharedSession, primary: Option<u32>) -> Vec<ProcessStats> {
        let mut slots = BTreeMap::new();
        for (order, slot) in session.record().claimed_slots().enumerate() {
            // A process that execs claims another slot: its last program is reported.
            slots.insert(slot.pid.load(SeqCst), (order, slot));
        }
        let mut slots: Vec<_> = slots.into_iter().collect();
        slots.sort_by_key(|&(_, (order, _))| order);
        let stats = |(inner, (_, slot)): (u32, (usize, &ProcessSlot))| {
            let pid = self.pid_of_inner(inner).unwrap_or(inner);
            ProcessStats {
                pid,
                parent_pid: slot.parent.load(SeqCst),
                name: self.name(pid).map_or_else(|| unsampled_name(inner), str::to_owned),
                primary: Some(pid) == primary,
                region: self.region(pid, slot),
            }
        };
        slots.into_iter().map(stats).collect()
    }

    fn region(&self, pid: u32, slot: &ProcessSlot) -> RegionStats {
        let mut stats = agent_counts(slot);
        if let Some(process) = self.processes.get(&pid) {
            let pages = &process.reading.pages;
            stats.mapped_peak_bytes = process.mapped_peak_bytes;
            stats.pages.clone_from(&pages.shares);
            pages.source.clone_into(&mut stats.pages_source);
            stats.contiguity = pages.contiguity;
            stats.private_rw_inside_bytes = process.peak.inside_bytes;
            stats.private_rw_huge_bytes = process.peak.huge_bytes;
            stats.huge_pages_disabled = process.peak.huge_pages_disabled;
            stats.shared_rw_bytes = process.peak.shared_bytes;
            let small =
                |(why, &bytes): (&SmallPageReason, &u64)| SmallPages { reason: why.description().to_owned(), bytes };
            stats.small_pages = process.peak.small.iter().filter(|(_, bytes)| **bytes > 0).map(small).collect();
            for (&cause, &bytes) in &process.peak.outside {
                attribute(&mut stats, cause, bytes);
            }
        }
        stats
    }
}

impl PageReading {
    /// Whether to read the pages at a size of `resident_bytes`. Readings take at most a twentieth
    /// of the time, except for the last one.
    fn is_due(&self, resident_bytes: u64, last: bool, now: Instant) -> bool {
        let Some((begun, cost)) = self.timing else { return true };
        let before = self.resident_bytes;
        if last {
            return resident_bytes >= before;
        }
        let since = now.saturating_duration_since(begun);
        let growth = resident_bytes.saturating_sub(before);
        let has_grown = growth > before / 2 || growth > before / 10 && since >= PAGES_INTERVAL;
        has_grown && since >= cost * 20
    }
}

/// Halves the points at the limit. The first point and the largest one are kept.
fn thin(points: &mut Vec<FootprintPoint>) {
    if points.len() < MAX_POINTS {
        return;
    }
    let largest = points.iter().enumerate().max_by_key(|(_, point)| point.resident_bytes).map(|(index, _)| index);
    let mut index = 0;
    points.retain(|_| {
        let keep = index % 2 == 0 || Some(index) == largest;
        index += 1;
        keep
    });
}

/// Stands for the name of a process that ended before it could be sampled.
const TOO_SHORT: &str = "(ended before it could be sampled)";

/// The name of a process that was never sampled: a daemon that left the tree, or an ended process.
fn unsampled_name(pid: u32) -> String {
    // The number may be reused by now, or belong to another pid namespace. Only a process of this
    // session maps the session's memfd.
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let stat = process::stat(pid).ok().filter(|_| maps.contains(<Session as ShareableRecord>::NAME));
    stat.map_or_else(|| TOO_SHORT.to_owned(), |stat| format!("{} (still running)", stat.comm))
}

/// Notes for the user of a run: a process name without a match, a reserve that was granted in part,
/// programs that were not served. With the `shortfall` of a pool, that is the note on the reserve.
pub(crate) fn notes(session: &SharedSession, name: Option<&str>, shortfall: Option<String>) -> Vec<String> {
    let regions: Vec<_> = session.record().claimed_slots().map(agent_counts).collect();
    let unmatched = name.filter(|_| regions.iter().all(|region| region.base == 0));
    let unmatched = unmatched.map(|name| {
        format!(
            "no process was served: --process {name} matched no program that carries the agent{}",
            Remedy(Some("the name of the program's file, as in `--process redis-server`"))
        )
    });
    let reserve = shortfall.or_else(|| regions.iter().find_map(RegionStats::reserve_words));
    let unserved = unserved_words(regions.iter().map(RegionStats::unserved_programs).sum());
    unmatched.into_iter().chain(reserve).chain(unserved).collect()
}

/// The slot of the process with this number in its own pid namespace. A process that executed
/// several programs has several slots; the last one is returned.
pub(crate) fn slot_of(session: &SharedSession, inner_pid: u32) -> Option<&ProcessSlot> {
    session.record().claimed_slots().filter(|slot| slot.pid.load(SeqCst) == inner_pid).last()
}

/// Adds `bytes` resident outside the region to their cause.
fn attribute(stats: &mut RegionStats, cause: Cause, bytes: u64) {
    let in_place = cause.is_in_place();
    *(if in_place { &mut stats.private_rw_in_place_bytes } else { &mut stats.private_rw_outside_bytes }) += bytes;
    match stats.outside.iter_mut().find(|outside| outside.reason == cause.description()) {
        Some(entry) => entry.resident_bytes += bytes,
        None => stats.outside.push(OutsideCount {
            reason: cause.description().to_owned(),
            resident_bytes: bytes,
            ..OutsideCount::default()
        }),
    }
}

/// The agent's counters.
fn agent_counts(slot: &ProcessSlot) -> RegionStats {
    let load = |counters: &[AtomicU64], reason: PlacementReason| counters[reason as usize].load(SeqCst);
    let bytes = |reason| load(&slot.outside_bytes, reason);
    let count = |reason: &PlacementReason| OutsideCount {
        reason: reason.words().to_owned(),
        calls: load(&slot.outside_calls, *reason),
        bytes: bytes(*reason),
        resident_bytes: 0,
    };
    let mut outside: Vec<_> = PlacementReason::ALL.iter().map(count).filter(|count| count.calls > 0).collect();
    if slot.phase.load(SeqCst) == ProcessPhase::Dormant as u32 {
        let why = DormancyReason::words(slot.dormant.load(SeqCst)).unwrap_or("unknown");
        outside.push(OutsideCount { reason: format!("everything: {why}"), ..OutsideCount::default() });
    }
    let untouched = slot.exec_untouched.load(SeqCst);
    if untouched > 0 {
        let reason = UNSERVED_PROGRAMS.to_owned();
        outside.push(OutsideCount { reason, calls: untouched, ..OutsideCount::default() });
    }
    RegionStats {
        base: slot.base.load(SeqCst),
        limit: slot.limit.load(SeqCst),
        served_bytes: slot.served_bytes.load(SeqCst),
        served_calls: slot.served_calls.load(SeqCst),
        outside,
        reserve_bytes: slot.reserve_bytes.load(SeqCst),
        reserve_refused_bytes: slot.reserve_refused_bytes.load(SeqCst),
        reserve_untouched_bytes: slot.reserve_untouched_bytes.load(SeqCst),
        demoted_bytes: bytes(PlacementReason::DemotedByFork) + bytes(PlacementReason::DemotedByCall),
        fell_back_bytes: bytes(PlacementReason::PoolEmpty) + bytes(PlacementReason::NoUserfault),
        ..RegionStats::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::RegionOptions;
    use fieldstone_wire::PageKind;

    fn snapshot(resident_bytes: u64) -> MemorySnapshot {
        let mut snapshot = MemorySnapshot::default();
        snapshot.point.resident_bytes = resident_bytes;
        snapshot
    }

    fn identity(inner_pid: u32) -> Identity {
        Identity::with_names(["file", "called"].map(str::to_owned).to_vec(), inner_pid)
    }

    #[test]
    fn the_largest_process_is_the_primary_one() {
        let mut history = MemoryHistory::default();
        for (pid, inner, bytes) in [(10, 1, 50), (11, 2, 90), (12, 3, 70)] {
            history.insert(pid, identity(inner), format!("p{pid}"));
            history.add_snapshot(pid, snapshot(bytes), false);
            history.add_snapshot(pid, snapshot(1), true);
        }
        assert_eq!(history.primary(None), Some(11));
        assert_eq!((history.name(11), history.peak_bytes(11)), (Some("p11"), 90));
        assert_eq!(history.primary(Some("p11")), None, "the short name is not the file's");
        assert_eq!((history.pid_of_inner(3), history.pid_of_inner(12), history.inner_pid(10)), (Some(12), None, 1));
    }

    #[test]
    fn an_exec_replaces_the_identity_and_keeps_the_samples() {
        let mut history = MemoryHistory::default();
        assert!(!history.is_known(5, "sh"));
        history.insert(5, identity(5), "sh".into());
        history.add_snapshot(5, snapshot(10), false);
        assert!(history.is_known(5, "sh") && !history.is_known(5, "gups"));
        history.insert(5, identity(5), "gups".into());
        assert_eq!((history.name(5), history.peak_bytes(5)), (Some("gups"), 10));
    }

    #[test]
    fn thinning_keeps_the_ends_the_order_and_the_peak() {
        let mut points = Vec::new();
        for step in 0..10_000_u32 {
            let resident_bytes = if step == 1001 { 1 << 40 } else { 1 };
            points.push(FootprintPoint { t_s: f64::from(step), resident_bytes, ..FootprintPoint::default() });
            thin(&mut points);
            assert!(points.len() < MAX_POINTS);
        }
        assert!(points.len() > MAX_POINTS / 3);
        assert!(points.is_sorted_by(|a, b| a.t_s < b.t_s));
        assert_eq!((points[0].t_s, points.iter().any(|point| point.t_s == 1001.0)), (0.0, true));
        assert!(points.last().unwrap().t_s > 9_900.0);
    }

    #[test]
    fn pages_are_read_after_growth_and_at_intervals() {
        let start = Instant::now();
        let ms = |ms| start + Duration::from_millis(ms);
        let mut reading = PageReading::default();
        assert!(reading.is_due(1, false, ms(0)), "the first time");
        (reading.resident_bytes, reading.timing) = (1000, Some((start, Duration::from_millis(1))));
        assert!(!reading.is_due(1100, false, ms(500)), "not grown by more than a tenth");
        assert!(!reading.is_due(1101, false, ms(99)) && reading.is_due(1101, false, ms(100)));
        assert!(!reading.is_due(1501, false, ms(19)) && reading.is_due(1501, false, ms(20)), "a twentieth of the time");
        reading.timing = Some((start, Duration::from_millis(50)));
        assert!(!reading.is_due(9000, false, ms(999)) && reading.is_due(9000, false, ms(1000)));
    }

    #[test]
    fn a_process_that_frees_memory_before_exit_keeps_the_pages_of_its_peak() {
        let start = Instant::now();
        let timing = Some((start, Duration::ZERO));
        let reading = PageReading { resident_bytes: 1000, timing, ..PageReading::default() };
        assert!(!reading.is_due(999, true, start) && reading.is_due(1000, true, start));
        assert!(PageReading::default().is_due(1, true, start));
    }

    #[test]
    fn a_slot_is_found_by_the_inner_pid() {
        let session = SharedSession::create(&RegionOptions::on(PageKind::Thp), false).unwrap();
        let slot = session.record().claim().unwrap();
        slot.pid.store(1, SeqCst);
        slot.count_served(4096);
        let mut history = MemoryHistory::default();
        history.insert(7777, identity(1), "inside".into());
        history.add_snapshot(7777, snapshot(8192), false);
        let stats = history.processes(&session, Some(7777));
        assert_eq!((stats.len(), stats[0].pid, stats[0].primary), (1, 7777, true));
        assert_eq!((stats[0].name.as_str(), stats[0].region.served_bytes), ("inside", 4096));
        assert_eq!(history.footprint("thp", 7777, Some(&session)).region.unwrap().served_calls, 1);
        assert!(history.footprint("thp", 1, None).region.is_none());
    }

    #[test]
    fn a_shortage_of_pool_pages_is_one_note() {
        let session = SharedSession::create(&RegionOptions::on(PageKind::Hugetlb2m), false).unwrap();
        let slot = session.record().claim().unwrap();
        slot.pid.store(1, SeqCst);
        slot.reserve_refused_bytes.store(1 << 30, SeqCst);
        assert!(notes(&session, None, None)[0].starts_with("--reserve: the kernel granted"));
        assert_eq!(notes(&session, None, Some("the pool is short".into())), ["the pool is short"]);
    }

    #[test]
    fn an_unsampled_process_is_named_by_whether_it_still_runs() {
        let session = SharedSession::create(&RegionOptions::on(PageKind::Thp), false).unwrap();
        for pid in [std::process::id(), 0x7fff_fff0] {
            session.record().claim().unwrap().pid.store(pid, SeqCst);
        }
        let stats = MemoryHistory::default().processes(&session, None);
        let name = |pid| &stats.iter().find(|process| process.pid == pid).unwrap().name;
        assert!(name(std::process::id()).ends_with(" (still running)"), "{stats:?}");
        assert_eq!(name(0x7fff_fff0), TOO_SHORT);
    }

    #[test]
    fn advised_globals_and_the_first_stack_are_served_in_place() {
        let mut stats = RegionStats::default();
        for reason in [
            PlacementReason::InPlace,
            PlacementReason::Globals,
            PlacementReason::FirstStack,
            PlacementReason::ShortGlobals,
        ] {
            attribute(&mut stats, Cause::Counted(reason as usize), 1);
        }
        assert_eq!((stats.private_rw_in_place_bytes, stats.private_rw_outside_bytes), (3, 1));
    }
}
