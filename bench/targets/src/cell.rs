//! One measured goal, as a line and as JSON.

use std::fmt;

use fieldstone_stats::Estimate;
use serde::Serialize;

use crate::goals::{Goal, Limit};

/// How a measurement compares with its goal, by the rule at the top of `goals.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Verdict {
    /// The median is on the good side of the limit.
    Ok,
    /// The whole 95 % interval is on the bad side.
    Miss,
    /// The median is on the bad side and the interval reaches the good side; or there are too few pairs for an interval.
    Undecided,
    /// Not measured.
    Skip,
}

/// A goal with what was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) name: String,
    pub(crate) what: String,
    pub(crate) verdict: Verdict,
    pub(crate) estimate: Option<Estimate>,
    /// `at most 0.50`.
    goal: String,
    /// Why it was skipped, or which peer was the best.
    pub(crate) note: String,
    /// Every run's seconds, by contender, in the order of the rounds.
    pub(crate) samples: Vec<(String, Vec<f64>)>,
}

impl Cell {
    pub(crate) fn skipped(goal: Goal, why: &str) -> Self {
        Self::new(goal, Verdict::Skip, None, why)
    }

    /// A cell for a part of `goal` that is not measured.
    pub(crate) fn skipped_part(mut goal: Goal, part: &str, why: &str) -> Self {
        goal.name = format!("{} {part}", goal.name);
        Self::skipped(goal, why)
    }

    /// A cell for `goal`, measured on `part` of what it covers.
    pub(crate) fn measured(mut goal: Goal, part: &str, estimate: Option<Estimate>, note: &str) -> Self {
        let verdict = judge(goal.limit, estimate);
        goal.name = format!("{} {part}", goal.name);
        Self::new(goal, verdict, estimate, note)
    }

    fn new(goal: Goal, verdict: Verdict, estimate: Option<Estimate>, note: &str) -> Self {
        let bound = match goal.limit {
            Limit::AtMost(most) => format!("at most {most:.2}"),
            Limit::AtLeast(least) => format!("at least {least:.2}"),
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

/// The verdict of a median with its 95 % interval. An interval holds its median, so that one wholly on the bad side never has a
/// median on the good side.
pub(crate) fn judge(limit: Limit, estimate: Option<Estimate>) -> Verdict {
    let Some(estimate) = estimate.filter(Estimate::is_interval) else { return Verdict::Undecided };
    let reaches_the_good_side = limit.allows(estimate.low) || limit.allows(estimate.high);
    match (limit.allows(estimate.median), reaches_the_good_side) {
        (true, _) => Verdict::Ok,
        (false, true) => Verdict::Undecided,
        (false, false) => Verdict::Miss,
    }
}

/// Whether the whole 95 % interval is on one side of the limit: when to stop measuring. Stopping as soon as the verdict is `Ok`
/// would end each run at its first lucky median.
pub(crate) fn is_settled(limit: Limit, estimate: Option<Estimate>) -> bool {
    let interval = estimate.filter(Estimate::is_interval);
    interval.is_some_and(|estimate| limit.allows(estimate.low) == limit.allows(estimate.high))
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:42} ", self.name)?;
        match &self.estimate {
            Some(found) => {
                write!(f, "{:6.3}  {:.3} to {:.3} ({} pairs)", found.median, found.low, found.high, found.n)?
            }
            None => write!(f, "     -  -")?,
        }
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Miss => "MISS",
            Verdict::Undecided => "UNDECIDED",
            Verdict::Skip => "SKIP",
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
        // An interval below 1, three that reach over 1 with a median below, on and above it, one above 1.
        let estimates =
            [of(0.8, 0.85, 0.9), of(0.9, 0.99, 1.1), of(0.9, 1.0, 1.1), of(0.9, 1.01, 1.1), of(1.05, 1.1, 1.2)];
        let (most, least) = (Limit::AtMost(1.0), Limit::AtLeast(1.0));
        use Verdict::{Miss, Ok, Undecided};
        assert_eq!(estimates.map(|estimate| judge(most, estimate)), [Ok, Ok, Ok, Undecided, Miss]);
        assert_eq!(estimates.map(|estimate| judge(least, estimate)), [Miss, Undecided, Ok, Ok, Ok]);
        for limit in [most, least] {
            let settled = estimates.map(|estimate| is_settled(limit, estimate));
            assert_eq!(settled, [true, false, false, false, true], "an ok that straddles is measured on");
        }
    }

    #[test]
    fn a_limit_that_an_interval_touches_is_reached() {
        let touching = Some(Estimate { n: 6, median: 1.1, low: 1.0, high: 1.2, confidence: Some(0.96) });
        assert_eq!(judge(Limit::AtMost(1.0), touching), Verdict::Undecided);
        assert_eq!(judge(Limit::AtLeast(1.2), touching), Verdict::Undecided);
        assert_eq!(judge(Limit::AtLeast(1.1), touching), Verdict::Ok);
    }

    #[test]
    fn a_range_of_few_values_is_no_verdict() {
        let range = Some(Estimate { n: 3, median: 0.85, low: 0.8, high: 0.9, confidence: None });
        for estimate in [range, None] {
            assert_eq!(judge(Limit::AtMost(1.0), estimate), Verdict::Undecided);
            assert!(!is_settled(Limit::AtMost(1.0), estimate));
        }
    }
}
