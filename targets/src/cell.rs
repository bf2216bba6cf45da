//! One measured goal, as a line and as JSON.

use std::fmt;

use fieldstone_report::stats::Estimate;
use serde::Serialize;

use crate::goals::{Goal, Limit};

/// What the 95 % interval says of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Verdict {
    /// All of it lies on the good side.
    Ok,
    /// All of it lies on the bad side.
    Miss,
    /// It straddles the goal, or there are too few pairs for an interval.
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

/// The verdict of the 95 % interval.
pub(crate) fn judge(limit: Limit, estimate: Option<Estimate>) -> Verdict {
    let Some(estimate) = estimate.filter(|estimate| estimate.confidence.is_some()) else { return Verdict::Undecided };
    let (good, bad) = match limit {
        Limit::AtMost(most) => (estimate.high <= most, estimate.low > most),
        Limit::AtLeast(least) => (estimate.low >= least, estimate.high < least),
    };
    match (good, bad) {
        (true, _) => Verdict::Ok,
        (_, true) => Verdict::Miss,
        _ => Verdict::Undecided,
    }
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
    fn the_interval_judges() {
        let of =
            |low, high, confidence| Some(Estimate { n: 6, median: f64::midpoint(low, high), low, high, confidence });
        let most = Limit::AtMost(1.0);
        assert_eq!(judge(most, of(0.8, 0.9, Some(0.96))), Verdict::Ok);
        assert_eq!(judge(most, of(0.9, 1.1, Some(0.96))), Verdict::Undecided);
        assert_eq!(judge(most, of(1.1, 1.2, Some(0.96))), Verdict::Miss);
        assert_eq!(judge(most, of(0.8, 0.9, None)), Verdict::Undecided, "a range is no interval");
        assert_eq!(judge(Limit::AtLeast(1.0), of(1.1, 1.2, Some(0.96))), Verdict::Ok);
        assert_eq!(judge(most, None), Verdict::Undecided);
    }
}
