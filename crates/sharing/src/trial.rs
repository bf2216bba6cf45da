//! Was a repair worth it? Measured before and after, kept or taken back.
//!
//! Two things can be measured, and which is better depends: the *share* of the samples that waits at a line's accesses
//! falls when the line no longer travels, unless the loop does nothing else; the *work* that threads get done a second
//! (rounds of a loop, say) rises. Both come with an interval, and only the intervals are compared:
//!
//! ```text
//!   before   ├────────●────────┤
//!   after                                ├────●────┤         even the worst reading is a gain: kept
//!   after              ├────●────┤                           the best reading is a gain, the worst is not: wait
//!   after    ├────●────┤                                     even the best reading is no gain: taken back
//! ```
//! What is still in doubt at the deadline is taken back: a program is left as it was unless there is a reason.

use serde::{Deserialize, Serialize};

use crate::cost::Interval;

/// A gain: one twentieth at least. A repaired loop costs up to a tenth more than a padded one, and a moved page has costs
/// that no trial shows, so less would not last.
pub const LEAST_GAIN: f64 = 1.05;

/// How long a trial may last, in nanoseconds: half a second, in which a thread gives five hundred samples at 1 kHz.
pub const LONGEST_NS: u64 = 500_000_000;

/// What is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Less: the share of samples on a line.
    Less,
    /// More: work a second.
    More,
}

/// What to do with a repair on trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It helps.
    Keep,
    /// It does not help, or not provably in time.
    TakeBack,
    /// Measure on.
    Wait,
}

/// A repair on trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    before: Interval,
    better: Better,
    started_ns: u64,
}

impl Trial {
    /// A repair made at `started_ns`, and what was measured before it.
    #[must_use]
    pub fn new(before: Interval, better: Better, started_ns: u64) -> Self {
        Self { before, better, started_ns }
    }

    /// What to do, given what was measured since the repair; none: nothing yet.
    #[must_use]
    pub fn outcome(&self, after: Option<Interval>, now_ns: u64) -> Outcome {
        let in_doubt =
            if now_ns.saturating_sub(self.started_ns) >= LONGEST_NS { Outcome::TakeBack } else { Outcome::Wait };
        let Some(after) = after else { return in_doubt };
        let (worst, best) = self.gain(&after);
        if worst >= LEAST_GAIN {
            Outcome::Keep
        } else if best < LEAST_GAIN {
            Outcome::TakeBack
        } else {
            in_doubt
        }
    }

    /// How many times better, at worst and at best.
    fn gain(&self, after: &Interval) -> (f64, f64) {
        match self.better {
            Better::More => (ratio(after.low, self.before.high), ratio(after.high, self.before.low)),
            Better::Less => (ratio(self.before.low, after.high), ratio(self.before.high, after.low)),
        }
    }
}

/// How many times `b` is in `a`. Below zero counts as zero; any number of times nothing is infinitely often, and nothing
/// in nothing is once.
fn ratio(a: f64, b: f64) -> f64 {
    match (a > 0.0, b > 0.0) {
        (_, true) => a.max(0.0) / b,
        (true, false) => f64::INFINITY,
        (false, false) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::{Better, LONGEST_NS, Outcome, Trial};
    use crate::cost::Interval;

    fn share(part: f64, all: f64) -> Interval {
        Interval::of_share(part, all).unwrap()
    }

    #[test]
    fn a_line_that_no_longer_costs_is_kept_soon() {
        let trial = Trial::new(share(18.0, 20.0), Better::Less, 1000);
        assert_eq!(trial.outcome(None, 1000), Outcome::Wait);
        assert_eq!(trial.outcome(Some(share(1.0, 2.0)), 2000), Outcome::Wait, "two samples say nothing");
        assert_eq!(trial.outcome(Some(share(2.0, 20.0)), 3000), Outcome::Keep);
    }

    #[test]
    fn no_gain_is_taken_back() {
        let trial = Trial::new(share(900.0, 1000.0), Better::Less, 0);
        assert_eq!(trial.outcome(Some(share(95.0, 100.0)), 100), Outcome::TakeBack, "it got worse");
        assert_eq!(trial.outcome(Some(share(88.0, 100.0)), 100), Outcome::Wait, "who knows");
        assert_eq!(trial.outcome(Some(share(88.0, 100.0)), LONGEST_NS), Outcome::TakeBack, "in doubt");
        assert_eq!(trial.outcome(None, LONGEST_NS), Outcome::TakeBack, "nothing was ever seen");
    }

    #[test]
    fn work_a_second_is_better_when_it_is_more() {
        let before = Interval::of_rates(&[10.0, 11.0, 10.5, 9.5]).unwrap();
        let trial = Trial::new(before, Better::More, 0);
        let after = |rates: &[f64]| trial.outcome(Interval::of_rates(rates), 1);
        assert_eq!(after(&[30.0, 32.0, 31.0]), Outcome::Keep);
        assert_eq!(after(&[10.0, 9.8, 9.9]), Outcome::TakeBack);
        assert_eq!(after(&[30.0]), Outcome::Wait, "one measurement has no interval");
    }

    #[test]
    fn nothing_before_cannot_become_less() {
        let nothing = Interval { low: 0.0, likely: 0.0, high: 0.0 };
        let trial = Trial::new(nothing, Better::Less, 0);
        assert_eq!(trial.outcome(Some(nothing), 1), Outcome::TakeBack);
        let trial = Trial::new(nothing, Better::More, 0);
        assert_eq!(trial.outcome(Some(Interval { low: 1.0, likely: 1.0, high: 1.0 }), 1), Outcome::Keep);
    }
}
