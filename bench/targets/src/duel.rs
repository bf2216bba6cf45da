//! Two kernels in this process, run alternately, pair by pair, until the verdict stands or the time is over.

use std::time::{Duration, Instant};

use fieldstone_report::stats::{Estimate, FEWEST_FOR_INTERVAL};
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
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    own();
    other();
    let (since, mut stood) = (Instant::now(), 0);
    let estimate = loop {
        if ours.len() % 2 == 0 {
            ours.push(own());
            theirs.push(other());
        } else {
            theirs.push(other());
            ours.push(own());
        }
        let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(own, other)| own / other).collect();
        let estimate = Estimate::of_median(&ratios);
        let stands = is_settled(goal.limit, estimate);
        // An even number of pairs, so that both orders weigh the same; and a verdict has to stand twice, since it is looked at often.
        if ours.len() < fewest || ours.len() % 2 == 1 {
            continue;
        }
        stood = if stands { stood + 1 } else { 0 };
        if stood == 2 || since.elapsed() > most {
            break estimate;
        }
    };
    let mut cell = Cell::measured(goal, part, estimate, note);
    cell.samples = vec![("own".to_owned(), ours), ("other".to_owned(), theirs)];
    cell
}
