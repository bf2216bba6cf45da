//! One measured goal, printed as a line and saved as JSON.

use std::fmt;

use fieldstone_stats::Estimate;
use serde::Serialize;

use crate::goals::{Goal, Limit};

/// The result of a goal, by the rule at the top of `goals.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum GoalVerdict {
    /// The median meets the limit.
    Ok,
    /// The whole 95 % interval misses the limit.
    Miss,
    /// The median misses the limit, but the interval includes it; or there are too few pairs for an
    /// interval.
    Undecided,
    /// Not measured.
    Skip,
}

/// A goal and its measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GoalCell {
    pub(crate) name: String,
    pub(crate) what: String,
    pub(crate) verdict: GoalVerdict,
    pub(crate) estimate: Option<Estimate>,
    /// `at most 0.50`.
    goal: String,
    /// Why it was skipped, or which peer was best.
    pub(crate) note: String,
    /// The seconds of all runs, by variant, in the order of the rounds.
    pub(crate) samples: Vec<(String, Vec<f64>)>,
}

impl GoalCell {
    pub(crate) fn skipped(goal: Goal, why: &str) -> Self {
        Self::new(goal, GoalVerdict::Skip, None, why)
    }

    /// A cell for a case of `goal` that is not measured.
    pub(crate) fn skipped_case(mut goal: Goal, case: &str, why: &str) -> Self {
        goal.name = format!("{} {case}", goal.name);
        Self::skipped(goal, why)
    }

    /// A cell for `goal`, measured on one of its cases.
    pub(crate) fn measured(mut goal: Goal, case: &str, estimate: Option<Estimate>, note: &str) -> Self {
        let verdict = decide(goal.limit, estimate);
        goal.name = format!("{} {case}", goal.name);
        Self::new(goal, verdict, estimate, note)
    }

    fn new(goal: Goal, verdict: GoalVerdict, estimate: Option<Estimate>, note: &str) -> Self {
        let bound = match goal.limit {
            Limit::AtMost(maximum) => format!("at most {maximum:.2}"),
            Limit::AtLeast(minimum) => format!("at least {minimum:.2}"),
        };
        Self {
            name: goal.name,
            what: goal.what,
            verdict,
            estimate,
            goal: bound,
            note: note.to_owned(),
            samples: Vec::new(),
        }
    }
}

/// The verdict for a median and its 95 % interval. The interval contains the median, so an interval
/// that misses the limit never has a median that meets it.
pub(crate) fn decide(limit: Limit, estimate: Option<Estimate>) -> GoalVerdict {
    let Some(estimate) = estimate.filter(Estimate::is_interval) else { return GoalVerdict::Undecided };
    let reaches_good_side = limit.allows(estimate.low) || limit.allows(estimate.high);
    match (limit.allows(estimate.median), reaches_good_side) {
        (true, _) => GoalVerdict::Ok,
        (false, true) => GoalVerdict::Undecided,
        (false, false) => GoalVerdict::Miss,
    }
}

/// Whether the whole 95 % interval is on one side of the limit, which ends the measurement. Ending
/// at the first `Ok` would select lucky medians.
pub(crate) fn is_settled(limit: Limit, estimate: Option<Estimate>) -> bool {
    let interval = estimate.filter(Estimate::is_interval);
    interval.is_some_and(|estimate| limit.allows(estimate.low) == limit.allows(estimate.high))
}

impl fmt::Display for GoalCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:42} ", self.name)?;
        match &self.estimate {
            Some(found) => {
                write!(f, "{:6.3}  {:.3} to {:.3} ({} pairs)", found.median, found.low, found.high, found.n)?
            }
            None => write!(f, "     -  -")?,
        }
        let verdict = match self.verdict {
            GoalVerdict::Ok => "ok",
            GoalVerdict::Miss => "MISS",
            GoalVerdict::Undecided => "UNDECIDED",
            GoalVerdict::Skip => "SKIP",
        };
        write!(f, "  {}  {verdict}", self.goal)?;
        if self.note.is_empty() { Ok(()) } else { write!(f, " {}", self.note) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides_unless_the_interval_contradicts_it() {
        let of = |low, median, high| Some(Estimate { n: 6, median, low, high, confidence: Some(0.96) });
        // One interval below 1, three that contain 1 with a median below, at and above it, one
        // above 1.
        let estimates =
            [of(0.8, 0.85, 0.9), of(0.9, 0.99, 1.1), of(0.9, 1.0, 1.1), of(0.9, 1.01, 1.1), of(1.05, 1.1, 1.2)];
        let (maximum, minimum) = (Limit::AtMost(1.0), Limit::AtLeast(1.0));
        use GoalVerdict::{Miss, Ok, Undecided};
        assert_eq!(estimates.map(|estimate| decide(maximum, estimate)), [Ok, Ok, Ok, Undecided, Miss]);
        assert_eq!(estimates.map(|estimate| decide(minimum, estimate)), [Miss, Undecided, Ok, Ok, Ok]);
        for limit in [maximum, minimum] {
            let settled = estimates.map(|estimate| is_settled(limit, estimate));
            assert_eq!(settled, [true, false, false, false, true], "an ok that straddles is measured on");
        }
    }

    #[test]
    fn an_interval_that_touches_the_limit_is_not_a_miss() {
        let touching = Some(Estimate { n: 6, median: 1.1, low: 1.0, high: 1.2, confidence: Some(0.96) });
        assert_eq!(decide(Limit::AtMost(1.0), touching), GoalVerdict::Undecided);
        assert_eq!(decide(Limit::AtLeast(1.2), touching), GoalVerdict::Undecided);
        assert_eq!(decide(Limit::AtLeast(1.1), touching), GoalVerdict::Ok);
    }

    #[test]
    fn a_range_without_an_interval_is_undecided() {
        let range = Some(Estimate { n: 3, median: 0.85, low: 0.8, high: 0.9, confidence: None });
        for estimate in [range, None] {
            assert_eq!(decide(Limit::AtMost(1.0), estimate), GoalVerdict::Undecided);
            assert!(!is_settled(Limit::AtMost(1.0), estimate));
        }
    }
}
