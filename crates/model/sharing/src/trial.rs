//! The result of a trial: the speed of threads before and after a repair. Only the intervals are
//! compared.
//!
//! ```text
//!   before   ├────────●────────┤
//!   after                                ├────●────┤         the smallest ratio is a gain: gain
//!   after              ├────●────┤                           the largest is a gain, the smallest is not: doubt
//!   after    ├────●────┤                                     the largest ratio is no gain: no gain
//! ```

use serde::{Deserialize, Serialize};

use fieldstone_stats::Interval;

/// Minimum speedup that counts as a gain. A repaired loop costs up to a tenth more than a padded
/// one, and a moved page has costs that no trial shows. So a smaller gain would not last.
pub const LEAST_GAIN: f64 = 1.05;

/// The result of a trial so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialOutcome {
    /// The repair helps.
    Gain,
    /// The repair does not help.
    NoGain,
    /// The intervals do not decide.
    Doubt,
}

/// Compares the speed before and after a repair.
#[must_use]
pub fn outcome(before: &Interval, after: &Interval) -> TrialOutcome {
    let (worst, best) = (ratio(after.low, before.high), ratio(after.high, before.low));
    if worst >= LEAST_GAIN {
        TrialOutcome::Gain
    } else if best < LEAST_GAIN {
        TrialOutcome::NoGain
    } else {
        TrialOutcome::Doubt
    }
}

/// The ratio `a / b`; negative values count as 0. A positive value over 0 is infinite, and 0 over 0
/// is 1.
fn ratio(a: f64, b: f64) -> f64 {
    match (a > 0.0, b > 0.0) {
        (_, true) => a.max(0.0) / b,
        (true, false) => f64::INFINITY,
        (false, false) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::{TrialOutcome, outcome};
    use fieldstone_stats::Interval;

    fn rates(rates: &[f64]) -> Interval {
        Interval::of_rates(rates).unwrap()
    }

    #[test]
    fn intervals_decide_a_trial() {
        let before = rates(&[10.0, 11.0, 10.5, 9.5]);
        assert_eq!(outcome(&before, &rates(&[30.0, 32.0, 31.0])), TrialOutcome::Gain);
        assert_eq!(outcome(&before, &rates(&[10.0, 9.8, 9.9])), TrialOutcome::NoGain);
        assert_eq!(outcome(&before, &rates(&[5.0, 5.2, 4.9])), TrialOutcome::NoGain, "it got worse");
        assert_eq!(outcome(&before, &rates(&[8.0, 16.0])), TrialOutcome::Doubt);
    }

    #[test]
    fn a_standstill_can_only_gain() {
        let nothing = Interval { low: 0.0, likely: 0.0, high: 0.0 };
        assert_eq!(outcome(&nothing, &nothing), TrialOutcome::NoGain);
        assert_eq!(outcome(&nothing, &rates(&[1.0, 1.0])), TrialOutcome::Gain);
    }
}
