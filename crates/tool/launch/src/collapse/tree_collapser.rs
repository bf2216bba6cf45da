//! Collapses the memory of a process tree while it grows, for programs that cannot carry the agent.
//!
//! A thread checks each process of the tree and runs a collapse pass over one that has grown by 1
//! MiB. After each round it sleeps at least three times as long as the round took. Cost: at most a
//! quarter of a processor, even if the program grows without end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::{Duration, Instant};

use fieldstone_report::{Outside, PageShare, ProcessStats, RegionStats, Tally};
use fieldstone_sys::collapse::{CollapseTarget, HUGE_BYTES};
use fieldstone_sys::process;

use super::{CollapseResult, collapse};

const FIRST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);

/// The thread that collapses the memory of a process tree.
#[derive(Debug)]
pub(crate) struct TreeCollapser {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeMap<u32, ProcessCollapse>>,
}

/// The passes over one process.
#[derive(Debug, Default)]
struct ProcessCollapse {
    name: String,
    parent_pid: u32,
    /// `None` if the process ended, or if it could not be opened for the reason in `refusal`.
    target: Option<CollapseTarget>,
    refusal: Option<String>,
    /// Resident bytes at the last pass.
    last_resident_bytes: u64,
    collapsed_bytes: u64,
    collapsed_ranges: u64,
    last: CollapseResult,
    /// Memory after the pass with the largest resident size.
    peak: Tally,
}

impl TreeCollapser {
    /// Starts with process `root` and its descendants.
    pub(crate) fn start(root: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread_stop = Arc::clone(&stop);
        Self { stop, thread: spawn(move || run(root, &thread_stop)) }
    }

    /// Ends the thread and returns the statistics of each process, ordered by process number.
    pub(crate) fn finish(self) -> Vec<ProcessStats> {
        self.stop.store(true, SeqCst);
        self.thread.thread().unpark();
        // The thread ends after the current range.
        let all = self.thread.join().unwrap_or_default();
        let largest = all.iter().max_by_key(|(_, process)| process.peak.resident_bytes).map(|(&pid, _)| pid);
        all.iter().map(|(&pid, process)| process.stats(pid, Some(pid) == largest)).collect()
    }
}

fn run(root: u32, stop: &AtomicBool) -> BTreeMap<u32, ProcessCollapse> {
    let mut all = BTreeMap::<u32, ProcessCollapse>::new();
    let mut interval = FIRST_INTERVAL;
    while !stop.load(SeqCst) {
        let began = Instant::now();
        let mut pids = process::descendants(root).unwrap_or_default();
        pids.push(root);
        for &pid in &pids {
            if let Ok(stat) = process::stat(pid) {
                all.entry(pid).or_insert_with(|| ProcessCollapse::open(pid, &stat)).update(&stat, stop);
            }
        }
        // A target is a file descriptor: close those of ended processes.
        // An ended process without a collapsed range is not reported.
        all.retain(|pid, process| pids.contains(pid) || process.collapsed_ranges > 0);
        all.iter_mut().filter(|(pid, _)| !pids.contains(pid)).for_each(|(_, process)| process.target = None);
        interval = (interval + interval / 20).min(LONGEST_INTERVAL);
        park_timeout(interval.max(began.elapsed() * 3));
    }
    all
}

impl ProcessCollapse {
    fn open(pid: u32, stat: &process::Stat) -> Self {
        let (target, refusal) = match CollapseTarget::open(pid) {
            Ok(target) => (Some(target), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { name: stat.comm.clone(), parent_pid: stat.ppid, target, refusal, ..Self::default() }
    }

    /// Runs a collapse pass if the resident memory has grown by 1 MiB since the last one.
    fn update(&mut self, stat: &process::Stat, stop: &AtomicBool) {
        self.name.clone_from(&stat.comm);
        let Some(target) = &self.target else { return };
        if stat.resident_bytes < self.last_resident_bytes + HUGE_BYTES / 2 {
            self.last_resident_bytes = self.last_resident_bytes.min(stat.resident_bytes);
            return;
        }
        // An error means that the process ended: the report keeps the last pass.
        let Ok(result) = collapse(target, |_, _| !stop.load(SeqCst)) else { return };
        self.last_resident_bytes = stat.resident_bytes;
        self.collapsed_bytes += result.collapsed.bytes;
        self.collapsed_ranges += result.collapsed.ranges;
        if result.after.resident_bytes >= self.peak.resident_bytes {
            self.peak = result.after;
        }
        self.last = result;
    }

    /// The statistics of a region without an address range.
    fn stats(&self, pid: u32, primary: bool) -> ProcessStats {
        let outside = |reason: String, calls, bytes| Outside { reason, calls, bytes, resident_bytes: bytes };
        let uncollapsed = &self.last.uncollapsed;
        let uncollapsed = uncollapsed.iter().map(|(why, count)| outside(why.description(), count.ranges, count.bytes));
        let refusal = self.refusal.iter().map(|why| outside(format!("everything: {why}"), 0, 0));
        let small_bytes = self.peak.resident_bytes.saturating_sub(self.peak.huge_bytes);
        let share = |kind: &str, bytes| PageShare { kind: kind.to_owned(), bytes };
        let shares = [share("smaller", small_bytes), share("thp", self.peak.huge_bytes)];
        let region = RegionStats {
            served_bytes: self.collapsed_bytes,
            served_calls: self.collapsed_ranges,
            mapped_peak_bytes: self.peak.resident_bytes,
            outside: uncollapsed.chain(refusal).collect(),
            pages: shares.into_iter().filter(|share| share.bytes > 0).collect(),
            pages_source: "smaps".to_owned(),
            private_rw_inside_bytes: self.peak.huge_bytes,
            private_rw_outside_bytes: small_bytes,
            private_rw_huge_bytes: self.peak.huge_bytes,
            ..RegionStats::default()
        };
        ProcessStats { pid, parent_pid: self.parent_pid, name: self.name.clone(), primary, region }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_reported_at_its_largest_size() {
        let tally = |resident_bytes, huge_bytes| Tally { resident_bytes, huge_bytes };
        let mut last = CollapseResult { after: tally(10, 4), ..CollapseResult::default() };
        last.count_uncollapsed(super::super::UncollapsedReason::End, 6);
        let process = ProcessCollapse {
            name: "x".into(),
            collapsed_bytes: 30,
            collapsed_ranges: 2,
            peak: tally(40, 30),
            last,
            ..ProcessCollapse::default()
        };
        let stats = process.stats(7, true);
        assert_eq!((stats.pid, stats.primary, stats.region.served_bytes, stats.region.base), (7, true, 30, 0));
        assert_eq!((stats.region.private_rw_inside_bytes, stats.region.private_rw_outside_bytes), (30, 10));
        assert_eq!(
            stats.region.pages,
            [PageShare { kind: "smaller".into(), bytes: 10 }, PageShare { kind: "thp".into(), bytes: 30 }]
        );
        assert!(stats.region.outside[0].reason.contains("ends of mappings"));
    }

    #[test]
    fn a_refusal_to_collapse_is_reported() {
        let pid = std::process::id();
        let stat = process::stat(pid).unwrap();
        let mut process = ProcessCollapse::open(pid, &stat);
        process.update(&stat, &AtomicBool::new(false));
        let stats = process.stats(pid, false);
        assert!(stats.region.outside[0].reason.starts_with("everything: "), "{stats:?}");
        assert!(stats.region.pages.is_empty());
    }
}
