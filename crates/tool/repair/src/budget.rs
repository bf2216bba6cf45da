//! A budget for the analysis of samples: a share of one processor.
//!
//! A program with hundreds of busy threads gives more samples than the budget allows. Then whole
//! windows of time are analysed, one of n, the same ones for all threads. Two threads run at the
//! same time if they are sampled in the same windows ([`fieldstone_sharing::Windows`]). One of n
//! samples of each thread would rarely fall into common windows. Samples of other windows are not
//! counted anywhere. Processor time that is not used is saved, up to [`MAX_SAVED_NS`]. So the start
//! of a program is analysed in full. A reserve of the same size exists for the next thread that
//! starts, whatever the others have used.

use std::collections::HashSet;

use crate::tuning::{ANALYSIS_SLOWDOWN, MAX_BUDGET_THREADS, MAX_SAVED_NS, MAX_WINDOW_RATIO, NEW_THREAD_SHARE};

/// Multiplication by this number distributes consecutive numbers evenly and without a period
/// (Knuth, *The Art of Computer Programming* 3, section 6.4).
const FIBONACCI: u64 = 0x9e37_79b9_7f4a_7c15;

/// Chooses the windows whose samples are analysed.
#[derive(Debug)]
pub(crate) struct SampleBudget {
    /// The share of one processor that the analysis may take.
    share: f64,
    /// The length of a window.
    window_ns: u64,
    /// One of this many windows is analysed.
    ratio: u64,
    /// Processor time that may be spent in addition to the share, in nanoseconds. Negative after an
    /// overrun.
    saved_ns: f64,
    /// Processor time reserved for a thread that starts, in nanoseconds.
    reserve_ns: f64,
    threads: HashSet<u32>,
}

impl SampleBudget {
    /// A budget of this share of one processor, and about half of it more while threads start
    /// repeatedly.
    pub(crate) fn new(share: f64, window_ns: u64) -> Self {
        Self {
            share: share * ANALYSIS_SLOWDOWN,
            window_ns,
            ratio: 1,
            saved_ns: MAX_SAVED_NS,
            reserve_ns: MAX_SAVED_NS,
            threads: HashSet::new(),
        }
    }

    /// Whether a sample of this thread and time is analysed.
    pub(crate) fn accepts(&mut self, thread: u32, at_ns: u64) -> bool {
        if self.threads.len() >= MAX_BUDGET_THREADS {
            self.threads.clear();
        }
        if self.threads.insert(thread) && self.threads.len() > 1 {
            self.use_reserve();
        }
        (at_ns / self.window_ns).wrapping_mul(FIBONACCI) <= u64::MAX / self.ratio
    }

    /// Spends the reserve on a thread that starts in addition to others.
    fn use_reserve(&mut self) {
        if self.reserve_ns >= MAX_SAVED_NS / 2.0 {
            self.saved_ns = self.saved_ns.max(std::mem::take(&mut self.reserve_ns));
            self.ratio = 1;
        }
    }

    /// Charges `spent_ns` of processor time for the last `passed_ns`, and adapts the ratio of
    /// windows.
    pub(crate) fn charge(&mut self, spent_ns: u64, passed_ns: u64) {
        let (spent_ns, allowed_ns) = (spent_ns as f64, passed_ns.max(1) as f64 * self.share);
        self.reserve_ns = (self.reserve_ns + allowed_ns * NEW_THREAD_SHARE).min(MAX_SAVED_NS);
        self.saved_ns = (self.saved_ns + allowed_ns - spent_ns).clamp(-MAX_SAVED_NS, MAX_SAVED_NS);
        if spent_ns > allowed_ns && self.saved_ns < 0.0 {
            self.ratio = (self.ratio * 2).min(MAX_WINDOW_RATIO);
        } else if spent_ns < allowed_ns / 4.0 {
            self.ratio = (self.ratio / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_NS: u64 = 4_000_000;
    /// Samples of a thread in one window.
    const SAMPLES: u64 = 4;

    /// The number of windows, of `windows`, in which samples of both of two threads are accepted,
    /// and of at least one.
    fn accepted(budget: &mut SampleBudget, windows: u64) -> (usize, usize) {
        // The second thread is sampled slightly later.
        let mut in_window = |thread: u32, window: u64| {
            let at = |sample| window * WINDOW_NS + (sample * 2 + u64::from(thread)) * WINDOW_NS / (2 * SAMPLES);
            let accepted = (0..SAMPLES).filter(|&sample| budget.accepts(thread, at(sample))).count() as u64;
            assert!(accepted == 0 || accepted == SAMPLES, "a part of a window");
            accepted > 0
        };
        let accepted: Vec<[bool; 2]> =
            (0..windows).map(|window| [0, 1].map(|thread| in_window(thread, window))).collect();
        let count = |is_counted: fn(&[bool; 2]) -> bool| accepted.iter().filter(|both| is_counted(both)).count();
        (count(|both| both[0] && both[1]), count(|both| both[0] || both[1]))
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some nanoseconds")]
    fn all_windows_are_accepted_until_the_budget_is_spent() {
        let mut budget = SampleBudget::new(0.01, WINDOW_NS);
        assert_eq!(accepted(&mut budget, 64), (64, 64));
        let some = |part: f64| (part * 0.01 * ANALYSIS_SLOWDOWN * 1e6) as u64;
        // Five times the allowed time, which the savings cover.
        (0..125).for_each(|_| budget.charge(some(5.0), 1_000_000));
        assert_eq!(accepted(&mut budget, 64), (64, 64));
        budget.charge(some(5.0), 1_000_000);
        budget.charge(some(5.0), 1_000_000);
        assert_eq!(budget.ratio, 4);
        budget.charge(some(0.5), 1_000_000);
        assert_eq!(budget.ratio, 4, "neither an overrun nor a large surplus");
        (0..9).for_each(|_| budget.charge(0, 1_000_000));
        assert_eq!(accepted(&mut budget, 64), (64, 64));
        (0..99).for_each(|_| budget.charge(9_000_000, 1_000_000));
        let (both, either) = accepted(&mut budget, 16_384);
        assert!((15..=17).contains(&both) && either == both, "some windows are always accepted: {both}, {either}");
    }

    #[test]
    fn threads_are_accepted_in_the_same_windows() {
        let mut budget = SampleBudget::new(0.01, WINDOW_NS);
        (budget.saved_ns, budget.reserve_ns) = (0.0, 0.0);
        for ratio in [2, 4, 8, 16] {
            budget.charge(9_000_000, 1_000_000);
            let (both, either) = accepted(&mut budget, 1600);
            assert_eq!(both, either);
            assert!(both.abs_diff(1600 / ratio) <= 2, "{both} of 1600, one of {ratio} expected");
        }
        assert_eq!(budget.threads.len(), 2);
    }

    #[test]
    fn a_new_thread_is_analysed_in_full_after_any_spending() {
        let mut budget = SampleBudget::new(0.01, WINDOW_NS);
        let spend = |budget: &mut SampleBudget| (0..99).for_each(|_| budget.charge(9_000_000, 1_000_000));
        let accepts_all =
            |budget: &mut SampleBudget, thread| (0..64).all(|window| budget.accepts(thread, window * WINDOW_NS));
        spend(&mut budget);
        assert!(!accepts_all(&mut budget, 1), "it is the only thread");
        assert!(accepts_all(&mut budget, 2));
        spend(&mut budget);
        assert!(!accepts_all(&mut budget, 3), "the reserve is spent");
        (0..2000).for_each(|_| budget.charge(9_000_000, 1_000_000));
        assert!(!accepts_all(&mut budget, 3) && accepts_all(&mut budget, 4), "the reserve has grown again");
    }
}
