//! What was seen of a program's processes, and what the agents in them counted, put together for the reports.
//!
//! Pages are those of the moment when a process had most of its memory: they are read anew when it has grown, at a
//! distance in time that keeps the reading cheap, and when it leaves, unless it has freed memory before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fieldstone_report::run::{UNSERVED_PROGRAMS, unserved_words};
use fieldstone_report::{Footprint, FootprintPoint, Outside as OutsideCount, ProcessStats, RegionStats, SmallPages};
use fieldstone_sys::process;
use fieldstone_wire::{Dormant, Outside, Phase, ProcessSlot, Session};

use crate::attribution::Cause;
use crate::identity::Identity;
use crate::look::{Look, Pages, Small};
use crate::profile::places::{self, Places};
use crate::session::SharedSession;
use crate::shared::Signed;
use crate::trace::Records;

/// Points kept for a process; when they are reached, about every other one goes.
const MOST_POINTS: usize = 600;
/// Pages are read at most so often, unless memory grows by half.
const PAGES_INTERVAL: Duration = Duration::from_millis(100);

/// What was seen of one process.
#[derive(Debug, Default)]
struct Seen {
    name: String,
    identity: Identity,
    points: Vec<FootprintPoint>,
    peak: Look,
    reading: Reading,
    mapped_peak_bytes: u64,
}

/// The pages of a process as they were last read.
#[derive(Debug, Default)]
struct Reading {
    pages: Pages,
    /// Resident bytes at that time.
    at_bytes: u64,
    /// The pages of what its sites gave out, where it is recorded.
    places: Option<Places>,
    /// When it was done, and how long it took.
    done: Option<(Instant, Duration)>,
}

/// Everything that was seen of a program's processes.
#[derive(Debug, Default)]
pub struct Sight {
    processes: BTreeMap<u32, Seen>,
    recorded: Option<Arc<Records>>,
}

impl Sight {
    /// Nothing seen yet. With records, the pages of what their sites gave out are looked up too.
    pub(crate) fn new(recorded: Option<Arc<Records>>) -> Self {
        Self { recorded, ..Self::default() }
    }

    /// Whether process `pid` is known by all its names, and still the program that it was.
    pub(crate) fn knows(&self, pid: u32, name: &str) -> bool {
        self.processes.get(&pid).is_some_and(|seen| seen.name == name && seen.identity.is_whole())
    }

    pub(crate) fn introduce(&mut self, pid: u32, identity: Identity, name: String) {
        let seen = self.processes.entry(pid).or_default();
        (seen.identity, seen.name) = (identity, name);
    }

    /// The number that process `pid` knows itself by.
    pub(crate) fn inner_pid(&self, pid: u32) -> u32 {
        self.processes.get(&pid).map_or(pid, |seen| seen.identity.inner_pid)
    }

    /// The process that knows itself by the number `inner`, if it was seen.
    pub(crate) fn process_of(&self, inner: u32) -> Option<u32> {
        let mut of_that_number = self.processes.iter().filter(|(_, seen)| seen.identity.inner_pid == inner);
        of_that_number.next_back().map(|(&pid, _)| pid)
    }

    /// Adds a look at a process that was introduced; with `last`, it is about to leave. Reads its pages where they
    /// may be the ones to report.
    pub(crate) fn note(&mut self, pid: u32, now: Look, last: bool) {
        let Some(seen) = self.processes.get_mut(&pid) else { return };
        seen.mapped_peak_bytes = seen.mapped_peak_bytes.max(now.mapped_bytes);
        seen.points.push(now.point);
        thin(&mut seen.points);
        let began = Instant::now();
        if (now.mapped_bytes > 0 || now.has_served()) && seen.reading.is_due(now.point.resident_bytes, last, began) {
            seen.reading.pages = now.pages(pid);
            let sites = self.recorded.as_ref().and_then(|records| records.sites.as_ref()).filter(|_| now.recorded);
            seen.reading.places = sites.map(|sites| places::look_up(pid, seen.identity.inner_pid, sites.record()));
            seen.reading.at_bytes = now.point.resident_bytes;
            seen.reading.done = Some((began, began.elapsed()));
        }
        if now.point.resident_bytes >= seen.peak.point.resident_bytes {
            seen.peak = now;
        }
    }

    /// The pages of what each site gave out, when process `pid` had most memory; `None` where its sites were not recorded.
    #[must_use]
    pub fn places(&self, pid: u32) -> Option<&Places> {
        self.processes.get(&pid)?.reading.places.as_ref()
    }

    /// The process with the largest resident memory, or the largest of that name: its file's, or the one it was
    /// called by.
    #[must_use]
    pub fn primary(&self, name: Option<&str>) -> Option<u32> {
        let called = |seen: &Seen| name.is_none_or(|name| seen.identity.is_called(name));
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
        let slot = session.and_then(|session| slot_of(session, self.inner_pid(pid)));
        let region = slot.map(|slot| self.region(pid, slot));
        let (points, permissions) = self
            .processes
            .get(&pid)
            .map_or_else(Default::default, |seen| (seen.points.clone(), seen.peak.permissions.clone()));
        Footprint { kind: kind.to_owned(), points, permissions, region }
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
        let stats = |(inner, (_, slot)): (u32, (usize, &ProcessSlot))| {
            let pid = self.process_of(inner).unwrap_or(inner);
            ProcessStats {
                pid,
                parent_pid: slot.parent.load(SeqCst),
                name: self.name(pid).map_or_else(|| unseen_name(inner), str::to_owned),
                primary: Some(pid) == primary,
                region: self.region(pid, slot),
            }
        };
        slots.into_iter().map(stats).collect()
    }

    fn region(&self, pid: u32, slot: &ProcessSlot) -> RegionStats {
        let mut stats = counted(slot);
        if let Some(seen) = self.processes.get(&pid) {
            let pages = &seen.reading.pages;
            stats.mapped_peak_bytes = seen.mapped_peak_bytes;
            stats.pages.clone_from(&pages.shares);
            pages.source.clone_into(&mut stats.pages_source);
            stats.contiguity = pages.contiguity;
            stats.private_rw_inside_bytes = seen.peak.inside_bytes;
            stats.private_rw_huge_bytes = seen.peak.huge_bytes;
            stats.huge_pages_disabled = seen.peak.huge_pages_disabled;
            stats.shared_rw_bytes = seen.peak.shared_bytes;
            let small = |(why, &bytes): (&Small, &u64)| SmallPages { reason: why.words().to_owned(), bytes };
            stats.small_pages = seen.peak.small.iter().filter(|(_, bytes)| **bytes > 0).map(small).collect();
            for (&cause, &bytes) in &seen.peak.outside {
                attribute(&mut stats, cause, bytes);
            }
        }
        stats
    }
}

impl Reading {
    /// Whether pages are to be read now that `resident_bytes` are resident. No more than a twentieth of the time goes
    /// into it, but for the last one.
    fn is_due(&self, resident_bytes: u64, last: bool, now: Instant) -> bool {
        let Some((done, cost)) = self.done else { return true };
        if last {
            return resident_bytes >= self.at_bytes;
        }
        let since = now.saturating_duration_since(done);
        let growth = resident_bytes.saturating_sub(self.at_bytes);
        let has_grown = growth > self.at_bytes / 2 || growth > self.at_bytes / 10 && since >= PAGES_INTERVAL;
        has_grown && since >= cost * 20
    }
}

/// Halves the points when there are too many. The first one and the largest stay.
fn thin(points: &mut Vec<FootprintPoint>) {
    if points.len() < MOST_POINTS {
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

/// The name of a process that was not seen in the tree: a daemon that left it and runs still, or one that has ended.
fn unseen_name(pid: u32) -> String {
    // The number may be another process's by now, or one of another pid namespace.
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let stat = process::stat(pid).ok().filter(|_| maps.contains(<Session as Signed>::NAME));
    stat.map_or_else(|| "(too short-lived to be seen)".to_owned(), |stat| format!("{} (still running)", stat.comm))
}

/// What a user has to know of a run though no statistics were asked for, a line each: a process name that matched nothing, a
/// reserve that was granted in part, programs that were not served.
pub(crate) fn notes(session: &SharedSession, name: Option<&str>) -> Vec<String> {
    let regions: Vec<_> = session.record().claimed_slots().map(counted).collect();
    let unmatched = name.filter(|_| regions.iter().all(|region| region.base == 0));
    let unmatched = unmatched.map(|name| {
        format!(
            "no process was served: --process {name} matched no program that carries the agent\n\
             try: the name of the program's file, as in `--process redis-server`"
        )
    });
    let reserve = regions.iter().find_map(RegionStats::reserve_words);
    let unserved = unserved_words(regions.iter().map(RegionStats::unserved_programs).sum());
    unmatched.into_iter().chain(reserve).chain(unserved).collect()
}

/// The slot of the process that knows itself by that number; the last one, where it has started several programs.
pub(crate) fn slot_of(session: &SharedSession, inner_pid: u32) -> Option<&ProcessSlot> {
    session.record().claimed_slots().filter(|slot| slot.pid.load(SeqCst) == inner_pid).last()
}

/// Adds memory that was resident outside the region to the reason that it has.
fn attribute(stats: &mut RegionStats, cause: Cause, bytes: u64) {
    let in_place = cause.is_in_place();
    *(if in_place { &mut stats.private_rw_in_place_bytes } else { &mut stats.private_rw_outside_bytes }) += bytes;
    match stats.outside.iter_mut().find(|outside| outside.reason == cause.words()) {
        Some(counted) => counted.resident_bytes += bytes,
        None => stats.outside.push(OutsideCount {
            reason: cause.words().to_owned(),
            resident_bytes: bytes,
            ..OutsideCount::default()
        }),
    }
}

/// What the agent counted.
fn counted(slot: &ProcessSlot) -> RegionStats {
    let load = |counters: &[AtomicU64], reason: Outside| counters[reason as usize].load(SeqCst);
    let bytes = |reason| load(&slot.outside_bytes, reason);
    let count = |reason: &Outside| OutsideCount {
        reason: reason.words().to_owned(),
        calls: load(&slot.outside_calls, *reason),
        bytes: bytes(*reason),
        resident_bytes: 0,
    };
    let mut outside: Vec<_> = Outside::ALL.iter().map(count).filter(|count| count.calls > 0).collect();
    if slot.phase.load(SeqCst) == Phase::Dormant as u32 {
        let why = Dormant::words(slot.dormant.load(SeqCst)).unwrap_or("unknown");
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
        demoted_bytes: bytes(Outside::DemotedByFork) + bytes(Outside::DemotedByCall),
        fell_back_bytes: bytes(Outside::PoolEmpty) + bytes(Outside::NoUserfault),
        ..RegionStats::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::RegionOptions;
    use fieldstone_wire::PageKind;

    fn look(resident_bytes: u64) -> Look {
        let mut look = Look::default();
        look.point.resident_bytes = resident_bytes;
        look
    }

    fn identity(inner_pid: u32) -> Identity {
        Identity::named(["file", "called"].map(str::to_owned).to_vec(), inner_pid)
    }

    #[test]
    fn the_largest_process_is_the_primary_one() {
        let mut sight = Sight::default();
        for (pid, inner, bytes) in [(10, 1, 50), (11, 2, 90), (12, 3, 70)] {
            sight.introduce(pid, identity(inner), format!("p{pid}"));
            sight.note(pid, look(bytes), false);
            sight.note(pid, look(1), true);
        }
        assert_eq!(sight.primary(None), Some(11));
        assert_eq!((sight.name(11), sight.peak_bytes(11)), (Some("p11"), 90));
        assert_eq!(sight.primary(Some("p11")), None, "the short name is not the file's");
        assert_eq!((sight.process_of(3), sight.process_of(12), sight.inner_pid(10)), (Some(12), None, 1));
    }

    #[test]
    fn a_program_started_by_exec_is_met_anew() {
        let mut sight = Sight::default();
        assert!(!sight.knows(5, "sh"));
        sight.introduce(5, identity(5), "sh".into());
        sight.note(5, look(10), false);
        assert!(sight.knows(5, "sh") && !sight.knows(5, "gups"));
        sight.introduce(5, identity(5), "gups".into());
        assert_eq!((sight.name(5), sight.peak_bytes(5)), (Some("gups"), 10));
    }

    #[test]
    fn thinning_keeps_the_ends_the_order_and_the_peak() {
        let mut points = Vec::new();
        for step in 0..10_000_u32 {
            let resident_bytes = if step == 1001 { 1 << 40 } else { 1 };
            points.push(FootprintPoint { t_s: f64::from(step), resident_bytes, ..FootprintPoint::default() });
            thin(&mut points);
            assert!(points.len() < MOST_POINTS);
        }
        assert!(points.len() > MOST_POINTS / 3);
        assert!(points.is_sorted_by(|a, b| a.t_s < b.t_s));
        assert_eq!((points[0].t_s, points.iter().any(|point| point.t_s == 1001.0)), (0.0, true));
        assert!(points.last().unwrap().t_s > 9_900.0);
    }

    #[test]
    fn pages_are_read_near_the_peak_and_not_too_often() {
        let start = Instant::now();
        let ms = |ms| start + Duration::from_millis(ms);
        let mut reading = Reading::default();
        assert!(reading.is_due(1, false, ms(0)), "the first time");
        (reading.at_bytes, reading.done) = (1000, Some((start, Duration::from_millis(1))));
        assert!(!reading.is_due(1100, false, ms(500)), "not grown by more than a tenth");
        assert!(!reading.is_due(1101, false, ms(99)) && reading.is_due(1101, false, ms(100)));
        assert!(!reading.is_due(1501, false, ms(19)) && reading.is_due(1501, false, ms(20)), "a twentieth of the time");
        reading.done = Some((start, Duration::from_millis(50)));
        assert!(!reading.is_due(9000, false, ms(999)) && reading.is_due(9000, false, ms(1000)));
    }

    #[test]
    fn a_process_that_freed_its_memory_before_it_left_keeps_the_pages_of_its_peak() {
        let start = Instant::now();
        let reading = Reading { at_bytes: 1000, done: Some((start, Duration::ZERO)), ..Reading::default() };
        assert!(!reading.is_due(999, true, start) && reading.is_due(1000, true, start));
        assert!(Reading::default().is_due(1, true, start));
    }

    #[test]
    fn a_slot_is_found_by_the_number_inside() {
        let session = SharedSession::create(&RegionOptions::on(PageKind::Thp), false).unwrap();
        let slot = session.record().claim().unwrap();
        slot.pid.store(1, SeqCst);
        slot.served(4096);
        let mut sight = Sight::default();
        sight.introduce(7777, identity(1), "inside".into());
        sight.note(7777, look(8192), false);
        let stats = sight.processes(&session, Some(7777));
        assert_eq!((stats.len(), stats[0].pid, stats[0].primary), (1, 7777, true));
        assert_eq!((stats[0].name.as_str(), stats[0].region.served_bytes), ("inside", 4096));
        assert_eq!(sight.footprint("thp", 7777, Some(&session)).region.unwrap().served_calls, 1);
        assert!(sight.footprint("thp", 1, None).region.is_none());
    }

    #[test]
    fn an_unseen_process_that_runs_is_told_from_one_that_has_ended() {
        let session = SharedSession::create(&RegionOptions::on(PageKind::Thp), false).unwrap();
        for pid in [std::process::id(), 0x7fff_fff0] {
            session.record().claim().unwrap().pid.store(pid, SeqCst);
        }
        let stats = Sight::default().processes(&session, None);
        let name = |pid| &stats.iter().find(|process| process.pid == pid).unwrap().name;
        assert!(name(std::process::id()).ends_with(" (still running)"), "{stats:?}");
        assert_eq!(name(0x7fff_fff0), "(too short-lived to be seen)");
    }

    #[test]
    fn advised_globals_and_the_first_stack_are_served_in_place() {
        let mut stats = RegionStats::default();
        for reason in [Outside::InPlace, Outside::Globals, Outside::FirstStack, Outside::ShortGlobals] {
            attribute(&mut stats, Cause::Counted(reason as usize), 1);
        }
        assert_eq!((stats.private_rw_in_place_bytes, stats.private_rw_outside_bytes), (3, 1));
    }
}
