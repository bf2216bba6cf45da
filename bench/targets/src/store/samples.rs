//! Timed samples, and rounds of them.
//!
//! ```text
//! round 0    ours   LMDB   redb …
//! round 1    … redb   LMDB   ours          the same seed for all sides of a round
//! ```
//! A sample in which the thread waited for a processor more than a fifth of its time measures the run
//! queue and not the store. It is repeated with other keys, at most [`MOST_REPEATS`] times. The time that
//! a thread has waited is the second number of `/proc/thread-self/schedstat`.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;
use fieldstone_peers::store::ThreadTime;
use fieldstone_stats::{Estimate, Rounds, median};
use serde::{Deserialize, Serialize};

use super::SECTION;
use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::kernel_comparison::cpu_seconds;
use crate::request::Request;
use crate::stop_rule::StopRule;

/// The largest share of its time that the thread of a sample may wait for a processor.
const MOST_WAITING: f64 = 0.2;
/// Repeats of one sample. The last one counts, however long it has waited.
const MOST_REPEATS: u64 = 4;

/// One timed run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Sample {
    seconds: f64,
    /// Seconds in which the thread could run, and no processor was free.
    waited: f64,
}

impl Sample {
    /// Runs `work` and takes its time.
    pub(super) fn of_wall_time(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let time = ThreadTime::of(work)?;
        Ok(Self { seconds: time.total.as_secs_f64(), waited: time.waiting.as_secs_f64() })
    }

    /// Runs `work` and takes its processor time, which has no waiting time in it.
    pub(super) fn of_cpu_time(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let mut result = Ok(());
        let seconds = cpu_seconds(|| result = work());
        result.map(|()| Self { seconds, waited: 0.0 })
    }

    fn is_disturbed(self) -> bool {
        self.waited > MOST_WAITING * self.seconds
    }
}

/// How many samples were taken, and how many were repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SampleCounts {
    samples: u64,
    repeats: u64,
    /// Samples whose last repeat was disturbed too.
    disturbed: u64,
}

impl SampleCounts {
    /// The seconds of a sample. `sample` gets the number of the repeat.
    fn take(&mut self, mut sample: impl FnMut(u64) -> anyhow::Result<Sample>) -> anyhow::Result<f64> {
        self.samples += 1;
        let mut taken = sample(0)?;
        for repeat in 1..=MOST_REPEATS {
            if !taken.is_disturbed() {
                return Ok(taken.seconds);
            }
            self.repeats += 1;
            taken = sample(repeat)?;
        }
        self.disturbed += u64::from(taken.is_disturbed());
        Ok(taken.seconds)
    }

    /// For the note of a cell.
    fn note(self) -> String {
        let Self { samples, repeats, disturbed } = self;
        let all = format!("{repeats} repeats of {samples} samples");
        if disturbed == 0 { all } else { format!("{all}, {disturbed} disturbed in each repeat") }
    }
}

/// A cell: the ratio of the time of the first side to that of the fastest of some peers.
pub(super) struct RatioCell {
    pub(super) goal: Goal,
    pub(super) case: String,
    /// Numbers of sides.
    pub(super) peers: Vec<usize>,
}

impl RatioCell {
    /// A cell; `None` if the user has not asked for it.
    pub(super) fn wanted(
        request: &Request<'_>,
        goal: &str,
        case: &str,
        peers: &[usize],
    ) -> anyhow::Result<Option<Self>> {
        let goal = request.goals.get(SECTION, goal)?;
        let is_wanted = format!("{} {case}", goal.name).contains(request.only);
        Ok(is_wanted.then(|| Self { goal, case: case.to_owned(), peers: peers.to_vec() }))
    }

    fn best_peer(&self, rounds: &Rounds) -> usize {
        let seconds = |side: usize| median(rounds.of(side)).unwrap_or(f64::INFINITY);
        self.peers.iter().copied().min_by(|&one, &other| seconds(one).total_cmp(&seconds(other))).unwrap_or(0)
    }

    fn ratios(&self, rounds: &Rounds) -> Vec<f64> {
        rounds.ratios(0, self.best_peer(rounds))
    }

    fn measured(self, rounds: &Rounds, names: &[&str], counts: SampleCounts) -> GoalCell {
        let best = self.best_peer(rounds);
        let note = format!("{} = 1; {}", names[best], counts.note());
        let mut cell = GoalCell::measured(self.goal, &self.case, Estimate::of_median(&rounds.ratios(0, best)), &note);
        cell.samples = [0, best].map(|side| (names[side].to_owned(), rounds.of(side).to_vec())).into();
        cell
    }
}

/// The measured cells, and the median seconds of a sample by side.
pub(super) struct Comparison {
    pub(super) cells: Vec<GoalCell>,
    pub(super) seconds: Vec<f64>,
}

/// Takes samples of all sides in rounds, until each cell meets the [`StopRule`]. `sample` gets a side and
/// a seed. The first round is dropped. A pause before each sample lets the threads of other sides end
/// their work.
pub(super) fn compare(
    cells: Vec<RatioCell>,
    names: &[&str],
    time_limit: Duration,
    pause: Duration,
    mut sample: impl FnMut(usize, u64) -> anyhow::Result<Sample>,
) -> anyhow::Result<Comparison> {
    let mut counts = SampleCounts::default();
    let mut rounds_of = vec![0; names.len()];
    let mut run = |side: usize| {
        sleep(pause);
        let first_seed = rounds_of[side] * (MOST_REPEATS + 1);
        rounds_of[side] += 1;
        counts
            .take(|repeat| sample(side, first_seed + repeat))
            .with_context(|| format!("cannot measure {}", names[side]))
    };
    for side in 0..names.len() {
        run(side)?;
    }
    let mut open: Vec<_> = cells.iter().map(|cell| (cell, StopRule::new(cell.goal.limit, time_limit))).collect();
    let is_enough = |rounds: &Rounds| {
        open.retain_mut(|(cell, rule)| !rule.is_met(rounds.count(), &cell.ratios(rounds)));
        open.is_empty()
    };
    let rounds = Rounds::run(names.len(), run, is_enough)?;
    let seconds = (0..names.len()).filter_map(|side| median(rounds.of(side))).collect();
    let cells = cells.into_iter().map(|cell| cell.measured(&rounds, names, counts)).collect();
    Ok(Comparison { cells, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::GoalVerdict;
    use crate::goals::Limit;

    #[test]
    fn a_disturbed_sample_is_repeated_until_one_is_not() {
        let mut counts = SampleCounts::default();
        let waits = [0.5, 0.3, 0.1];
        let taken =
            counts.take(|repeat| Ok(Sample { seconds: repeat as f64 + 1.0, waited: waits[usize::try_from(repeat)?] }));
        assert_eq!(taken.unwrap(), 2.0, "0.3 of 2 seconds are less than a fifth");
        assert_eq!(counts, SampleCounts { samples: 1, repeats: 1, disturbed: 0 });
    }

    #[test]
    fn a_sample_that_is_always_disturbed_is_kept_and_counted() {
        let mut counts = SampleCounts::default();
        let taken = counts.take(|repeat| Ok(Sample { seconds: repeat as f64 + 1.0, waited: 9.0 }));
        assert_eq!(taken.unwrap(), (MOST_REPEATS + 1) as f64);
        assert_eq!(counts, SampleCounts { samples: 1, repeats: MOST_REPEATS, disturbed: 1 });
        assert_eq!(counts.note(), "4 repeats of 1 samples, 1 disturbed in each repeat");
    }

    #[test]
    fn a_thread_that_sleeps_does_not_wait_for_a_processor() {
        let sample = Sample::of_wall_time(|| {
            sleep(Duration::from_millis(50));
            Ok(())
        });
        let sample = sample.unwrap();
        assert!(sample.seconds >= 0.05 && sample.waited < sample.seconds, "{sample:?}");
    }

    #[test]
    fn all_sides_of_a_round_have_the_same_seed_and_each_cell_has_its_peer() {
        let goal = |name: &str| Goal { name: name.into(), what: String::new(), limit: Limit::AtMost(1.0) };
        let cell = |name: &str, peers: &[usize]| RatioCell { goal: goal(name), case: "".into(), peers: peers.to_vec() };
        let cells = vec![cell("fixed", &[1]), cell("best", &[1, 2])];
        let mut seeds = vec![Vec::new(); 3];
        let times = [2.0, 4.0, 1.0];
        let compared = compare(cells, &["a", "b", "c"], Duration::from_secs(60), Duration::ZERO, |side, seed| {
            seeds[side].push(seed);
            Ok(Sample { seconds: times[side], waited: 0.0 })
        });
        let Comparison { cells, seconds } = compared.unwrap();
        let found: Vec<_> = cells.iter().map(|cell| (cell.estimate.unwrap().median, cell.verdict)).collect();
        assert_eq!(found, [(0.5, GoalVerdict::Ok), (2.0, GoalVerdict::Miss)]);
        assert!(cells[1].note.starts_with("c = 1; 0 repeats of"), "{}", cells[1].note);
        assert!(seeds[0] == seeds[1] && seeds[1] == seeds[2] && seeds[0][1] == MOST_REPEATS + 1, "{seeds:?}");
        assert_eq!(seconds, times);
    }
}
