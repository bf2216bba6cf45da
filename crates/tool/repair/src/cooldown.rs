//! The interval between two repairs of a page, or of pages that an instruction accesses, after a
//! repair has failed.
//!
//! ```text
//!   refused by the kernel ──→ 20 ms, 80 ms, …   (a system call of a thread may end soon)
//!   failed ─────────────────→ 1 s, 2 s, 4 s, …  (single redirects, no gain, use by the kernel)
//!                             └ at most 64 s; the interval is 1 s again after a repair with a gain
//! ```
//! Invariant: the share of the time that failed repairs of a page take tends to zero, because each
//! takes at most a fixed time and the intervals double.

use crate::tuning::{FIRST_COOLDOWN_NS, FIRST_RETRY_NS, MAX_DOUBLINGS};

/// The state of one page or instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cooldown {
    /// Refusals since the last move.
    refusals: u32,
    /// Failures since the last gain.
    failures: u32,
    /// Time from which the next repair may begin.
    next_ns: u64,
}

impl Cooldown {
    /// Whether the next repair may begin.
    pub(crate) const fn is_over(&self, now_ns: u64) -> bool {
        self.next_ns <= now_ns
    }

    /// Records that the page was moved.
    pub(crate) const fn record_move(&mut self) {
        self.refusals = 0;
    }

    /// Records that the page could not be moved; returns whether this is the first refusal in a
    /// row. The interval quadruples.
    pub(crate) fn record_refusal(&mut self, now_ns: u64) -> bool {
        let interval_ns = FIRST_RETRY_NS << (2 * self.refusals.min(MAX_DOUBLINGS));
        self.next_ns = now_ns + interval_ns.min(FIRST_COOLDOWN_NS << MAX_DOUBLINGS);
        self.refusals += 1;
        self.refusals == 1
    }

    /// Records that a repair cost more than it gained. The interval doubles.
    pub(crate) fn record_failure(&mut self, now_ns: u64) {
        self.next_ns = now_ns + (FIRST_COOLDOWN_NS << self.failures.min(MAX_DOUBLINGS));
        self.failures += 1;
    }

    /// Records that a repair has shown a gain. The cooldown ends.
    pub(crate) const fn record_gain(&mut self) {
        (self.failures, self.next_ns) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten intervals, in units of `first_ns`, with one call of `end` after each repair.
    fn intervals(first_ns: u64, mut end: impl FnMut(&mut Cooldown, u64)) -> Vec<u64> {
        let (mut page, mut now_ns) = (Cooldown::default(), 5);
        let mut next = || {
            end(&mut page, now_ns);
            assert!(!page.is_over(page.next_ns - 1) && page.is_over(page.next_ns));
            let interval_ns = page.next_ns - now_ns;
            now_ns = page.next_ns;
            interval_ns / first_ns
        };
        (0..10).map(|_| next()).collect()
    }

    #[test]
    fn intervals_grow_to_a_minute() {
        assert_eq!(intervals(FIRST_COOLDOWN_NS, Cooldown::record_failure), [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
        let refused = intervals(FIRST_RETRY_NS, |page, now_ns| _ = page.record_refusal(now_ns));
        assert_eq!(refused, [1, 4, 16, 64, 256, 1024, 3200, 3200, 3200, 3200]);
    }

    #[test]
    fn a_refusal_is_reported_once_until_the_page_is_moved() {
        let mut page = Cooldown::default();
        assert!(page.record_refusal(0) && !page.record_refusal(1));
        page.record_move();
        assert!(page.record_refusal(2));
    }

    #[test]
    fn a_gain_ends_the_cooldown_and_a_move_does_not() {
        let mut page = Cooldown::default();
        (0..3).for_each(|_| page.record_failure(0));
        page.record_move();
        page.record_failure(0);
        assert!(!page.is_over(8 * FIRST_COOLDOWN_NS - 1));
        page.record_gain();
        assert!(page.is_over(0));
        page.record_failure(0);
        assert!(page.is_over(FIRST_COOLDOWN_NS));
    }
}
