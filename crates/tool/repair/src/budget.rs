//! How many samples are walked: as many as a small share of a processor does.
//!
//! A program with hundreds of busy threads gives more samples than one may look at. Those of some windows of time are taken then, of all
//! threads: threads are known to run at the same time by being seen in the same windows ([`fieldstone_sharing::Windows`]), and one of so many
//! samples of each would hardly ever fall into the same ones. The rest is not counted anywhere. What was not spent is saved, up to [`SAVED_NS`]:
//! so a beginning is looked at closely, and what goes on for long is not. As much is kept for the next thread that begins, whatever the
//! others did before.

use std::collections::HashSet;

/// Code that was not optimised takes so many times as long for the same.
const SLOWER: f64 = if cfg!(debug_assertions) { 20.0 } else { 1.0 };
/// What can be saved, and kept.
const SAVED_NS: f64 = 5e6 * SLOWER;
/// Of the share, for threads that begin.
const KEPT: f64 = 0.25;
/// The most windows of which one is looked at.
const MOST_APART: u64 = 1024;
/// Multiplied by this, numbers that follow each other are spread evenly, and in step with nothing (Knuth, *The Art of Computer Programming* 3, 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Chooses the samples.
#[derive(Debug)]
pub(super) struct Budget {
    /// The share of a processor that walking may take.
    share: f64,
    /// The length of a window.
    window_ns: u64,
    /// One of so many is looked at.
    apart: u64,
    /// Nanoseconds of a processor that may be spent beside its share.
    saved_ns: f64,
    /// The same, for when a thread begins.
    kept_ns: f64,
    threads: HashSet<u32>,
}

/// Threads that are told apart; those that have ended are among them.
const MOST_THREADS: usize = 4096;

impl Budget {
    /// Walking may take this share of a processor, and half as much again where threads begin again and again.
    pub(super) fn of(share: f64, window_ns: u64) -> Self {
        Self {
            share: share * SLOWER,
            window_ns,
            apart: 1,
            saved_ns: SAVED_NS,
            kept_ns: SAVED_NS,
            threads: HashSet::new(),
        }
    }

    /// Whether a sample of this thread and time is walked.
    pub(super) fn takes(&mut self, thread: u32, at_ns: u64) -> bool {
        if self.threads.len() >= MOST_THREADS {
            self.threads.clear();
        }
        if self.threads.insert(thread) && self.threads.len() > 1 {
            self.begin();
        }
        (at_ns / self.window_ns).wrapping_mul(SPREAD) <= u64::MAX / self.apart
    }

    /// A thread begins beside others.
    fn begin(&mut self) {
        if self.kept_ns >= SAVED_NS / 2.0 {
            self.saved_ns = self.saved_ns.max(std::mem::take(&mut self.kept_ns));
            self.apart = 1;
        }
    }

    /// Walking took `spent_ns` of the last `passed_ns`.
    pub(super) fn settle(&mut self, spent_ns: u64, passed_ns: u64) {
        let (spent_ns, allowed_ns) = (spent_ns as f64, passed_ns.max(1) as f64 * self.share);
        self.kept_ns = (self.kept_ns + allowed_ns * KEPT).min(SAVED_NS);
        self.saved_ns = (self.saved_ns + allowed_ns - spent_ns).clamp(-SAVED_NS, SAVED_NS);
        if spent_ns > allowed_ns && self.saved_ns < 0.0 {
            self.apart = (self.apart * 2).min(MOST_APART);
        } else if spent_ns < allowed_ns / 4.0 {
            self.apart = (self.apart / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_NS: u64 = 4_000_000;
    /// A thread gives so many samples in a window.
    const SAMPLES: u64 = 4;

    /// Of `windows` windows those in which samples of both of two threads are taken, and in which samples of one of them are.
    fn taken(budget: &mut Budget, windows: u64) -> (usize, usize) {
        // The second thread's samples come a little later.
        let mut in_window = |thread: u32, window: u64| {
            let at = |sample| window * WINDOW_NS + (sample * 2 + u64::from(thread)) * WINDOW_NS / (2 * SAMPLES);
            let taken = (0..SAMPLES).filter(|&sample| budget.takes(thread, at(sample))).count() as u64;
            assert!(taken == 0 || taken == SAMPLES, "a part of a window");
            taken > 0
        };
        let taken: Vec<[bool; 2]> = (0..windows).map(|window| [0, 1].map(|thread| in_window(thread, window))).collect();
        let count = |wanted: fn(&[bool; 2]) -> bool| taken.iter().filter(|both| wanted(both)).count();
        (count(|both| both[0] && both[1]), count(|both| both[0] || both[1]))
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some nanoseconds")]
    fn all_are_taken_until_it_costs_too_much() {
        let mut budget = Budget::of(0.01, WINDOW_NS);
        assert_eq!(taken(&mut budget, 64), (64, 64));
        let some = |part: f64| (part * 0.01 * SLOWER * 1e6) as u64;
        // Four times more than what it may spend, of what was saved.
        (0..125).for_each(|_| budget.settle(some(5.0), 1_000_000));
        assert_eq!(taken(&mut budget, 64), (64, 64));
        budget.settle(some(5.0), 1_000_000);
        budget.settle(some(5.0), 1_000_000);
        assert_eq!(budget.apart, 4);
        budget.settle(some(0.5), 1_000_000);
        assert_eq!(budget.apart, 4, "neither much nor little");
        (0..9).for_each(|_| budget.settle(0, 1_000_000));
        assert_eq!(taken(&mut budget, 64), (64, 64));
        (0..99).for_each(|_| budget.settle(9_000_000, 1_000_000));
        let (both, either) = taken(&mut budget, 16_384);
        assert!((15..=17).contains(&both) && either == both, "some always are: {both}, {either}");
    }

    #[test]
    fn threads_are_taken_in_the_same_windows() {
        let mut budget = Budget::of(0.01, WINDOW_NS);
        (budget.saved_ns, budget.kept_ns) = (0.0, 0.0);
        for apart in [2, 4, 8, 16] {
            budget.settle(9_000_000, 1_000_000);
            let (both, either) = taken(&mut budget, 1600);
            assert_eq!(both, either);
            assert!(both.abs_diff(1600 / apart) <= 2, "{both} of 1600, one of {apart} expected");
        }
        assert_eq!(budget.threads.len(), 2);
    }

    #[test]
    fn a_thread_that_begins_is_looked_at_closely_whatever_went_before() {
        let mut budget = Budget::of(0.01, WINDOW_NS);
        let spend = |budget: &mut Budget| (0..99).for_each(|_| budget.settle(9_000_000, 1_000_000));
        let is_close = |budget: &mut Budget, thread| (0..64).all(|window| budget.takes(thread, window * WINDOW_NS));
        spend(&mut budget);
        assert!(!is_close(&mut budget, 1), "it is the only one");
        assert!(is_close(&mut budget, 2));
        spend(&mut budget);
        assert!(!is_close(&mut budget, 3), "what was kept is spent");
        (0..2000).for_each(|_| budget.settle(9_000_000, 1_000_000));
        assert!(!is_close(&mut budget, 3) && is_close(&mut budget, 4), "some was kept since");
    }
}
