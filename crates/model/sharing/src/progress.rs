//! How fast threads get on: laps of their loops in a sample's time, by the loops' own counters.
//!
//! ```text
//!   samples of thread 7     |    |    |    |    |         a sample for each so much of its own running time
//!   its loop's counter     100  140  180  820 1460        40, 40, 640, 640 laps a sample: sixteen times as fast
//! ```
//! A loop has as many counters as it likes; here one is known by its instruction. Counted is by the thread's own samples and not by the clock, so that
//! who has to wait for a processor is not slow. A counter that goes back began anew, and with it the loop: one that does
//! that often is run so shortly that its values say nothing, and is left out.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::cost::Interval;

/// Samples between two values that are compared, where they were read later than the sample was taken.
const LATE_APART: u64 = 8;
/// At most so many: what lies between is not known to be one run of the loop.
const MOST_APART: u64 = 32;
/// Paces that are kept of a counter.
const MOST_PACES: usize = 1024;
/// Counters that are followed. A program has few loops in which it spends its time.
const MOST_TRACKS: usize = 512;
/// One of so many values at most may have gone back.
const VALUES_A_RESTART: u32 = 8;
/// Paces of all threads before and after that can be compared.
const LEAST_BEFORE: usize = 4;
const LEAST_AFTER: usize = 16;

/// The value of a counter in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The thread.
    pub thread: u32,
    /// The counter, by the address of its instruction.
    pub counter: u64,
    /// Its value.
    pub value: u64,
    /// By how much it changes.
    pub step: i64,
    /// Its size in bytes: 4 or 8.
    pub bytes: u32,
    /// The value was read later than the sample was taken.
    pub is_late: bool,
    /// When, in nanoseconds.
    pub at_ns: u64,
}

/// How fast the threads of a program get on.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// Samples of each thread so far.
    samples: HashMap<u32, u64>,
    /// By thread and counter.
    tracks: HashMap<(u32, u64), Track>,
}

/// A counter of a thread.
#[derive(Debug, Clone)]
struct Track {
    value: u64,
    /// Samples of the thread when it had it.
    sample: u64,
    values: u32,
    restarts: u32,
    paces: VecDeque<Pace>,
}

/// Laps a sample.
#[derive(Debug, Clone)]
struct Pace {
    at_ns: u64,
    laps: f64,
    /// Cache lines that a lap comes by.
    lines: Arc<[u64]>,
}

/// Laps a sample, several times, by thread and counter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Paces(BTreeMap<(u32, u64), Vec<f64>>);

/// How threads got on before something and after it, as multiples of what they did before on average.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// Before.
    pub before: Interval,
    /// After.
    pub after: Interval,
    /// The threads that it is known of.
    pub threads: Vec<u32>,
}

impl Progress {
    /// A thread was sampled: so much of its time has passed.
    pub fn pass(&mut self, thread: u32) {
        *self.samples.entry(thread).or_default() += 1;
    }

    /// No samples were taken for a while, of any thread: what follows is not compared with what was.
    pub fn rest(&mut self) {
        self.samples.values_mut().for_each(|samples| *samples += MOST_APART);
    }

    /// A counter was seen in the thread's last sample, in a loop that comes by these cache lines.
    pub fn see(&mut self, mark: &Mark, lines: &[u64]) {
        let sample = self.samples.get(&mark.thread).copied().unwrap_or_default();
        let key = (mark.thread, mark.counter);
        if self.tracks.len() >= MOST_TRACKS && !self.tracks.contains_key(&key) {
            self.tracks.clear();
        }
        let begin = || Track { value: mark.value, sample, values: 0, restarts: 0, paces: VecDeque::new() };
        let track = self.tracks.entry(key).or_insert_with(begin);
        let apart = sample.saturating_sub(track.sample);
        if apart < if mark.is_late { LATE_APART } else { 1 } {
            return;
        }
        let laps = laps(track.value, mark);
        (track.value, track.sample) = (mark.value, sample);
        if apart > MOST_APART {
            return;
        }
        track.values += 1;
        track.restarts += u32::from(laps.is_none());
        let Some(laps) = laps else { return };
        if track.paces.len() == MOST_PACES {
            track.paces.pop_front();
        }
        let last = track.paces.back().map(|pace| &pace.lines).filter(|last| ***last == *lines);
        let lines = last.map_or_else(|| lines.into(), Arc::clone);
        track.paces.push_back(Pace { at_ns: mark.at_ns, laps: laps as f64 / apart as f64, lines });
    }

    /// The paces of the loops that came by one of these cache lines, within these nanoseconds.
    #[must_use]
    pub fn by_lines(&self, lines: &[u64], within: &Range<u64>) -> Paces {
        let mut found = BTreeMap::new();
        for (&key, track) in self.tracks.iter().filter(|(_, track)| track.says_something()) {
            let fits =
                |pace: &&Pace| within.contains(&pace.at_ns) && pace.lines.iter().any(|line| lines.contains(line));
            let laps: Vec<f64> = track.paces.iter().filter(fits).map(|pace| pace.laps).collect();
            if !laps.is_empty() {
                found.insert(key, laps);
            }
        }
        Paces(found)
    }

    /// The thread has ended.
    pub fn forget(&mut self, thread: u32) {
        self.samples.remove(&thread);
        self.tracks.retain(|&(of, _), _| of != thread);
    }
}

impl Track {
    const fn says_something(&self) -> bool {
        self.restarts * VALUES_A_RESTART <= self.values
    }
}

impl Paces {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These, and those that were seen `after`. A thread counts by one of its counters: the one that is known best. None with too few
    /// that are in both.
    #[must_use]
    pub fn compared(&self, after: &Self) -> Option<Compared> {
        let mut best: BTreeMap<u32, (usize, &[f64], &[f64])> = BTreeMap::new();
        for (key, before) in &self.0 {
            let Some(after) = after.0.get(key) else { continue };
            let known = before.len().min(after.len());
            let so_far = best.get(&key.0).map_or(0, |one| one.0);
            if known > so_far && before.iter().sum::<f64>() > 0.0 {
                best.insert(key.0, (known, before, after));
            }
        }
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let threads = best.keys().copied().collect();
        for (_, before, after) in best.into_values() {
            let mean = before.iter().sum::<f64>() / before.len() as f64;
            one.extend(before.iter().map(|laps| laps / mean));
            other.extend(after.iter().map(|laps| laps / mean));
        }
        let enough = one.len() >= LEAST_BEFORE && other.len() >= LEAST_AFTER;
        let (before, after) = Interval::of_rates(&one).zip(Interval::of_rates(&other)).filter(|_| enough)?;
        Some(Compared { before, after, threads })
    }
}

/// Laps from a value to the next one. None where it went back, or not by whole steps.
fn laps(from: u64, mark: &Mark) -> Option<u64> {
    let difference = mark.value.wrapping_sub(from).cast_signed();
    // As wide as the counter is, with its sign.
    let unused = 64 - 8 * mark.bytes.clamp(1, 8);
    let difference = difference << unused >> unused;
    if difference.checked_rem(mark.step)? != 0 {
        return None;
    }
    u64::try_from(difference.checked_div(mark.step)?).ok()
}

#[cfg(test)]
mod tests {
    use super::{Compared, Mark, Progress};

    const MARK: Mark = Mark { thread: 1, counter: 0x1000, value: 0, step: 1, bytes: 8, is_late: false, at_ns: 0 };
    const LINE: u64 = 0x7000;

    /// A value for each sample of `mark`'s thread.
    fn see(progress: &mut Progress, mark: &Mark, values: impl IntoIterator<Item = u64>) {
        for (at_ns, value) in (mark.at_ns..).zip(values) {
            progress.pass(mark.thread);
            progress.see(&Mark { value, at_ns, ..*mark }, &[LINE]);
        }
    }

    fn compared(progress: &Progress, change_ns: u64) -> Option<Compared> {
        let within = |range| progress.by_lines(&[LINE, LINE + 64], &range);
        within(0..change_ns).compared(&within(change_ns..u64::MAX))
    }

    #[test]
    fn who_gets_on_faster_has_more_laps_a_sample() {
        let mut progress = Progress::default();
        see(&mut progress, &MARK, (0..10).map(|sample| sample * 40));
        see(&mut progress, &Mark { at_ns: 10, ..MARK }, (1..30).map(|sample| 360 + sample * 120));
        let found = compared(&progress, 10).unwrap();
        assert_eq!((found.before.likely, found.after.likely, found.threads), (1.0, 3.0, vec![1]));
        assert!(progress.by_lines(&[LINE + 64], &(0..100)).is_empty());
        progress.forget(1);
        assert!(progress.by_lines(&[LINE], &(0..100)).is_empty());
    }

    #[test]
    fn threads_count_each_by_what_it_did_before() {
        let mut progress = Progress::default();
        for (thread, step) in [(1, 10), (2, 1000)] {
            let mark = Mark { thread, step: -16, ..MARK };
            see(&mut progress, &mark, (0..5).map(|sample| 1_000_000 - sample * step * 16));
            let rest = (1..20).map(|sample| 1_000_000 - (4 * 16 + sample * 8) * step);
            see(&mut progress, &Mark { at_ns: 5, ..mark }, rest);
        }
        let found = compared(&progress, 5).unwrap();
        assert!((0.49..0.51).contains(&found.after.likely), "half as fast: {found:?}");
        assert_eq!(found.threads, [1, 2]);
    }

    #[test]
    fn too_few_say_nothing() {
        let mut progress = Progress::default();
        see(&mut progress, &MARK, 0..30);
        assert!(compared(&progress, 3).is_none(), "before");
        assert!(compared(&progress, 25).is_none(), "after");
        assert!(compared(&progress, 10).is_some());
    }

    #[test]
    fn loops_that_begin_anew_all_the_time_say_nothing() {
        let mut progress = Progress::default();
        see(&mut progress, &MARK, (0..200).map(|sample| sample * 37 % 100));
        assert!(progress.by_lines(&[LINE], &(0..200)).is_empty());
        let mut seldom = Progress::default();
        see(&mut seldom, &MARK, (0..200).map(|sample| sample * 3 % 100));
        let paces = seldom.by_lines(&[LINE], &(0..200));
        assert!(paces.0.values().flatten().all(|&laps| (laps - 3.0).abs() < 1e-9), "{paces:?}");
    }

    #[test]
    fn a_counter_of_four_bytes_goes_on_behind_its_largest_value() {
        let mut progress = Progress::default();
        let mark = Mark { bytes: 4, step: 2, ..MARK };
        see(&mut progress, &mark, [0xffff_fff0, 0xffff_fff8, 0, 8]);
        let paces = progress.by_lines(&[LINE], &(0..9));
        assert_eq!(paces.0[&(1, 0x1000)], [4.0, 4.0, 4.0]);
    }

    #[test]
    fn what_is_read_late_is_compared_over_more_samples() {
        let mut progress = Progress::default();
        // Five samples are looked at together: all find the same value.
        let late = Mark { is_late: true, ..MARK };
        see(&mut progress, &late, (0..40).map(|sample| sample / 5 * 5));
        let paces = progress.by_lines(&[LINE], &(0..99));
        let laps = &paces.0[&(1, 0x1000)];
        assert!(laps.len() >= 4 && laps.iter().all(|laps| (0.5..=1.5).contains(laps)), "{laps:?}");
    }

    #[test]
    fn what_went_on_unseen_is_no_pace() {
        let mut progress = Progress::default();
        see(&mut progress, &MARK, [0, 10]);
        progress.rest();
        see(&mut progress, &Mark { at_ns: 2, ..MARK }, [900, 910]);
        assert_eq!(progress.by_lines(&[LINE], &(0..9)).0[&(1, 0x1000)], [10.0, 10.0]);
    }

    #[test]
    fn what_slept_is_no_pace() {
        let mut progress = Progress::default();
        see(&mut progress, &MARK, [0, 10]);
        (0..40).for_each(|_| progress.pass(1));
        see(&mut progress, &Mark { at_ns: 2, ..MARK }, [20, 30]);
        assert_eq!(progress.by_lines(&[LINE], &(0..9)).0[&(1, 0x1000)], [10.0, 10.0]);
    }
}
