//! The speed of threads: iterations of their loops per sample, by the loops' own counters.
//!
//! ```text
//!   samples of thread 7     |    |    |    |    |         one per fixed amount of its running time
//!   its loop's counter     100  140  180  820 1460        40, 40, 640, 640 iterations per sample: 16 times faster
//! ```
//! A counter is identified by its instruction. The unit is the thread's own samples instead of
//! time, so that waiting for a processor does not count as slow. A counter that goes backwards has
//! been restarted with its loop. A counter with frequent restarts belongs to a short loop; it is
//! ignored.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use fieldstone_stats::Interval;

/// Minimum distance in samples of two compared values that were read later than their samples.
const LATE_APART: u64 = 8;
/// Maximum distance: values further apart need not be of one run of the loop.
const MOST_APART: u64 = 32;
/// Paces kept per counter.
const MOST_PACES: usize = 1024;
/// Maximum number of counters. A program spends its time in few loops.
const MOST_TRACKS: usize = 512;
/// Minimum number of values per restart of a usable counter.
const VALUES_A_RESTART: u32 = 8;
/// Minimum numbers of paces before and after for a comparison, over all threads.
const LEAST_BEFORE: usize = 4;
const LEAST_AFTER: usize = 16;

/// The value of a loop counter in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterValue {
    /// The thread.
    pub thread: u32,
    /// Address of the instruction that changes the counter.
    pub counter: u64,
    /// The value.
    pub value: u64,
    /// Its change per iteration.
    pub step: i64,
    /// Its size in bytes, 4 or 8.
    pub bytes: u32,
    /// Whether the value was read later than the sample was taken.
    pub is_late: bool,
    /// Time in nanoseconds.
    pub at_ns: u64,
}

/// The speed of a program's threads.
#[derive(Debug, Clone, Default)]
pub struct LoopProgress {
    /// Number of samples of each thread.
    samples: HashMap<u32, u64>,
    /// Counters by thread and instruction.
    tracks: HashMap<(u32, u64), CounterTrack>,
}

/// A counter of a thread.
#[derive(Debug, Clone)]
struct CounterTrack {
    value: u64,
    /// Number of the thread's sample that had the value.
    sample: u64,
    values: u32,
    restarts: u32,
    paces: VecDeque<PaceSample>,
}

/// Iterations per sample.
#[derive(Debug, Clone)]
struct PaceSample {
    at_ns: u64,
    iterations: f64,
    /// Cache lines that an iteration accesses.
    lines: Arc<[u64]>,
}

/// Several paces in iterations per sample, by thread and counter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PaceSeries(BTreeMap<(u32, u64), Vec<f64>>);

/// The paces of threads before and after a change, relative to each thread's mean before.
#[derive(Debug, Clone, PartialEq)]
pub struct PaceComparison {
    /// Before.
    pub before: Interval,
    /// After.
    pub after: Interval,
    /// The threads with paces in both.
    pub threads: Vec<u32>,
}

impl LoopProgress {
    /// Counts a sample of a thread.
    pub fn count_sample(&mut self, thread: u32) {
        *self.samples.entry(thread).or_default() += 1;
    }

    /// Records a pause of the sampling. Later values are not compared with earlier ones.
    pub fn pause(&mut self) {
        self.samples.values_mut().for_each(|samples| *samples += MOST_APART);
    }

    /// Records the value of a counter in the thread's last sample. The loop accesses these cache
    /// lines.
    pub fn record(&mut self, mark: &CounterValue, lines: &[u64]) {
        let sample = self.samples.get(&mark.thread).copied().unwrap_or_default();
        let key = (mark.thread, mark.counter);
        if self.tracks.len() >= MOST_TRACKS && !self.tracks.contains_key(&key) {
            self.tracks.clear();
        }
        let begin = || CounterTrack { value: mark.value, sample, values: 0, restarts: 0, paces: VecDeque::new() };
        let track = self.tracks.entry(key).or_insert_with(begin);
        let apart = sample.saturating_sub(track.sample);
        if apart < if mark.is_late { LATE_APART } else { 1 } {
            return;
        }
        let iterations = iterations(track.value, mark);
        (track.value, track.sample) = (mark.value, sample);
        if apart > MOST_APART {
            return;
        }
        track.values += 1;
        track.restarts += u32::from(iterations.is_none());
        let Some(iterations) = iterations else { return };
        if track.paces.len() == MOST_PACES {
            track.paces.pop_front();
        }
        let last = track.paces.back().map(|pace| &pace.lines).filter(|last| ***last == *lines);
        let lines = last.map_or_else(|| lines.into(), Arc::clone);
        track.paces.push_back(PaceSample { at_ns: mark.at_ns, iterations: iterations as f64 / apart as f64, lines });
    }

    /// The paces in this time range of loops that accessed one of these cache lines.
    #[must_use]
    pub fn by_lines(&self, lines: &[u64], within: &Range<u64>) -> PaceSeries {
        let mut found = BTreeMap::new();
        for (&key, track) in self.tracks.iter().filter(|(_, track)| track.is_usable()) {
            let fits =
                |pace: &&PaceSample| within.contains(&pace.at_ns) && pace.lines.iter().any(|line| lines.contains(line));
            let iterations: Vec<f64> = track.paces.iter().filter(fits).map(|pace| pace.iterations).collect();
            if !iterations.is_empty() {
                found.insert(key, iterations);
            }
        }
        PaceSeries(found)
    }

    /// Forgets an ended thread.
    pub fn forget(&mut self, thread: u32) {
        self.samples.remove(&thread);
        self.tracks.retain(|&(of, _), _| of != thread);
    }
}

impl CounterTrack {
    const fn is_usable(&self) -> bool {
        self.restarts * VALUES_A_RESTART <= self.values
    }
}

impl PaceSeries {
    /// Whether there are no paces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares these paces with later ones. Each thread counts by its counter with the most
    /// values. `None` if too few paces are in both.
    #[must_use]
    pub fn compared(&self, after: &Self) -> Option<PaceComparison> {
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
            one.extend(before.iter().map(|iterations| iterations / mean));
            other.extend(after.iter().map(|iterations| iterations / mean));
        }
        let enough = one.len() >= LEAST_BEFORE && other.len() >= LEAST_AFTER;
        let (before, after) = Interval::of_rates(&one).zip(Interval::of_rates(&other)).filter(|_| enough)?;
        Some(PaceComparison { before, after, threads })
    }
}

/// Iterations between two values. `None` if the counter went backwards or changed by no multiple of
/// its step.
fn iterations(from: u64, mark: &CounterValue) -> Option<u64> {
    let difference = mark.value.wrapping_sub(from).cast_signed();
    // Sign-extend from the counter's width.
    let unused = 64 - 8 * mark.bytes.clamp(1, 8);
    let difference = difference << unused >> unused;
    if difference.checked_rem(mark.step)? != 0 {
        return None;
    }
    u64::try_from(difference.checked_div(mark.step)?).ok()
}

#[cfg(test)]
mod tests {
    use super::{CounterValue, LoopProgress, PaceComparison};

    const MARK: CounterValue =
        CounterValue { thread: 1, counter: 0x1000, value: 0, step: 1, bytes: 8, is_late: false, at_ns: 0 };
    const LINE: u64 = 0x7000;

    /// Records a value for each sample of `mark`'s thread.
    fn record(progress: &mut LoopProgress, mark: &CounterValue, values: impl IntoIterator<Item = u64>) {
        for (at_ns, value) in (mark.at_ns..).zip(values) {
            progress.count_sample(mark.thread);
            progress.record(&CounterValue { value, at_ns, ..*mark }, &[LINE]);
        }
    }

    fn compared(progress: &LoopProgress, change_ns: u64) -> Option<PaceComparison> {
        let within = |range| progress.by_lines(&[LINE, LINE + 64], &range);
        within(0..change_ns).compared(&within(change_ns..u64::MAX))
    }

    #[test]
    fn a_faster_thread_has_more_iterations_per_sample() {
        let mut progress = LoopProgress::default();
        record(&mut progress, &MARK, (0..10).map(|sample| sample * 40));
        record(&mut progress, &CounterValue { at_ns: 10, ..MARK }, (1..30).map(|sample| 360 + sample * 120));
        let found = compared(&progress, 10).unwrap();
        assert_eq!((found.before.likely, found.after.likely, found.threads), (1.0, 3.0, vec![1]));
        assert!(progress.by_lines(&[LINE + 64], &(0..100)).is_empty());
        progress.forget(1);
        assert!(progress.by_lines(&[LINE], &(0..100)).is_empty());
    }

    #[test]
    fn each_thread_is_compared_to_itself() {
        let mut progress = LoopProgress::default();
        for (thread, step) in [(1, 10), (2, 1000)] {
            let mark = CounterValue { thread, step: -16, ..MARK };
            record(&mut progress, &mark, (0..5).map(|sample| 1_000_000 - sample * step * 16));
            let rest = (1..20).map(|sample| 1_000_000 - (4 * 16 + sample * 8) * step);
            record(&mut progress, &CounterValue { at_ns: 5, ..mark }, rest);
        }
        let found = compared(&progress, 5).unwrap();
        assert!((0.49..0.51).contains(&found.after.likely), "half as fast: {found:?}");
        assert_eq!(found.threads, [1, 2]);
    }

    #[test]
    fn too_few_paces_give_no_comparison() {
        let mut progress = LoopProgress::default();
        record(&mut progress, &MARK, 0..30);
        assert!(compared(&progress, 3).is_none(), "before");
        assert!(compared(&progress, 25).is_none(), "after");
        assert!(compared(&progress, 10).is_some());
    }

    #[test]
    fn counters_with_frequent_restarts_are_ignored() {
        let mut progress = LoopProgress::default();
        record(&mut progress, &MARK, (0..200).map(|sample| sample * 37 % 100));
        assert!(progress.by_lines(&[LINE], &(0..200)).is_empty());
        let mut seldom = LoopProgress::default();
        record(&mut seldom, &MARK, (0..200).map(|sample| sample * 3 % 100));
        let paces = seldom.by_lines(&[LINE], &(0..200));
        assert!(paces.0.values().flatten().all(|&iterations| (iterations - 3.0).abs() < 1e-9), "{paces:?}");
    }

    #[test]
    fn a_four_byte_counter_wraps_around() {
        let mut progress = LoopProgress::default();
        let mark = CounterValue { bytes: 4, step: 2, ..MARK };
        record(&mut progress, &mark, [0xffff_fff0, 0xffff_fff8, 0, 8]);
        let paces = progress.by_lines(&[LINE], &(0..9));
        assert_eq!(paces.0[&(1, 0x1000)], [4.0, 4.0, 4.0]);
    }

    #[test]
    fn late_values_are_compared_over_more_samples() {
        let mut progress = LoopProgress::default();
        // Five samples are read at the same time: all get the same value.
        let late = CounterValue { is_late: true, ..MARK };
        record(&mut progress, &late, (0..40).map(|sample| sample / 5 * 5));
        let paces = progress.by_lines(&[LINE], &(0..99));
        let iterations = &paces.0[&(1, 0x1000)];
        assert!(
            iterations.len() >= 4 && iterations.iter().all(|iterations| (0.5..=1.5).contains(iterations)),
            "{iterations:?}"
        );
    }

    #[test]
    fn a_pause_of_sampling_is_no_pace() {
        let mut progress = LoopProgress::default();
        record(&mut progress, &MARK, [0, 10]);
        progress.pause();
        record(&mut progress, &CounterValue { at_ns: 2, ..MARK }, [900, 910]);
        assert_eq!(progress.by_lines(&[LINE], &(0..9)).0[&(1, 0x1000)], [10.0, 10.0]);
    }

    #[test]
    fn a_long_gap_between_values_is_no_pace() {
        let mut progress = LoopProgress::default();
        record(&mut progress, &MARK, [0, 10]);
        (0..40).for_each(|_| progress.count_sample(1));
        record(&mut progress, &CounterValue { at_ns: 2, ..MARK }, [20, 30]);
        assert_eq!(progress.by_lines(&[LINE], &(0..9)).0[&(1, 0x1000)], [10.0, 10.0]);
    }
}
