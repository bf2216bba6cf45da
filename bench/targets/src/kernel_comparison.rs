//! Compare two kernels in this process by running them alternately.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use fieldstone_stats::{Estimate, FEWEST_FOR_INTERVAL, Rounds};
use rustix::time::{ClockId, clock_gettime};

use crate::cell::{Cell, is_settled};
use crate::goals::Goal;

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
/// ratio settles or until `time_limit`. The cell has the ratio of `own` to `other`. Drops the first
/// pair.
pub(crate) fn compare(
    goal: Goal,
    case: &str,
    note: &str,
    time_limit: Duration,
    own: impl FnMut() -> f64,
    other: impl FnMut() -> f64,
) -> Cell {
    compare_with_min_pairs(FEWEST_FOR_INTERVAL, goal, case, note, time_limit, own, other)
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
) -> Cell {
    own();
    other();
    let (since, mut settled_count) = (Instant::now(), 0);
    let run = |side: usize| Ok::<_, Infallible>(if side == 0 { own() } else { other() });
    let is_done = |rounds: &Rounds| {
        // An even number of pairs, so that both orders have the same weight. The result must settle
        // twice in a row, because it is checked often.
        if rounds.count() < min_pairs || !rounds.is_balanced() {
            return false;
        }
        let has_settled = is_settled(goal.limit, Estimate::of_median(&rounds.ratios(0, 1)));
        settled_count = if has_settled { settled_count + 1 } else { 0 };
        settled_count == 2 || since.elapsed() > time_limit
    };
    let Ok(rounds) = Rounds::run(2, run, is_done);
    let mut cell = Cell::measured(goal, case, Estimate::of_median(&rounds.ratios(0, 1)), note);
    cell.samples = ["own", "other"].map(str::to_owned).into_iter().zip(rounds.into_values()).collect();
    cell
}
