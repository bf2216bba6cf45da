//! How many samples are walked: as many as a small share of a processor does.
//!
//! A program with hundreds of busy threads gives more samples than one may look at. One of so many of each thread is taken then, so that the
//! shares stay right: samples of threads come in turns, and every second of all may be always the same one's. The rest is not counted
//! anywhere. What was not spent is saved, up to [`SAVED_NS`]: so a beginning is looked at closely, and what goes on for long is not.

use std::collections::HashMap;

/// Code that was not optimised takes so many times as long for the same.
const SLOWER: f64 = if cfg!(debug_assertions) { 20.0 } else { 1.0 };
/// What can be saved.
const SAVED_NS: f64 = 5e6 * SLOWER;
/// The most samples of which one is walked.
const MOST_APART: u32 = 1024;

/// Chooses the samples.
#[derive(Debug)]
pub(super) struct Budget {
    /// The share of a processor that walking may take.
    share: f64,
    /// One of so many is walked.
    apart: u32,
    /// Nanoseconds of a processor that may be spent beside its share.
    saved_ns: f64,
    /// Samples of each thread since the last that was taken.
    counts: HashMap<u32, u32>,
}

/// Threads that are told apart; those that have ended are among them.
const MOST_THREADS: usize = 4096;

impl Budget {
    /// Walking may take this share of a processor.
    pub(super) fn of(share: f64) -> Self {
        Self { share: share * SLOWER, apart: 1, saved_ns: SAVED_NS, counts: HashMap::new() }
    }

    /// Whether the next sample of this thread is walked.
    pub(super) fn takes(&mut self, thread: u32) -> bool {
        if self.counts.len() >= MOST_THREADS {
            self.counts.clear();
        }
        let count = self.counts.entry(thread).or_default();
        *count += 1;
        let takes = *count >= self.apart;
        if takes {
            *count = 0;
        }
        takes
    }

    /// Walking took `spent_ns` of the last `passed_ns`.
    pub(super) fn settle(&mut self, spent_ns: u64, passed_ns: u64) {
        let (spent_ns, allowed_ns) = (spent_ns as f64, passed_ns.max(1) as f64 * self.share);
        self.saved_ns = (self.saved_ns + allowed_ns - spent_ns).clamp(-SAVED_NS, SAVED_NS);
        if spent_ns > allowed_ns && self.saved_ns < 0.0 {
            self.apart = (self.apart * 2).min(MOST_APART);
        } else if spent_ns < allowed_ns / 4.0 {
            self.apart = (self.apart / 2).max(1);
        }
    }

    /// Threads of which samples came.
    pub(super) fn threads(&self) -> usize {
        self.counts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(budget: &mut Budget, samples: u32) -> usize {
        (0..samples).filter(|_| budget.takes(7)).count()
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some nanoseconds")]
    fn all_are_taken_until_it_costs_too_much() {
        let mut budget = Budget::of(0.01);
        assert_eq!(taken(&mut budget, 64), 64);
        let some = |part: f64| (part * 0.01 * SLOWER * 1e6) as u64;
        // Four times more than what it may spend, of what was saved.
        (0..125).for_each(|_| budget.settle(some(5.0), 1_000_000));
        assert_eq!(taken(&mut budget, 64), 64);
        budget.settle(some(5.0), 1_000_000);
        budget.settle(some(5.0), 1_000_000);
        assert_eq!(taken(&mut budget, 64), 16);
        budget.settle(some(0.5), 1_000_000);
        assert_eq!(taken(&mut budget, 64), 16, "neither much nor little");
        (0..9).for_each(|_| budget.settle(0, 1_000_000));
        assert_eq!(taken(&mut budget, 64), 64);
        (0..99).for_each(|_| budget.settle(9_000_000, 1_000_000));
        assert_eq!(taken(&mut budget, 4096), 4, "some always are");
    }

    #[test]
    fn threads_whose_samples_come_in_turns_are_taken_alike() {
        let mut budget = Budget::of(0.01);
        budget.saved_ns = 0.0;
        budget.settle(9_000_000, 1_000_000);
        let taken: Vec<u32> = (0..64).map(|sample| sample % 2).filter(|&thread| budget.takes(thread)).collect();
        assert_eq!([0, 1].map(|own| taken.iter().filter(|&&thread| thread == own).count()), [16, 16]);
    }
}
