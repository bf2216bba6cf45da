//! Collapsing a program's memory while it grows: for programs that can carry no agent.
//!
//! A thread looks at each process of the tree, and passes over the memory of one that has grown. It rests three times as long as
//! it has worked, so that a program that grows without end costs a quarter of a processor at most.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::{Duration, Instant};

use fieldstone_report::{Outside, PageShare, ProcessStats, RegionStats, Tally};
use fieldstone_sys::collapse::{CollapseTarget, HUGE_BYTES};
use fieldstone_sys::process;

use super::{Collapsed, collapse};

const FIRST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);

/// A thread that follows a tree of processes.
#[derive(Debug)]
pub(crate) struct Follow {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeMap<u32, Followed>>,
}

/// What was done to one process.
#[derive(Debug, Default)]
struct Followed {
    name: String,
    parent_pid: u32,
    /// `None` where the kernel does not allow it, for the reason beside it.
    target: Option<CollapseTarget>,
    refused: Option<String>,
    /// Resident bytes at the last pass.
    at_bytes: u64,
    moved_bytes: u64,
    moved_ranges: u64,
    last: Collapsed,
    /// After the pass after which most was resident.
    peak: Tally,
}

impl Follow {
    /// Follows the tree below process `root`.
    pub(crate) fn start(root: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        Self { stop, thread: spawn(move || follow(root, &told)) }
    }

    /// Ends it; what was done to each process, in the order of their numbers.
    pub(crate) fn finish(self) -> Vec<ProcessStats> {
        self.stop.store(true, SeqCst);
        self.thread.thread().unpark();
        // It ends after the pass that is under way.
        let all = self.thread.join().unwrap_or_default();
        let largest = all.iter().max_by_key(|(_, followed)| followed.peak.resident_bytes).map(|(&pid, _)| pid);
        all.iter().map(|(&pid, followed)| followed.stats(pid, Some(pid) == largest)).collect()
    }
}

fn follow(root: u32, stop: &AtomicBool) -> BTreeMap<u32, Followed> {
    let mut all = BTreeMap::<u32, Followed>::new();
    let mut interval = FIRST_INTERVAL;
    while !stop.load(SeqCst) {
        let began = Instant::now();
        let mut pids = process::descendants(root).unwrap_or_default();
        pids.push(root);
        for &pid in &pids {
            if let Ok(stat) = process::stat(pid) {
                all.entry(pid).or_insert_with(|| Followed::meet(pid, &stat)).look(&stat, stop);
            }
        }
        // Each target is a descriptor: those of the ended are closed, and who had nothing to gain is forgotten.
        all.retain(|pid, followed| pids.contains(pid) || followed.moved_ranges > 0);
        all.iter_mut().filter(|(pid, _)| !pids.contains(pid)).for_each(|(_, followed)| followed.target = None);
        interval = (interval + interval / 20).min(LONGEST_INTERVAL);
        park_timeout(interval.max(began.elapsed() * 3));
    }
    all
}

impl Followed {
    fn meet(pid: u32, stat: &process::Stat) -> Self {
        let (target, refused) = match CollapseTarget::open(pid) {
            Ok(target) => (Some(target), None),
            Err(refused) => (None, Some(refused.to_string())),
        };
        Self { name: stat.comm.clone(), parent_pid: stat.ppid, target, refused, ..Self::default() }
    }

    /// Passes over its memory if that has grown.
    fn look(&mut self, stat: &process::Stat, stop: &AtomicBool) {
        self.name.clone_from(&stat.comm);
        let Some(target) = &self.target else { return };
        if stat.resident_bytes < self.at_bytes + HUGE_BYTES / 2 {
            self.at_bytes = self.at_bytes.min(stat.resident_bytes);
            return;
        }
        // What has ended since is as it was at the last pass.
        let Ok(done) = collapse(target, |_, _| !stop.load(SeqCst)) else { return };
        self.at_bytes = stat.resident_bytes;
        self.moved_bytes += done.moved.bytes;
        self.moved_ranges += done.moved.ranges;
        if done.after.resident_bytes >= self.peak.resident_bytes {
            self.peak = done.after;
        }
        self.last = done;
    }

    /// As a region that has no addresses of its own.
    fn stats(&self, pid: u32, primary: bool) -> ProcessStats {
        let outside = |reason: String, calls, bytes| Outside { reason, calls, bytes, resident_bytes: bytes };
        let left = self.last.left.iter().map(|(why, count)| outside(why.words(), count.ranges, count.bytes));
        let refused = self.refused.iter().map(|why| outside(format!("everything: {why}"), 0, 0));
        let small_bytes = self.peak.resident_bytes.saturating_sub(self.peak.huge_bytes);
        let share = |kind: &str, bytes| PageShare { kind: kind.to_owned(), bytes };
        let shares = [share("smaller", small_bytes), share("thp", self.peak.huge_bytes)];
        let region = RegionStats {
            served_bytes: self.moved_bytes,
            served_calls: self.moved_ranges,
            mapped_peak_bytes: self.peak.resident_bytes,
            outside: left.chain(refused).collect(),
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
    fn a_process_is_told_as_it_was_when_largest() {
        let tally = |resident_bytes, huge_bytes| Tally { resident_bytes, huge_bytes };
        let mut last = Collapsed { after: tally(10, 4), ..Collapsed::default() };
        last.leave(super::super::Left::End, 6);
        let followed = Followed {
            name: "x".into(),
            moved_bytes: 30,
            moved_ranges: 2,
            peak: tally(40, 30),
            last,
            ..Followed::default()
        };
        let stats = followed.stats(7, true);
        assert_eq!((stats.pid, stats.primary, stats.region.served_bytes, stats.region.base), (7, true, 30, 0));
        assert_eq!((stats.region.private_rw_inside_bytes, stats.region.private_rw_outside_bytes), (30, 10));
        assert_eq!(
            stats.region.pages,
            [PageShare { kind: "smaller".into(), bytes: 10 }, PageShare { kind: "thp".into(), bytes: 30 }]
        );
        assert!(stats.region.outside[0].reason.contains("ends of mappings"));
    }

    #[test]
    fn what_may_not_be_collapsed_is_told() {
        let us = std::process::id();
        let stat = process::stat(us).unwrap();
        let mut followed = Followed::meet(us, &stat);
        followed.look(&stat, &AtomicBool::new(false));
        let stats = followed.stats(us, false);
        assert!(stats.region.outside[0].reason.starts_with("everything: "), "{stats:?}");
        assert!(stats.region.pages.is_empty());
    }
}
