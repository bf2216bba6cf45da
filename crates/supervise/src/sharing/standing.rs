//! What a page has been through so far, and when it may be moved next.
//!
//! ```text
//!   refused by the kernel ───→ a little later, ever later ── too often ──→ given up
//!   redirected one by one, or
//!   used by the kernel ──────→ a second later ── again ──→ given up
//!   no gain ─────────────────→ given up (a look without it may bring it back)
//! ```

/// What could not be moved is tried again after so long; what nobody asked for each time after four times as long, and so many times in all.
pub(super) const AGAIN_NS: u64 = 20_000_000;
const MOST_TRIES: u32 = 5;
/// A program that did something else meanwhile, or was kept from running, may settle in its clones after so long.
const SECOND_TRIAL_NS: u64 = 1_000_000_000;

/// Of one page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    /// How often it was refused since it was moved last.
    refusals: u32,
    next_ns: u64,
    had_second_trial: bool,
    is_given_up: bool,
}

impl Standing {
    pub(super) const fn may_move(&self, now_ns: u64) -> bool {
        !self.is_given_up && self.next_ns <= now_ns
    }

    /// It was moved.
    pub(super) const fn moved(&mut self) {
        (self.refusals, self.next_ns, self.is_given_up) = (0, 0, false);
    }

    /// It could not be moved; whether that is new.
    pub(super) const fn refused(&mut self, now_ns: u64) -> bool {
        self.next_ns = now_ns + (AGAIN_NS << (2 * self.refusals));
        self.refusals += 1;
        self.is_given_up = self.refusals >= MOST_TRIES;
        self.refusals == 1
    }

    /// It was put back, since accesses went on to be redirected one by one, or the kernel made some.
    pub(super) const fn disturbed(&mut self, now_ns: u64) {
        self.is_given_up = self.had_second_trial;
        self.had_second_trial = true;
        self.next_ns = now_ns + SECOND_TRIAL_NS;
    }

    /// It was put back, since it brought no gain.
    pub(super) const fn no_gain(&mut self) {
        self.is_given_up = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_tried_ever_later_and_told_once() {
        let (mut page, mut now_ns) = (Standing::default(), 0);
        let mut told = Vec::new();
        while page.may_move(now_ns) {
            told.push(page.refused(now_ns));
            assert!(!page.may_move(now_ns + 1));
            now_ns += AGAIN_NS << (2 * (told.len() - 1));
        }
        assert_eq!(told, [true, false, false, false, false]);
        assert!(!page.may_move(u64::MAX), "given up");
    }

    #[test]
    fn a_move_between_begins_the_count_anew() {
        let mut page = Standing::default();
        (0..4).for_each(|_| _ = page.refused(0));
        page.moved();
        assert!(page.may_move(0) && page.refused(0) && page.may_move(AGAIN_NS));
    }

    #[test]
    fn one_by_one_is_given_a_second_trial_and_no_third() {
        let mut page = Standing::default();
        page.disturbed(5);
        assert!(!page.may_move(SECOND_TRIAL_NS) && page.may_move(SECOND_TRIAL_NS + 5));
        page.moved();
        page.disturbed(5);
        assert!(!page.may_move(u64::MAX));
    }

    #[test]
    fn no_gain_is_for_good_unless_it_is_moved_again() {
        let mut page = Standing::default();
        page.no_gain();
        assert!(!page.may_move(u64::MAX));
        page.moved();
        assert!(page.may_move(0));
    }
}
