//! A thread that writes to random words of a heap, and records its progress over time.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{scope, yield_now};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fieldstone_pages::Memory;
use fieldstone_workloads::random::{SplitMix64, scale};

/// Bytes of a page on all machines, as in a save.
pub(super) const PAGE: usize = 4096;
/// Words of a page.
pub(super) const WORDS: usize = PAGE / 8;
/// Writes between two readings of the clock, under one lock.
const BATCH: u64 = 64;
/// The resolution of the recorded progress.
const INTERVAL: Duration = Duration::from_micros(100);

/// Memory all of whose pages have contents.
///
/// # Errors
/// Without memory.
pub fn filled_heap(bytes: usize) -> Result<Memory> {
    let memory = Memory::anonymous(bytes)?;
    for (number, word) in memory.words().iter().step_by(WORDS).enumerate() {
        word.store(number as u64 | 1, Relaxed);
    }
    Ok(memory)
}

/// The lock that the writer holds while it writes. A save that waits for it receives it next.
#[derive(Debug, Default)]
pub struct WriteLock {
    lock: Mutex<()>,
    is_wanted: AtomicBool,
}

impl WriteLock {
    /// Waits until the writer waits.
    pub fn stop_writer(&self) -> MutexGuard<'_, ()> {
        self.is_wanted.store(true, Relaxed);
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_wanted.store(false, Relaxed);
        guard
    }

    fn enter(&self) -> MutexGuard<'_, ()> {
        while self.is_wanted.load(Relaxed) {
            yield_now();
        }
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes at random to the first pages of a heap.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    pub(super) heap: &'a Memory,
    pub(super) lock: &'a WriteLock,
    /// Number of pages that it writes to.
    pub(super) pages: usize,
    pub(super) seed: u64,
}

impl Writer<'_> {
    /// Writes while `work` runs.
    ///
    /// # Errors
    /// With the error of `work`.
    pub(super) fn run_beside<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Progress)> {
        let ends = AtomicBool::new(false);
        let since = Instant::now();
        scope(|threads| {
            let writer = threads.spawn(|| self.write(since, &ends));
            let done = work();
            ends.store(true, Relaxed);
            let progress = writer.join().ok().context("the writer panicked")?;
            Ok((done?, progress))
        })
    }

    fn write(&self, since: Instant, ends: &AtomicBool) -> Progress {
        let (words, count) = (self.heap.words(), self.pages * WORDS);
        let mut random = SplitMix64::new(self.seed);
        let mut progress = Progress { since, intervals: Vec::new() };
        let mut last = Instant::now();
        while !ends.load(Relaxed) {
            let guard = self.lock.enter();
            for _ in 0..BATCH {
                let draw = random.draw();
                words[scale(draw, count)].store(draw, Relaxed);
            }
            drop(guard);
            let now = Instant::now();
            progress.add(now, now - last);
            last = now;
        }
        progress
    }
}

/// Progress of a writer over time.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub(super) since: Instant,
    pub(super) intervals: Vec<ProgressInterval>,
}

/// What a writer did in one interval of [`INTERVAL`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProgressInterval {
    pub(super) writes: u64,
    /// The longest time of the batches that ended in it.
    pub(super) longest: Duration,
}

impl Progress {
    fn add(&mut self, end: Instant, batch: Duration) {
        let at = self.index(end);
        if at >= self.intervals.len() {
            self.intervals.resize(at + 1, ProgressInterval::default());
        }
        let interval = &mut self.intervals[at];
        interval.writes += BATCH;
        interval.longest = interval.longest.max(batch);
    }

    fn index(&self, at: Instant) -> usize {
        usize::try_from(at.saturating_duration_since(self.since).as_micros() / INTERVAL.as_micros()).unwrap_or(0)
    }

    /// Writes per second between two instants; `None` if the writer did not run all that time.
    pub(super) fn rate(&self, from: Instant, to: Instant) -> Option<f64> {
        let intervals = self.intervals.get(self.index(from)..self.index(to))?;
        let writes: u64 = intervals.iter().map(|interval| interval.writes).sum();
        (!intervals.is_empty()).then(|| writes as f64 / (intervals.len() as f64 * INTERVAL.as_secs_f64()))
    }

    /// The longest time of [`BATCH`] writes between two instants, including a batch that ends shortly after.
    pub(super) fn longest(&self, from: Instant, to: Instant) -> Duration {
        let last = self.intervals.len().min(self.index(to) + 2);
        let intervals = self.intervals.get(self.index(from)..last).unwrap_or_default();
        intervals.iter().map(|interval| interval.longest).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    fn progress(writes: &[(u64, u64)]) -> Progress {
        let interval = |&(writes, micros)| ProgressInterval { writes, longest: Duration::from_micros(micros) };
        Progress { since: Instant::now(), intervals: writes.iter().map(interval).collect() }
    }

    #[test]
    fn a_rate_and_the_longest_time_are_those_between_two_instants() {
        let progress = progress(&[(100, 9), (200, 1), (0, 2), (400, 150), (100, 3), (100, 700)]);
        let at = |intervals: u32| progress.since + INTERVAL * intervals;
        assert!((progress.rate(at(1), at(3)).unwrap() - 1e6).abs() < 1.0);
        assert!(progress.rate(at(1), at(99)).is_none() && progress.rate(at(1), at(1)).is_none());
        // The wait of 150 µs from the third interval on ends in the fourth.
        assert_eq!(progress.longest(at(1), at(2)), Duration::from_micros(150));
        assert_eq!(progress.longest(at(4), at(99)), Duration::from_micros(700));
    }

    #[test]
    fn the_writer_waits_while_its_lock_is_held() {
        let (heap, lock) = (filled_heap(64 * PAGE).unwrap(), WriteLock::default());
        let writer = Writer { heap: &heap, lock: &lock, pages: 64, seed: 1 };
        let around = Duration::from_millis(20);
        let (contents, progress) = writer
            .run_beside(|| {
                sleep(around);
                let guard = lock.stop_writer();
                let contents = || heap.words().iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>();
                let first = contents();
                sleep(around);
                let second = contents();
                drop(guard);
                sleep(around);
                Ok((first, second))
            })
            .unwrap();
        assert_eq!(contents.0, contents.1);
        assert!(progress.intervals.iter().any(|interval| interval.longest >= around));
        assert!(heap.words().iter().skip(1).step_by(WORDS).any(|word| word.load(Relaxed) != 0));
    }
}
