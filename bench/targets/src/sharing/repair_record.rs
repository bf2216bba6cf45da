//! Evaluates the record of a repair.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_repair::{RepairEvent, RepairStats, TimedEvent};

use super::program_run::WorkloadRun;

/// A run under `fieldstone run --repair`.
#[derive(Debug)]
pub(super) struct RepairedRun {
    pub(super) run: WorkloadRun,
    /// The record; empty if the run was killed.
    pub(super) stats: RepairStats,
}

/// Number of lines that are separated after these events.
pub(super) fn separated_lines(events: &[TimedEvent]) -> usize {
    let mut moved: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for event in events {
        match &event.kind {
            RepairEvent::PageMoved { page, lines, .. } => {
                moved.insert(*page, lines.iter().copied().collect());
            }
            RepairEvent::PageRestored { page, .. } => {
                moved.remove(page);
            }
            _ => {}
        }
    }
    moved.values().map(BTreeSet::len).sum()
}

/// Whether lines were separated at the end, or for most of the time of the threads. After the
/// threads have ended, the program may have the kernel write to the page, which ends the repair.
pub(super) fn was_separated(events: &[TimedEvent], threads_s: f64) -> bool {
    let ends =
        |event: &TimedEvent| matches!(event.kind, RepairEvent::PageMoved { .. } | RepairEvent::PageRestored { .. });
    let changes: Vec<usize> = (0..events.len()).filter(|&index| ends(&events[index])).collect();
    let separated_ms = |pair: &[usize]| {
        let is_separated = separated_lines(&events[..=pair[0]]) > 0;
        if is_separated { events[pair[1]].at_ms - events[pair[0]].at_ms } else { 0.0 }
    };
    separated_lines(events) > 0 || changes.windows(2).map(separated_ms).sum::<f64>() > threads_s * 1e3 / 2.0
}

/// The time when the repair was complete, by the clock of the events: the last move of a page, or
/// the last redirected access of a thread other than the first. The first thread accesses the data
/// again after the others have ended. `None` if no lines were separated, or no access was
/// redirected.
pub(super) fn complete_at_ms(events: &[TimedEvent], first_thread: u32, threads_s: f64) -> Option<f64> {
    let is_redirected = |event: &&TimedEvent| matches!(event.kind, RepairEvent::AccessRedirected { thread, .. } if thread != first_thread);
    let last_redirected = events.iter().filter(is_redirected).map(|event| event.at_ms).max_by(f64::total_cmp)?;
    let is_moved = |event: &&TimedEvent| matches!(event.kind, RepairEvent::PageMoved { .. });
    let last_moved = events.iter().filter(is_moved).map(|event| event.at_ms).max_by(f64::total_cmp)?;
    was_separated(events, threads_s).then_some(last_redirected.max(last_moved))
}

#[cfg(test)]
pub(super) mod tests {
    use fieldstone_repair::SamplingStats;

    use super::*;

    const PAGE: u64 = 0x7000;
    const MAIN: u32 = 100;

    fn moved(at_ms: f64, lines: &[u64]) -> TimedEvent {
        TimedEvent::new(at_ms, RepairEvent::PageMoved { page: PAGE, views: 2, lines: lines.to_vec() })
    }

    fn restored(at_ms: f64) -> TimedEvent {
        TimedEvent::new(at_ms, RepairEvent::PageRestored { page: PAGE, why: "its rules changed".to_owned() })
    }

    const fn led(at_ms: f64, thread: u32) -> TimedEvent {
        TimedEvent::new(at_ms, RepairEvent::AccessRedirected { ip: 0x1234, thread, code: None })
    }

    /// A record that ends with these lines separated.
    pub(in crate::sharing) fn stats_of(lines: &[u64]) -> RepairStats {
        let events = if lines.is_empty() { Vec::new() } else { vec![moved(20.0, lines)] };
        RepairStats {
            sampling: SamplingStats { samples: 1000, ..SamplingStats::default() },
            events,
            ..RepairStats::default()
        }
    }

    #[test]
    fn lines_moved_back_are_not_separated() {
        let mut events = vec![moved(1.0, &[PAGE]), moved(2.0, &[PAGE, PAGE + 64])];
        assert_eq!(separated_lines(&events), 2, "the page has other rules now");
        events.push(restored(3.0));
        assert_eq!(separated_lines(&events), 0);
        assert_eq!(complete_at_ms(&events, MAIN, 1.0), None);
        events.push(moved(4.0, &[PAGE]));
        assert_eq!(
            (separated_lines(&events), complete_at_ms(&events, MAIN, 1.0)),
            (1, None),
            "no access was redirected"
        );
        events.push(led(5.0, 101));
        assert_eq!(complete_at_ms(&events, MAIN, 1.0), Some(5.0));
    }

    #[test]
    fn lines_moved_back_at_the_end_were_separated() {
        let events = [moved(20.0, &[PAGE]), restored(950.0)];
        assert!(was_separated(&events, 1.0) && !was_separated(&events, 2.0), "half a run, and less");
        assert!(was_separated(&events[..1], 2.0) && !was_separated(&[], 0.0));
        assert!(!was_separated(&[restored(0.0), events[1].clone()], 1.0));
    }

    #[test]
    fn a_repair_is_complete_when_the_last_loop_is_redirected() {
        let events = [led(1.0, 101), moved(20.0, &[PAGE]), led(21.0, 101), led(23.5, 102), led(900.0, MAIN)];
        assert_eq!(complete_at_ms(&events, MAIN, 1.0), Some(23.5));
        assert_eq!(complete_at_ms(&events[..2], MAIN, 1.0), Some(20.0), "redirected before the page was moved");
    }
}
