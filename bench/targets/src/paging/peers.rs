//! Rounds of runs with ours and with peers, and the cells of their ratios.
//!
//! A run returns one or more values. The rounds end when each cell meets the [`StopRule`]. A peer
//! that the machine lacks, or that fails too often, leaves the rounds, and its cells are skipped.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use fieldstone_reproduce::Missing;
use fieldstone_reproduce::compression_paging::{BoundMethod, RunCount};
use fieldstone_stats::{Estimate, order};

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::stop_rule::StopRule;

/// A cell: the ratio of ours to a peer.
#[derive(Clone, Debug)]
pub(super) struct PeerCell {
    goal: Goal,
    case: String,
    peer: BoundMethod,
    /// Which value of a run it compares.
    value: usize,
}

impl PeerCell {
    pub(super) fn new(goal: Goal, case: String, peer: BoundMethod) -> Self {
        Self { goal, case, peer, value: 0 }
    }

    /// The same for another value of a run.
    pub(super) fn of_value(self, value: usize) -> Self {
        Self { value, ..self }
    }

    /// The cell without a measurement.
    pub(super) fn skipped(&self, why: &str) -> GoalCell {
        GoalCell::skipped_case(self.goal.clone(), &self.case, why)
    }

    /// Its name in the output.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.goal.name, self.case)
    }
}

/// The runs of a method.
#[derive(Default)]
struct MethodRuns {
    count: RunCount,
    /// Values by round.
    values: Vec<Vec<f64>>,
    /// Why it has left the rounds.
    missing: Option<String>,
}

impl MethodRuns {
    /// Runs it once, or notes why it cannot run.
    fn run(&mut self, run: impl FnMut() -> Result<Vec<f64>>) -> Result<()> {
        if self.missing.is_none() {
            match self.count.repeat(run) {
                Err(error) if error.is::<Missing>() => self.missing = Some(error.to_string()),
                values => self.values.push(values?),
            }
        }
        Ok(())
    }

    fn of(&self, value: usize) -> Vec<f64> {
        self.values.iter().map(|values| values[value]).collect()
    }
}

/// Measures `cells` by alternate runs of `ours` and of their peers. The first run of each method is
/// dropped.
pub(super) fn compare(
    ours: BoundMethod,
    cells: Vec<PeerCell>,
    time_limit: Duration,
    run: impl Fn(BoundMethod) -> Result<Vec<f64>>,
) -> Result<Vec<GoalCell>> {
    let mut methods = vec![ours];
    for cell in &cells {
        if !methods.contains(&cell.peer) {
            methods.push(cell.peer);
        }
    }
    let mut runs: Vec<MethodRuns> = methods.iter().map(|_| MethodRuns::default()).collect();
    let index = |method| methods.iter().position(|&other| other == method).unwrap_or(0);
    if cells.is_empty() {
        return Ok(Vec::new());
    }
    for (method, runs) in methods.iter().zip(&mut runs) {
        runs.run(|| run(*method)).with_context(|| method.name())?;
        runs.values.clear();
    }
    let mut open: BTreeMap<usize, StopRule> =
        cells.iter().map(|cell| StopRule::new(cell.goal.limit, time_limit).with_one_check()).enumerate().collect();
    for round in 0.. {
        open.retain(|&cell, _| missing(&runs[0], &runs[index(cells[cell].peer)]).is_none());
        if open.is_empty() {
            break;
        }
        for method in order(methods.len(), round) {
            runs[method].run(|| run(methods[method])).with_context(|| methods[method].name())?;
        }
        open.retain(|&cell, rule| {
            let cell = &cells[cell];
            !rule.is_met(round + 1, &ratios(&runs[0], &runs[index(cell.peer)], cell.value))
        });
    }
    Ok(cells.into_iter().map(|cell| measured(&cell, ours, &runs[0], &runs[index(cell.peer)])).collect())
}

/// Why the ratio of two methods cannot be measured.
fn missing<'a>(ours: &'a MethodRuns, peer: &'a MethodRuns) -> Option<&'a String> {
    ours.missing.as_ref().or(peer.missing.as_ref())
}

/// The ratios of ours to the peer, by round.
fn ratios(ours: &MethodRuns, peer: &MethodRuns, value: usize) -> Vec<f64> {
    ours.of(value).iter().zip(peer.of(value)).map(|(ours, peer)| ours / peer).collect()
}

fn measured(cell: &PeerCell, ours: BoundMethod, own_runs: &MethodRuns, peer_runs: &MethodRuns) -> GoalCell {
    let RunCount { runs, failed } = peer_runs.count;
    if let Some(why) = missing(own_runs, peer_runs) {
        return cell.skipped(why);
    }
    let note = match failed {
        0 => String::new(),
        _ => format!("{} was killed or hung in {failed} of {runs} runs", cell.peer.name()),
    };
    let estimate = Estimate::of_median(&ratios(own_runs, peer_runs, cell.value));
    let mut measured = GoalCell::measured(cell.goal.clone(), &cell.case, estimate, &note);
    let sides = [(ours, own_runs), (cell.peer, peer_runs)];
    measured.samples = sides.map(|(method, runs)| (method.name().to_owned(), runs.of(cell.value))).into();
    measured
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use fieldstone_reproduce::compression_paging::RunFailure;
    use fieldstone_stats::FEWEST_FOR_INTERVAL;

    use super::*;
    use crate::cell::GoalVerdict;
    use crate::goals::Limit;

    const OURS: BoundMethod = BoundMethod::PagedLz4;

    fn cells() -> Vec<PeerCell> {
        let goal = |maximum| Goal { name: "vs".into(), what: String::new(), limit: Limit::AtMost(maximum) };
        let zram = |case: &str| PeerCell::new(goal(1.0), case.to_owned(), BoundMethod::Zram);
        vec![zram("a"), zram("b").of_value(1), PeerCell::new(goal(0.5), "c".into(), BoundMethod::SwapFile)]
    }

    #[test]
    fn runs_alternate_and_each_cell_has_its_value() {
        let order = RefCell::new(Vec::new());
        let measured = compare(OURS, cells(), Duration::from_secs(60), |method| {
            order.borrow_mut().push(method);
            Ok(match method {
                BoundMethod::Zram => vec![4.0, 1.0],
                BoundMethod::SwapFile => vec![8.0, 8.0],
                _ => vec![2.0, 2.0],
            })
        });
        let measured = measured.unwrap();
        let verdicts: Vec<_> = measured.iter().map(|cell| (cell.estimate.unwrap().median, cell.verdict)).collect();
        assert_eq!(verdicts, [(0.5, GoalVerdict::Ok), (2.0, GoalVerdict::Miss), (0.25, GoalVerdict::Ok)]);
        let order = order.into_inner();
        assert_eq!(order.len(), 3 * (1 + FEWEST_FOR_INTERVAL));
        let round: Vec<_> = order[3..6].iter().rev().copied().collect();
        assert_eq!(round, order[6..9]);
        assert_eq!(measured[2].samples[1], ("swap file".to_owned(), vec![8.0; FEWEST_FOR_INTERVAL]));
    }

    #[test]
    fn a_peer_that_fails_is_counted_and_one_that_is_missing_is_skipped() {
        let zram_runs = RefCell::new(0);
        let measured = compare(OURS, cells(), Duration::from_secs(60), |method| match method {
            BoundMethod::SwapFile => Err(RunFailure::Killed.into()),
            BoundMethod::Zram if zram_runs.replace_with(|runs| *runs + 1) == 3 => Err(RunFailure::Hung.into()),
            _ => Ok(vec![1.0, 1.0]),
        });
        let measured = measured.unwrap();
        assert!(measured[0].note.contains("in 1 of 8 runs"), "{}", measured[0].note);
        assert_eq!(measured[2].verdict, GoalVerdict::Skip);
        assert!(measured[2].note.contains("in a row"), "{}", measured[2].note);
    }

    #[test]
    fn wrong_results_end_the_measurement() {
        let error = compare(OURS, cells(), Duration::from_secs(60), |_| anyhow::bail!("wrong result")).unwrap_err();
        assert!(format!("{error:#}").contains("wrong result"));
    }
}
