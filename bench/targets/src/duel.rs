//! Two kernels in this process, run alternately, pair by pair, until the verdict stands or the time is over.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use fieldstone_stats::{Estimate, FEWEST_FOR_INTERVAL, Rounds};
use rustix::time::{ClockId, clock_gettime};

use crate::cell::{Cell, is_settled};
use crate::goals::Goal;

/// A kernel's time on the processor, in seconds: what others do on the machine is not counted.
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

/// Runs `own` and `other`, each returning its seconds, in pairs whose order alternates; the ratio of the first to the second.
/// One pair before is not counted.
pub(crate) fn duel(
    goal: Goal,
    part: &str,
    note: &str,
    most: Duration,
    own: impl FnMut() -> f64,
    other: impl FnMut() -> f64,
) -> Cell {
    duel_of_at_least(FEWEST_FOR_INTERVAL, goal, part, note, most, own, other)
}

/// The same with at least so many pairs, whatever the verdict.
pub(crate) fn duel_of_at_least(
    fewest: usize,
    goal: Goal,
    part: &str,
    note: &str,
    most: Duration,
    mut own: impl FnMut() -> f64,
    mut other: impl FnMut() -> f64,
) -> Cell {
    own();
    other();
    let (since, mut stood) = (Instant::now(), 0);
    let run = |side: usize| Ok::<_, Infallible>(if side == 0 { own() } else { other() });
    let is_enough = |rounds: &Rounds| {
        // An even number of pairs, so that both orders have the same weight; and a verdict has to stand twice, since it is asked often.
        if rounds.count() < fewest || !rounds.is_balanced() {
            return false;
        }
        let stands = is_settled(goal.limit, Estimate::of_median(&rounds.ratios(0, 1)));
        stood = if stands { stood + 1 } else { 0 };
        stood == 2 || since.elapsed() > most
    };
    let Ok(rounds) = Rounds::run(2, run, is_enough);
    let mut cell = Cell::measured(goal, part, Estimate::of_median(&rounds.ratios(0, 1)), note);
    cell.samples = ["own", "other"].map(str::to_owned).into_iter().zip(rounds.into_values()).collect();
    cell
}
