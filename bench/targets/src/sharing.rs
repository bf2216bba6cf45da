//! The section `[sharing]`: false sharing under `fieldstone run --repair`, against hand-optimised
//! programs.
//!
//! ```text
//! comparisons    pairs of programs, their arguments, and the expected repair
//! program_run    runs a program with or without the repair, and reads its output
//! repair_record  evaluates the record of a repair
//! rounds         runs rounds until the result settles or time is up
//! applications   common programs: their output, and the overhead of detection
//! latency        time from the first contention to the last redirected loop
//! objects        `--only objects`: a table of C++ programs that a repair must not slow down, without a goal
//! soak           compares results over thousands of runs (`make soak-sharing`)
//! ```
//! A pair consists of two whole runs of a program, one with detection and repair. It compares the
//! time of the threads, which the program prints, or the wall time where the overhead matters.
//!
//! A pair counts only if the plain run took at least a second and had its processors. The repaired
//! run also needs its processors, unless it is slower: threads that run one after the other have no
//! contention, which would favour us, but a delay by the repair itself must count.

mod applications;
mod comparisons;
mod latency;
mod objects;
mod program_run;
mod repair_record;
mod rounds;
mod soak;

use std::time::Duration;

use anyhow::Context;
use fieldstone_stats::{Estimate, pair};

use crate::cell::{GoalCell, GoalVerdict};
use crate::goals::{Goal, Limit};
use crate::request::Request;
use applications::APPLICATIONS;
use comparisons::{CLEAN, COMPARISONS, Comparison, Time, WorkSize};
use program_run::{Programs, WorkloadRun};
use repair_record::RepairedRun;
use rounds::run_rounds;

const SECTION: &str = "sharing";
/// Measured separately from the comparisons.
const LATENCY: &str = "first_contention_to_repaired_ms";
const WRONG_RESULTS: &str = "wrong_results";

/// Minimum seconds of a plain run.
const MIN_RUN_S: f64 = 1.0;
/// Minimum mean number of processors of its two threads.
const MIN_PROCESSORS: f64 = 1.6;
/// Target seconds of a run, above the minimum.
const TARGET_RUN_S: f64 = 1.2;

/// Measures the cells of the section. `runs` overrides the number of runs per program for
/// `wrong_results`.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let Request { goals, limit, only, runs } = *request;
    let programs = Programs::find()?;
    if let Some(why) = programs.obstacle()? {
        let skipped = goals.of(SECTION).filter(|goal| goal.name.contains(only));
        skipped.for_each(|goal| show(GoalCell::skipped(goal, &why)));
        return Ok(());
    }
    if let Some(rows) = only.strip_prefix(objects::NAME) {
        return objects::print(&programs, rows);
    }
    println!("# false sharing: counters -O2 take {:.2} times as long as padded here", programs.slowdown()?);
    for comparison in COMPARISONS.iter().filter(|comparison| comparison.goal.contains(only)) {
        show(measure_comparison(&programs, comparison, goals.get(SECTION, comparison.goal)?, limit)?);
    }
    for application in APPLICATIONS.iter().filter(|_| CLEAN.contains(only)) {
        show(application.measure(&programs, goals.get(SECTION, CLEAN)?, limit)?);
    }
    if LATENCY.contains(only) {
        for case in &latency::CASES {
            show(case.measure(&programs, goals.get(SECTION, LATENCY)?, limit)?);
        }
    }
    if WRONG_RESULTS.contains(only) {
        show(soak::measure(&programs, goals.get(SECTION, WRONG_RESULTS)?, limit, runs)?);
    }
    Ok(())
}

/// The counted pairs, in seconds, and the number of the others.
#[derive(Debug, Default)]
struct Pairs {
    plain: Vec<f64>,
    repaired: Vec<f64>,
    /// Pairs with a run that was too short or lacked processors.
    uncounted: usize,
    /// Counted pairs whose repair differs from the expected one.
    unexpected: usize,
}

impl Pairs {
    fn add(&mut self, comparison: &Comparison, plain: &WorkloadRun, repaired: &RepairedRun) -> anyhow::Result<bool> {
        let (plain_s, repaired_s) = (comparison.time.of(plain)?, comparison.time.of(&repaired.run)?);
        let had_processors = |run: &WorkloadRun| run.parallel.is_none_or(|processors| processors >= MIN_PROCESSORS);
        let favours_repair = !had_processors(plain) || !had_processors(&repaired.run) && repaired_s < plain_s;
        if plain_s < MIN_RUN_S || favours_repair {
            self.uncounted += 1;
            return Ok(false);
        }
        self.plain.push(plain_s);
        self.repaired.push(repaired_s);
        let is_expected = comparison.expected_repair.is_met_by(repaired);
        self.unexpected += usize::from(!is_expected);
        Ok(true)
    }

    /// The last ratio: repaired by plain time for an upper limit, plain by repaired time for a
    /// lower limit.
    fn last_ratio(&self, limit: Limit) -> Option<f64> {
        let (plain, repaired) = (self.plain.last()?, self.repaired.last()?);
        Some(match limit {
            Limit::AtMost(_) => repaired / plain,
            Limit::AtLeast(_) => plain / repaired,
        })
    }
}

fn measure_comparison(
    programs: &Programs,
    comparison: &Comparison,
    goal: Goal,
    limit: Duration,
) -> anyhow::Result<GoalCell> {
    if let Some(why) = programs.missing_reason(comparison.program) {
        return Ok(GoalCell::skipped_case(goal, comparison.case, &why));
    }
    let plain = |size| programs.plain(comparison.program, comparison.plain, size);
    let repaired = |size| programs.repaired(comparison.program, comparison.repaired, size);
    compare_runs(comparison, goal, limit, &plain, &repaired)
}

/// Runs pairs until the result settles.
fn compare_runs(
    comparison: &Comparison,
    goal: Goal,
    limit: Duration,
    plain: &dyn Fn(WorkSize) -> anyhow::Result<WorkloadRun>,
    repaired: &dyn Fn(WorkSize) -> anyhow::Result<RepairedRun>,
) -> anyhow::Result<GoalCell> {
    let size = program_run::find_size(comparison.size, TARGET_RUN_S, |size| comparison.time.of(&plain(size)?))
        .with_context(|| format!("{} {}", goal.name, comparison.case))?;
    let mut pairs = Pairs::default();
    let measure_round = |round: usize| {
        let (repaired, plain) = pair(round, || repaired(size), || plain(size))?;
        let counts = pairs.add(comparison, &plain, &repaired)?;
        Ok(if counts { pairs.last_ratio(goal.limit) } else { None })
    };
    let ratios =
        run_rounds(goal.limit, limit, measure_round).with_context(|| format!("{} {}", goal.name, comparison.case))?;
    Ok(cell(goal, comparison, &ratios, pairs))
}

/// The cell of a comparison. A result that meets the limit without the expected repair is not `ok`.
fn cell(goal: Goal, comparison: &Comparison, ratios: &[f64], pairs: Pairs) -> GoalCell {
    let mut notes = Vec::new();
    if pairs.unexpected > 0 {
        notes.push(format!(
            "{} of {} runs {}",
            pairs.unexpected,
            ratios.len(),
            comparison.expected_repair.failure_text()
        ));
    }
    if pairs.uncounted > 0 {
        notes.push(format!("{} pairs not counted: too short, or not in parallel", pairs.uncounted));
    }
    let mut cell = GoalCell::measured(goal, comparison.case, Estimate::of_median(ratios), &notes.join("; "));
    if cell.verdict == GoalVerdict::Ok && pairs.unexpected > 0 {
        cell.verdict = GoalVerdict::Undecided;
    }
    cell.samples = vec![("plain".to_owned(), pairs.plain), ("run --repair".to_owned(), pairs.repaired)];
    cell
}

impl Time {
    /// The compared seconds of a run.
    fn of(self, run: &WorkloadRun) -> anyhow::Result<f64> {
        match self {
            Self::Clock => Ok(run.wall_s),
            // If only one of the two values exists, the output format has changed.
            Self::Kernel => run
                .kernel_s
                .filter(|_| run.parallel.is_some())
                .context("the program does not print the time of its threads"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::goals::Goals;
    use comparisons::ExpectedRepair;

    #[test]
    fn every_goal_is_measured() {
        let goals = Goals::read().unwrap();
        let required: BTreeSet<String> = goals.of(SECTION).map(|goal| goal.name).collect();
        let comparisons = COMPARISONS.iter().map(|comparison| comparison.goal);
        let measured: BTreeSet<String> = comparisons.chain([LATENCY, WRONG_RESULTS]).map(str::to_owned).collect();
        assert_eq!(measured, required);
    }

    fn run(kernel_s: f64, parallel: f64) -> WorkloadRun {
        WorkloadRun {
            wall_s: kernel_s + 0.1,
            kernel_s: Some(kernel_s),
            parallel: Some(parallel),
            ..WorkloadRun::default()
        }
    }

    fn repaired(kernel_s: f64, lines: &[u64]) -> RepairedRun {
        RepairedRun { run: run(kernel_s, 1.9), stats: repair_record::tests::stats_of(lines) }
    }

    fn comparison(time: Time, expected_repair: ExpectedRepair) -> Comparison {
        Comparison { goal: "reentry_100_vs_padded", case: "test", time, expected_repair, ..COMPARISONS[0] }
    }

    #[test]
    fn pairs_that_would_favour_the_repair_do_not_count() {
        let comparison = comparison(Time::Kernel, ExpectedRepair::Separated);
        let mut pairs = Pairs::default();
        for (plain, ours, counts) in [
            (run(1.5, 1.9), run(1.4, 1.9), true),
            (run(1.5, 1.5), run(1.6, 1.9), false),
            (run(0.9, 1.9), run(1.0, 1.9), false),
            (run(1.5, 1.9), run(1.4, 1.2), false),
            (run(1.5, 1.9), run(1.6, 1.2), true),
        ] {
            let ours = RepairedRun { run: ours, ..repaired(1.0, &[0x1000]) };
            assert_eq!(pairs.add(&comparison, &plain, &ours).unwrap(), counts, "{plain:?}, {ours:?}");
        }
        assert_eq!((pairs.plain.len(), pairs.repaired.len(), pairs.uncounted), (2, 2, 3));
        assert!(pairs.add(&comparison, &WorkloadRun { parallel: None, ..run(1.5, 1.9) }, &repaired(1.6, &[])).is_err());
    }

    #[test]
    fn a_run_without_samples_meets_no_expectation() {
        let mut nothing = repaired(1.5, &[]);
        assert!(ExpectedRepair::NothingMoved.is_met_by(&nothing) && ExpectedRepair::Any.is_met_by(&nothing));
        assert!(!ExpectedRepair::Separated.is_met_by(&nothing) && !ExpectedRepair::Restored.is_met_by(&nothing));
        nothing.stats.sampling.samples = 0;
        assert!(!ExpectedRepair::NothingMoved.is_met_by(&nothing) && !ExpectedRepair::Any.is_met_by(&nothing));
        let moved = repaired(1.5, &[0x1000]);
        assert!(ExpectedRepair::Separated.is_met_by(&moved) && !ExpectedRepair::NothingMoved.is_met_by(&moved));
        assert!(!ExpectedRepair::Restored.is_met_by(&moved), "the page is not restored");
    }

    #[test]
    fn the_ratio_follows_the_kind_of_limit() {
        let (mut pairs, comparison) = (Pairs::default(), comparison(Time::Clock, ExpectedRepair::NothingMoved));
        pairs.add(&comparison, &run(1.9, 1.9), &repaired(3.9, &[])).unwrap();
        assert_eq!(pairs.last_ratio(Limit::AtMost(1.0)), Some(2.0));
        assert_eq!(pairs.last_ratio(Limit::AtLeast(1.0)), Some(0.5));
    }

    #[test]
    fn a_good_ratio_without_a_repair_is_not_ok() {
        let goal = Goal { name: "reentry".to_owned(), what: String::new(), limit: Limit::AtMost(1.05) };
        let ratios = [1.0, 1.01, 1.0, 1.01, 1.0, 1.01];
        for (lines, slow, expected_repair, verdict) in [
            (&[0x1000][..], 1.0, ExpectedRepair::Separated, GoalVerdict::Ok),
            (&[], 1.0, ExpectedRepair::Separated, GoalVerdict::Undecided),
            (&[], 2.0, ExpectedRepair::Separated, GoalVerdict::Miss),
            (&[], 1.0, ExpectedRepair::NothingMoved, GoalVerdict::Ok),
            (&[0x1000], 1.0, ExpectedRepair::NothingMoved, GoalVerdict::Undecided),
        ] {
            let (mut pairs, comparison) = (Pairs::default(), comparison(Time::Kernel, expected_repair));
            for _ in ratios {
                assert!(pairs.add(&comparison, &run(1.5, 1.9), &repaired(1.5, lines)).unwrap());
            }
            let cell = cell(goal.clone(), &comparison, &ratios.map(|ratio| ratio * slow), pairs);
            assert_eq!(cell.verdict, verdict, "{expected_repair:?}, {lines:x?}: {cell}");
            assert_eq!(cell.note.is_empty(), comparison.expected_repair.is_met_by(&repaired(1.5, lines)), "{cell}");
        }
    }
}
