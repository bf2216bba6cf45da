//! How long a page, or an instruction, is left alone after a repair of it has failed.
//!
//! ```text
//!   refused by the kernel ──→ 20 ms, 80 ms, …   (a thread was in a system call: the next moment may be better)
//!   failed ─────────────────→ 1 s, 2 s, 4 s, …  (redirected one by one, no gain, used by the kernel)
//!                             └ at most 64 s; the count begins again when a repair has shown a gain
//! ```
//! Each try costs at most a fixed time, so with doubling intervals the share of the time that tries take goes to zero.

/// The interval after the first refusal; each further one is four times as long.
pub(super) const AGAIN_NS: u64 = 20_000_000;
/// The interval after the first failure; each further one is twice as long.
pub(super) const FIRST_NS: u64 = 1_000_000_000;
/// Doublings of the first interval: 64 s.
const MOST_DOUBLINGS: u32 = 6;

/// The state of one page or instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cooldown {
    /// How often it was refused since it was moved last.
    refusals: u32,
    /// How often a repair failed since one has shown a gain.
    failures: u32,
    /// When the next try may begin.
    next_ns: u64,
}

impl Cooldown {
    pub(super) const fn is_over(&self, now_ns: u64) -> bool {
        self.next_ns <= now_ns
    }

    /// The page was moved.
    pub(super) const fn moved(&mut self) {
        self.refusals = 0;
    }

    /// The page could not be moved; returns whether this is the first time in a row.
    pub(super) fn refused(&mut self, now_ns: u64) -> bool {
        let interval_ns = AGAIN_NS << (2 * self.refusals.min(MOST_DOUBLINGS));
        self.next_ns = now_ns + interval_ns.min(FIRST_NS << MOST_DOUBLINGS);
        self.refusals += 1;
        self.refusals == 1
    }

    /// A repair was taken back because it cost more than it gained.
    pub(super) fn failed(&mut self, now_ns: u64) {
        self.next_ns = now_ns + (FIRST_NS << self.failures.min(MOST_DOUBLINGS));
        self.failures += 1;
    }

    /// A repair has shown a gain.
    pub(super) const fn gained(&mut self) {
        (self.failures, self.next_ns) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The intervals, in units of `first_ns`, after ten calls of `end`.
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
        assert_eq!(intervals(FIRST_NS, Cooldown::failed), [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
        let refused = intervals(AGAIN_NS, |page, now_ns| _ = page.refused(now_ns));
        assert_eq!(refused, [1, 4, 16, 64, 256, 1024, 3200, 3200, 3200, 3200]);
    }

    #[test]
    fn a_refusal_is_reported_once_until_the_page_is_moved() {
        let mut page = Cooldown::default();
        assert!(page.refused(0) && !page.refused(1));
        page.moved();
        assert!(page.refused(2));
    }

    #[test]
    fn a_gain_ends_the_cooldown_and_a_move_does_not() {
        let mut page = Cooldown::default();
        (0..3).for_each(|_| page.failed(0));
        page.moved();
        page.failed(0);
        assert!(!page.is_over(8 * FIRST_NS - 1));
        page.gained();
        assert!(page.is_over(0));
        page.failed(0);
        assert!(page.is_over(FIRST_NS));
    }
}
