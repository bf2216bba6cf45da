//! Markers: the blocks without which no program runs for long, those that end in a jump backwards, or to where only the run tells.
//!
//! Phases change at markers. While accesses pass, markers alone call back (`switch`), and each stands for what it usually
//! ends: the accesses and instructions since the marker before it, an average over its runs in bursts. What a marker of a program's
//! inner loop stands for hardly ever changes, so that these estimates are close.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

/// Bits behind the point in an average.
const FRACTION: u32 = 16;
/// A run moves the average by this power of two's part of the difference.
const WEIGHT: u32 = 4;
/// Of so many of a marker's lessons, one is told to the average of all, which all threads share.
const SELDOM: u32 = 64;
/// More than this between two markers is a gap in what was told.
const MOST: u64 = 1 << 32;

/// What was run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Run {
    pub(crate) accesses: u64,
    pub(crate) instructions: u64,
}

impl Run {
    pub(crate) const NONE: Self = Self { accesses: 0, instructions: 0 };

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            accesses: self.accesses.saturating_sub(before.accesses),
            instructions: self.instructions.saturating_sub(before.instructions),
        }
    }
}

/// What a marker stands for.
#[derive(Debug)]
pub(crate) struct Marker {
    accesses: AtomicU64,
    instructions: AtomicU64,
    /// Runs that changed it.
    lessons: AtomicU32,
}

/// The average of all markers: of each one's first lesson, and of some later ones.
static USUAL: Marker =
    Marker { accesses: AtomicU64::new(0), instructions: AtomicU64::new(0), lessons: AtomicU32::new(0) };

impl Marker {
    /// The marker at `address`. Until it is known better it stands for its own block where that `loops` by itself, and for what markers
    /// usually do, and its own block at least, elsewhere.
    pub(crate) fn at(address: u64, block: Run, loops: bool) -> &'static Self {
        static ALL: Mutex<Option<HashMap<u64, &'static Marker>>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_or_insert_default().entry(address).or_insert_with(|| {
            let marker = Self::of(block);
            if !loops {
                marker.accesses.fetch_max(USUAL.accesses.load(Relaxed), Relaxed);
                marker.instructions.fetch_max(USUAL.instructions.load(Relaxed), Relaxed);
            }
            Box::leak(Box::new(marker))
        })
    }

    fn of(block: Run) -> Self {
        let exactly = |count| AtomicU64::new(count << FRACTION);
        Self {
            accesses: exactly(block.accesses),
            instructions: exactly(block.instructions),
            lessons: AtomicU32::new(0),
        }
    }

    /// Learns from one run what it stands for. Two threads that learn at once may lose a lesson.
    pub(crate) fn learn(&self, run: Run) {
        self.learn_and_tell(run, &USUAL);
    }

    /// What it stands for already is no lesson: nothing is written then, so that threads in one loop do not wait for each other.
    fn learn_and_tell(&self, run: Run, usual: &Self) {
        if !self.move_to(run) {
            return;
        }
        let lessons = self.lessons.load(Relaxed);
        self.lessons.store(lessons.wrapping_add(1), Relaxed);
        if lessons.is_multiple_of(SELDOM) {
            usual.move_to(run);
        }
    }

    /// Whether it was elsewhere.
    fn move_to(&self, run: Run) -> bool {
        let mut moved = false;
        for (average, count) in [(&self.accesses, run.accesses), (&self.instructions, run.instructions)] {
            let now = average.load(Relaxed);
            let (target, part) = (count.min(MOST) << FRACTION, |difference: u64| difference >> WEIGHT);
            let next = if target > now { now + part(target - now) } else { now - part(now - target) };
            if next != now {
                average.store(next, Relaxed);
                moved = true;
            }
        }
        moved
    }

    /// Adds what it stands for; `rest` keeps the fractions.
    #[inline(always)]
    pub(crate) fn add_to(&self, run: &mut Run, rest: &mut Run) {
        let whole = |average: &AtomicU64, rest: &mut u64| {
            *rest += average.load(Relaxed);
            let whole = *rest >> FRACTION;
            *rest &= (1 << FRACTION) - 1;
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
    fn a_marker_learns_what_it_stands_for() {
        let marker = Marker::of(Run { accesses: 1, instructions: 4 });
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..1000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            marker.learn(Run { accesses: random % 3, instructions: 20 });
        }
        let (mut run, mut rest) = (Run::NONE, Run::NONE);
        (0..1000).for_each(|_| marker.add_to(&mut run, &mut rest));
        assert!((19_990..=20_000).contains(&run.instructions), "{run:?}");
        assert!((400..1600).contains(&run.accesses), "the mean of 0, 1 and 2 is 1: {run:?}");
    }

    #[test]
    fn what_is_known_is_no_lesson() {
        let run = Run { accesses: 3, instructions: 9 };
        let (marker, usual) = (Marker::of(Run { accesses: 200, instructions: 700 }), Marker::of(Run::NONE));
        (0..1000).for_each(|_| marker.learn_and_tell(run, &usual));
        let lessons = marker.lessons.load(Relaxed);
        assert!((1..500).contains(&lessons), "{lessons}");
        let told = usual.accesses.load(Relaxed);
        (0..1000).for_each(|_| marker.learn_and_tell(run, &usual));
        assert_eq!((marker.lessons.load(Relaxed), usual.accesses.load(Relaxed)), (lessons, told));
    }

    #[test]
    fn few_lessons_are_told_to_all_and_they_have_the_same_mean() {
        let (marker, usual) = (Marker::of(Run::NONE), Marker::of(Run::NONE));
        let mut told = 0;
        for turn in 0..100 * u64::from(SELDOM) {
            let before = usual.accesses.load(Relaxed);
            marker.learn_and_tell(Run { accesses: turn % 7, instructions: 20 }, &usual);
            told += u64::from(usual.accesses.load(Relaxed) != before);
        }
        assert!((50..=100).contains(&told), "{told}");
        let mean = usual.accesses.load(Relaxed) >> FRACTION;
        assert!((2..4).contains(&mean), "the mean of 0 to 6 is 3: {mean}");
    }

    #[test]
    fn one_address_has_one_marker() {
        let marker = |address| std::ptr::from_ref(Marker::at(address, Run::NONE, false));
        assert!(marker(0x1000) == marker(0x1000) && marker(0x1000) != marker(0x2000));
    }
}
