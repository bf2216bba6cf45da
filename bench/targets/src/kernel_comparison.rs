//! Compares two kernels in this process by running them alternately.

use std::convert::Infallible;
use std::time::Duration;

use fieldstone_stats::{Estimate, FEWEST_FOR_INTERVAL, Rounds};
use rustix::time::{ClockId, clock_gettime};

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::stop_rule::StopRule;

/// CPU time of a kernel in this thread, in seconds; other programs on the machine do not count.
pub(crate) fn cpu_seconds(kernel: impl FnOnce()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        #[expect(clippy::cast_precision_loss, reason = "a thread's seconds and nanoseconds are far below 2^52")]
        let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        seconds
    };
    let before = now();
    kernel();
    now() - before
}

/// Runs `own` and `other`, which return their seconds, in pairs of alternating order until the
/// [`StopRule`] is met. The cell has the ratio of `own` to `other`. Drops the first pair.
pub(crate) fn compare(
    goal: Goal,
    case: &str,
    note: &str,
    time_limit: Duration,
    own: impl FnMut() -> f64,
    other: impl FnMut() -> f64,
) -> GoalCell {
    compare_with_min_pairs(FEWEST_FOR_INTERVAL, goal, case, note, time_limit, own, other)
}

/// Pairs of a comparison without a goal.
const PAIRS_WITHOUT_GOAL: usize = 20;

/// Runs `own` and `other` as [`compare`] does, and prints the ratio: a comparison without a goal.
pub(crate) fn print_ratio(name: &str, mut own: impl FnMut() -> f64, mut other: impl FnMut() -> f64) {
    own();
    other();
    let run = |side: usize| Ok::<_, Infallible>(if side == 0 { own() } else { other() });
    let Ok(rounds) = Rounds::run(2, run, |rounds| rounds.count() == PAIRS_WITHOUT_GOAL);
    if let Some(found) = Estimate::of_median(&rounds.ratios(0, 1)) {
        println!("# {name}: {:.3}, {:.3} to {:.3}", found.median, found.low, found.high);
    }
}

/// The same with at least `min_pairs` pairs.
pub(crate) fn compare_with_min_pairs(
    min_pairs: usize,
    goal: Goal,
    case: &str,
    note: &str,
    time_limit: Duration,
    mut own: impl FnMut() -> f64,
    mut other: impl FnMut() -> f64,
) -> GoalCell {
    own();
    other();
    let mut rule = StopRule::new(goal.limit, time_limit).with_min_values(min_pairs);
    let run = |side: usize| Ok::<_, Infallible>(if side == 0 { own() } else { other() });
    let is_done = |rounds: &Rounds| rule.is_met(rounds.count(), &rounds.ratios(0, 1));
    let Ok(rounds) = Rounds::run(2, run, is_done);
    let mut cell = GoalCell::measured(goal, case, Estimate::of_median(&rounds.ratios(0, 1)), note);
    cell.samples = ["own", "other"].map(str::to_owned).into_iter().zip(rounds.into_values()).collect();
    cell
}
