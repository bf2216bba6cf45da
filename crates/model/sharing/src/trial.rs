//! Was a repair worth it? How threads got on before and after, each with its interval; only the intervals are compared.
//!
//! ```text
//!   before   ├────────●────────┤
//!   after                                ├────●────┤         even the worst reading is a gain
//!   after              ├────●────┤                           the best reading is a gain, the worst is not: in doubt
//!   after    ├────●────┤                                     even the best reading is no gain
//! ```

use serde::{Deserialize, Serialize};

use crate::cost::Interval;

/// A gain: one twentieth at least. A repaired loop costs up to a tenth more than a padded one, and a moved page has costs
/// that no trial shows, so less would not last.
pub const LEAST_GAIN: f64 = 1.05;

/// What a trial has shown so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It helps.
    Gain,
    /// It does not help.
    NoGain,
    /// Who knows.
    Doubt,
}

/// What work done a second shows, before and after a repair.
#[must_use]
pub fn outcome(before: &Interval, after: &Interval) -> Outcome {
    let (worst, best) = (ratio(after.low, before.high), ratio(after.high, before.low));
    if worst >= LEAST_GAIN {
        Outcome::Gain
    } else if best < LEAST_GAIN {
        Outcome::NoGain
    } else {
        Outcome::Doubt
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
    use super::{Outcome, outcome};
    use crate::cost::Interval;

    fn rates(rates: &[f64]) -> Interval {
        Interval::of_rates(rates).unwrap()
    }

    #[test]
    fn intervals_decide() {
        let before = rates(&[10.0, 11.0, 10.5, 9.5]);
        assert_eq!(outcome(&before, &rates(&[30.0, 32.0, 31.0])), Outcome::Gain);
        assert_eq!(outcome(&before, &rates(&[10.0, 9.8, 9.9])), Outcome::NoGain);
        assert_eq!(outcome(&before, &rates(&[5.0, 5.2, 4.9])), Outcome::NoGain, "it got worse");
        assert_eq!(outcome(&before, &rates(&[8.0, 16.0])), Outcome::Doubt);
    }

    #[test]
    fn what_stood_still_can_only_gain() {
        let nothing = Interval { low: 0.0, likely: 0.0, high: 0.0 };
        assert_eq!(outcome(&nothing, &nothing), Outcome::NoGain);
        assert_eq!(outcome(&nothing, &rates(&[1.0, 1.0])), Outcome::Gain);
    }
}
