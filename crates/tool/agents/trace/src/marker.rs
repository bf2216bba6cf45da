//! Markers: the blocks at which phases change, that end in a backward jump or in one whose target
//! is known at run time only. No program runs for long without one.
//!
//! Between bursts only markers call back (`translations`). Each adds an estimate of the accesses
//! and instructions since the marker before it: a moving average over its runs in bursts. The
//! counts of a marker of an inner loop are nearly constant, so that the estimate is close.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

/// Fraction bits of an average.
const FRACTION_BITS: u32 = 16;
/// A run moves the average by the difference shifted right by this.
const WEIGHT_SHIFT: u32 = 4;
/// One of this many updates of a marker also updates the average of all markers, which all threads
/// share.
const AVERAGE_INTERVAL: u32 = 64;
/// Counts above this are a gap in the recorded markers.
const MAX_COUNT: u64 = 1 << 32;

/// Numbers of accesses and instructions that ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ExecutionCounts {
    pub(crate) accesses: u64,
    pub(crate) instructions: u64,
}

impl ExecutionCounts {
    pub(crate) const NONE: Self = Self { accesses: 0, instructions: 0 };

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            accesses: self.accesses.saturating_sub(before.accesses),
            instructions: self.instructions.saturating_sub(before.instructions),
        }
    }
}

/// The average counts of a marker.
#[derive(Debug)]
pub(crate) struct Marker {
    accesses: AtomicU64,
    instructions: AtomicU64,
    /// The number of runs that changed it.
    updates: AtomicU32,
}

/// The average of all markers: of the first update of each, and of some later ones.
static AVERAGE: Marker =
    Marker { accesses: AtomicU64::new(0), instructions: AtomicU64::new(0), updates: AtomicU32::new(0) };

impl Marker {
    /// The marker at `address`. Its initial value is the counts of its own block if that `is_loop`
    /// to itself, otherwise the larger of those and the average of all markers.
    pub(crate) fn at(address: u64, block: ExecutionCounts, is_loop: bool) -> &'static Self {
        static ALL: Mutex<Option<HashMap<u64, &'static Marker>>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_or_insert_default().entry(address).or_insert_with(|| {
            let marker = Self::of(block);
            if !is_loop {
                marker.accesses.fetch_max(AVERAGE.accesses.load(Relaxed), Relaxed);
                marker.instructions.fetch_max(AVERAGE.instructions.load(Relaxed), Relaxed);
            }
            Box::leak(Box::new(marker))
        })
    }

    fn of(block: ExecutionCounts) -> Self {
        let exactly = |count| AtomicU64::new(count << FRACTION_BITS);
        Self {
            accesses: exactly(block.accesses),
            instructions: exactly(block.instructions),
            updates: AtomicU32::new(0),
        }
    }

    /// Updates the average by one run. Of two simultaneous updates one may be lost.
    pub(crate) fn update(&self, run: ExecutionCounts) {
        self.update_with_average(run, &AVERAGE);
    }

    /// A run that equals the average writes nothing, so that threads in one loop do not contend for
    /// the cache line.
    fn update_with_average(&self, run: ExecutionCounts, average_of_all: &Self) {
        if !self.move_to(run) {
            return;
        }
        let updates = self.updates.load(Relaxed);
        self.updates.store(updates.wrapping_add(1), Relaxed);
        if updates.is_multiple_of(AVERAGE_INTERVAL) {
            average_of_all.move_to(run);
        }
    }

    /// Moves the averages towards `run`. Returns whether one changed.
    fn move_to(&self, run: ExecutionCounts) -> bool {
        let mut has_changed = false;
        for (average, count) in [(&self.accesses, run.accesses), (&self.instructions, run.instructions)] {
            let now = average.load(Relaxed);
            let (target, part) = (count.min(MAX_COUNT) << FRACTION_BITS, |difference: u64| difference >> WEIGHT_SHIFT);
            let next = if target > now { now + part(target - now) } else { now - part(now - target) };
            if next != now {
                average.store(next, Relaxed);
                has_changed = true;
            }
        }
        has_changed
    }

    /// Adds the average counts to `run`; `rest` keeps the fractions.
    #[inline(always)]
    pub(crate) fn add_to(&self, run: &mut ExecutionCounts, rest: &mut ExecutionCounts) {
        let whole = |average: &AtomicU64, rest: &mut u64| {
            *rest += average.load(Relaxed);
            let whole = *rest >> FRACTION_BITS;
            *rest &= (1 << FRACTION_BITS) - 1;
            whole
        };
        run.accesses += whole(&self.accesses, &mut rest.accesses);
        run.instructions += whole(&self.instructions, &mut rest.instructions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_converges_to_the_mean_of_its_runs() {
        let marker = Marker::of(ExecutionCounts { accesses: 1, instructions: 4 });
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..1000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            marker.update(ExecutionCounts { accesses: random % 3, instructions: 20 });
        }
        let (mut run, mut rest) = (ExecutionCounts::NONE, ExecutionCounts::NONE);
        (0..1000).for_each(|_| marker.add_to(&mut run, &mut rest));
        assert!((19_990..=20_000).contains(&run.instructions), "{run:?}");
        assert!((400..1600).contains(&run.accesses), "the mean of 0, 1 and 2 is 1: {run:?}");
    }

    #[test]
    fn a_run_that_equals_the_average_changes_nothing() {
        let run = ExecutionCounts { accesses: 3, instructions: 9 };
        let (marker, average_of_all) =
            (Marker::of(ExecutionCounts { accesses: 200, instructions: 700 }), Marker::of(ExecutionCounts::NONE));
        (0..1000).for_each(|_| marker.update_with_average(run, &average_of_all));
        let updates = marker.updates.load(Relaxed);
        assert!((1..500).contains(&updates), "{updates}");
        let changes = average_of_all.accesses.load(Relaxed);
        (0..1000).for_each(|_| marker.update_with_average(run, &average_of_all));
        assert_eq!((marker.updates.load(Relaxed), average_of_all.accesses.load(Relaxed)), (updates, changes));
    }

    #[test]
    fn few_updates_reach_the_average_of_all_and_keep_its_mean() {
        let (marker, average_of_all) = (Marker::of(ExecutionCounts::NONE), Marker::of(ExecutionCounts::NONE));
        let mut changes = 0;
        for step in 0..100 * u64::from(AVERAGE_INTERVAL) {
            let before = average_of_all.accesses.load(Relaxed);
            marker.update_with_average(ExecutionCounts { accesses: step % 7, instructions: 20 }, &average_of_all);
            changes += u64::from(average_of_all.accesses.load(Relaxed) != before);
        }
        assert!((50..=100).contains(&changes), "{changes}");
        let mean = average_of_all.accesses.load(Relaxed) >> FRACTION_BITS;
        assert!((2..4).contains(&mean), "the mean of 0 to 6 is 3: {mean}");
    }

    #[test]
    fn one_address_has_one_marker() {
        let marker = |address| std::ptr::from_ref(Marker::at(address, ExecutionCounts::NONE, false));
        assert!(marker(0x1000) == marker(0x1000) && marker(0x1000) != marker(0x2000));
    }
}
