//! The section `[sharing]`: programs that share falsely under `fieldstone run --repair`, against what a programmer would have written.
//!
//! ```text
//! contests  which programs, which arguments, what is expected of the repair
//! workload  a program run once, with or without the repair, and what it tells
//! repair    what the repair's own record says was done
//! rounds    rounds until the verdict stands or the time is over
//! used      programs that people use: their output, and what looking on costs them
//! latency   from the first contention to the last loop led away
//! objects   `--only objects`: a table of C++ programs that a repair must not slow down, of which no goal speaks
//! soak      results compared over thousands of runs (`make soak-sharing`)
//! ```
//! A pair is two whole runs of a program, one of them repaired, detection and all. What is compared is the time of the threads as the
//! program prints it, or that of the whole run by the clock where the cost of looking on is asked for. A pair counts when the run
//! without repair took a second and had its processors. So must have the repaired run, unless it is the slower one: threads that ran
//! one after the other do not fight, which would flatter us; threads that the repair held up are its own fault.

mod contests;
mod latency;
mod objects;
mod repair;
mod rounds;
mod soak;
mod used;
mod workload;

use std::time::Duration;

use anyhow::Context;
use fieldstone_stats::{Estimate, order};

use crate::cell::{Cell, Verdict};
use crate::goals::{Goal, Goals, Limit};
use contests::{CLEAN, CONTESTS, Contest, Size, Time};
use repair::Repaired;
use rounds::settle;
use used::USED;
use workload::{Place, Run};

const SECTION: &str = "sharing";
/// Measured apart from the contests.
const LATENCY: &str = "first_contention_to_repaired_ms";
const WRONG_RESULTS: &str = "wrong_results";

/// What a run without repair takes at least.
const LEAST_S: f64 = 1.0;
/// Processors that its two threads have at least, on the average.
const LEAST_PARALLEL: f64 = 1.6;
/// What runs are made to take, so that none falls below the least.
const WANTED_S: f64 = 1.2;

/// Measures the section's cells. `runs` is how often each program runs for `wrong_results`, in place of what the time allows.
pub(crate) fn measure(
    goals: &Goals,
    limit: Duration,
    only: &str,
    runs: Option<u32>,
    show: &mut dyn FnMut(Cell),
) -> anyhow::Result<()> {
    let place = Place::find()?;
    if let Some(why) = place.obstacle()? {
        let asked = goals.of(SECTION).filter(|goal| goal.name.contains(only));
        asked.for_each(|goal| show(Cell::skipped(goal, &why)));
        return Ok(());
    }
    if let Some(rows) = only.strip_prefix(objects::NAME) {
        return objects::print(&place, rows);
    }
    println!("# false sharing: counters -O2 take {:.2} times as long as padded here", place.slowdown()?);
    for contest in CONTESTS.iter().filter(|contest| contest.goal.contains(only)) {
        show(hold(&place, contest, goals.get(SECTION, contest.goal)?, limit)?);
    }
    for used in USED.iter().filter(|_| CLEAN.contains(only)) {
        show(used.hold(&place, goals.get(SECTION, CLEAN)?, limit)?);
    }
    if LATENCY.contains(only) {
        for part in &latency::PARTS {
            show(part.measure(&place, goals.get(SECTION, LATENCY)?, limit)?);
        }
    }
    if WRONG_RESULTS.contains(only) {
        show(soak::measure(&place, goals.get(SECTION, WRONG_RESULTS)?, limit, runs)?);
    }
    Ok(())
}

/// Seconds of the pairs that count, the plain and the repaired ones, and what else there was.
#[derive(Debug, Default)]
struct Pairs {
    plain: Vec<f64>,
    repaired: Vec<f64>,
    /// Pairs with a run that was too short, or had not its processors.
    uncounted: usize,
    /// Pairs of those that count whose repair did not do what the contest expects.
    unexpected: usize,
}

impl Pairs {
    fn take(&mut self, contest: &Contest, plain: &Run, repaired: &Repaired) -> anyhow::Result<bool> {
        let (plain_s, repaired_s) = (contest.time.of(plain)?, contest.time.of(&repaired.run)?);
        let had_processors = |run: &Run| run.parallel.is_none_or(|processors| processors >= LEAST_PARALLEL);
        let flatters = !had_processors(plain) || !had_processors(&repaired.run) && repaired_s < plain_s;
        if plain_s < LEAST_S || flatters {
            self.uncounted += 1;
            return Ok(false);
        }
        self.plain.push(plain_s);
        self.repaired.push(repaired_s);
        let is_expected = contest.expects.is_met_by(repaired);
        self.unexpected += usize::from(!is_expected);
        Ok(true)
    }

    /// A goal of at most so much asks for the time repaired by the time plain; one of at least so much for the inverse.
    fn last_ratio(&self, limit: Limit) -> Option<f64> {
        let (plain, repaired) = (self.plain.last()?, self.repaired.last()?);
        Some(match limit {
            Limit::AtMost(_) => repaired / plain,
            Limit::AtLeast(_) => plain / repaired,
        })
    }
}

fn hold(place: &Place, contest: &Contest, goal: Goal, limit: Duration) -> anyhow::Result<Cell> {
    if let Some(why) = place.lacks(contest.program) {
        return Ok(Cell::skipped_part(goal, contest.part, &why));
    }
    let plain = |size| place.plain(contest.program, contest.plain, size);
    let repaired = |size| place.repaired(contest.program, contest.repaired, size);
    compete(contest, goal, limit, &plain, &repaired)
}

/// Pairs of runs until the verdict stands.
fn compete(
    contest: &Contest,
    goal: Goal,
    limit: Duration,
    plain: &dyn Fn(Size) -> anyhow::Result<Run>,
    repaired: &dyn Fn(Size) -> anyhow::Result<Repaired>,
) -> anyhow::Result<Cell> {
    let size = workload::sized(contest.size, WANTED_S, |size| contest.time.of(&plain(size)?))
        .with_context(|| format!("{} {}", goal.name, contest.part))?;
    let mut pairs = Pairs::default();
    let once = |round: usize| {
        let (mut by_repair, mut by_plain) = (None, None);
        for side in order(2, round) {
            match side {
                0 => by_repair = Some(repaired(size)?),
                _ => by_plain = Some(plain(size)?),
            }
        }
        let (repaired, plain) = by_repair.zip(by_plain).context("both sides run in each round")?;
        let counts = pairs.take(contest, &plain, &repaired)?;
        Ok(if counts { pairs.last_ratio(goal.limit) } else { None })
    };
    let ratios = settle(goal.limit, limit, once).with_context(|| format!("{} {}", goal.name, contest.part))?;
    Ok(told(goal, contest, &ratios, pairs))
}

/// The cell of a contest. What held by chance, without the repair doing its part, is not `ok`.
fn told(goal: Goal, contest: &Contest, ratios: &[f64], pairs: Pairs) -> Cell {
    let mut notes = Vec::new();
    if pairs.unexpected > 0 {
        notes.push(format!("{} of {} runs {}", pairs.unexpected, ratios.len(), contest.expects.broken()));
    }
    if pairs.uncounted > 0 {
        notes.push(format!("{} pairs not counted: too short, or not in parallel", pairs.uncounted));
    }
    let mut cell = Cell::measured(goal, contest.part, Estimate::of_median(ratios), &notes.join("; "));
    if cell.verdict == Verdict::Ok && pairs.unexpected > 0 {
        cell.verdict = Verdict::Undecided;
    }
    cell.samples = vec![("plain".to_owned(), pairs.plain), ("run --repair".to_owned(), pairs.repaired)];
    cell
}

impl Time {
    /// The seconds of a run that are compared.
    fn of(self, run: &Run) -> anyhow::Result<f64> {
        match self {
            Self::Clock => Ok(run.wall_s),
            // One without the other: the program no longer prints what we read.
            Self::Kernel => {
                run.kernel_s.filter(|_| run.parallel.is_some()).context("it does not tell its threads' time")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use contests::Expects;

    #[test]
    fn every_goal_is_measured() {
        let goals = Goals::read().unwrap();
        let asked: BTreeSet<String> = goals.of(SECTION).map(|goal| goal.name).collect();
        let contests = CONTESTS.iter().map(|contest| contest.goal);
        let measured: BTreeSet<String> = contests.chain([LATENCY, WRONG_RESULTS]).map(str::to_owned).collect();
        assert_eq!(measured, asked);
    }

    fn run(kernel_s: f64, parallel: f64) -> Run {
        Run { wall_s: kernel_s + 0.1, kernel_s: Some(kernel_s), parallel: Some(parallel), ..Run::default() }
    }

    fn repaired(kernel_s: f64, lines: &[u64]) -> Repaired {
        Repaired { run: run(kernel_s, 1.9), stats: repair::tests::stats_of(lines) }
    }

    fn contest(time: Time, expects: Expects) -> Contest {
        Contest { goal: "reentry_100_vs_padded", part: "test", time, expects, ..CONTESTS[0] }
    }

    #[test]
    fn pairs_that_would_flatter_do_not_count() {
        let contest = contest(Time::Kernel, Expects::Repaired);
        let mut pairs = Pairs::default();
        for (plain, ours, counts) in [
            (run(1.5, 1.9), run(1.4, 1.9), true),
            (run(1.5, 1.5), run(1.6, 1.9), false),
            (run(0.9, 1.9), run(1.0, 1.9), false),
            (run(1.5, 1.9), run(1.4, 1.2), false),
            (run(1.5, 1.9), run(1.6, 1.2), true),
        ] {
            let ours = Repaired { run: ours, ..repaired(1.0, &[0x1000]) };
            assert_eq!(pairs.take(&contest, &plain, &ours).unwrap(), counts, "{plain:?}, {ours:?}");
        }
        assert_eq!((pairs.plain.len(), pairs.repaired.len(), pairs.uncounted), (2, 2, 3));
        assert!(pairs.take(&contest, &Run { parallel: None, ..run(1.5, 1.9) }, &repaired(1.6, &[])).is_err());
    }

    #[test]
    fn who_was_not_looked_at_did_nothing_as_expected() {
        let mut nothing = repaired(1.5, &[]);
        assert!(Expects::Untouched.is_met_by(&nothing) && Expects::Anything.is_met_by(&nothing));
        assert!(!Expects::Repaired.is_met_by(&nothing) && !Expects::TakenBack.is_met_by(&nothing));
        nothing.stats.seen.samples = 0;
        assert!(!Expects::Untouched.is_met_by(&nothing) && !Expects::Anything.is_met_by(&nothing));
        let moved = repaired(1.5, &[0x1000]);
        assert!(Expects::Repaired.is_met_by(&moved) && !Expects::Untouched.is_met_by(&moved));
        assert!(!Expects::TakenBack.is_met_by(&moved), "it is not back");
    }

    #[test]
    fn the_limit_says_which_way_the_ratio_goes() {
        let (mut pairs, contest) = (Pairs::default(), contest(Time::Clock, Expects::Untouched));
        pairs.take(&contest, &run(1.9, 1.9), &repaired(3.9, &[])).unwrap();
        assert_eq!(pairs.last_ratio(Limit::AtMost(1.0)), Some(2.0));
        assert_eq!(pairs.last_ratio(Limit::AtLeast(1.0)), Some(0.5));
    }

    #[test]
    fn what_held_without_a_repair_is_not_ok() {
        let goal = Goal { name: "reentry".to_owned(), what: String::new(), limit: Limit::AtMost(1.05) };
        let ratios = [1.0, 1.01, 1.0, 1.01, 1.0, 1.01];
        for (lines, slow, expects, verdict) in [
            (&[0x1000][..], 1.0, Expects::Repaired, Verdict::Ok),
            (&[], 1.0, Expects::Repaired, Verdict::Undecided),
            (&[], 2.0, Expects::Repaired, Verdict::Miss),
            (&[], 1.0, Expects::Untouched, Verdict::Ok),
            (&[0x1000], 1.0, Expects::Untouched, Verdict::Undecided),
        ] {
            let (mut pairs, contest) = (Pairs::default(), contest(Time::Kernel, expects));
            for _ in ratios {
                assert!(pairs.take(&contest, &run(1.5, 1.9), &repaired(1.5, lines)).unwrap());
            }
            let cell = told(goal.clone(), &contest, &ratios.map(|ratio| ratio * slow), pairs);
            assert_eq!(cell.verdict, verdict, "{expects:?}, {lines:x?}: {cell}");
            assert_eq!(cell.note.is_empty(), contest.expects.is_met_by(&repaired(1.5, lines)), "{cell}");
        }
    }
}
