//! `make soak-sharing`: run programs under repair many times, and compare their results with those
//! of plain runs.
//!
//! Ten programs run a thousand times each. A result is wrong if the output or the exit status
//! differs, or if the program does not end within two minutes. Each program also checks its own
//! result. Runs below 200 ms do not count, because no repair can start in that time. The row of a
//! program has the number of runs in which lines were separated.

use std::fmt;
use std::time::{Duration, Instant};

use fieldstone_stats::{Estimate, median};

use super::comparisons::WorkSize;
use super::program_run::{Programs, find_size};
use super::repair_record::{RepairedRun, was_separated};
use crate::cell::GoalCell;
use crate::goals::Goal;

/// Required runs per program.
const RUNS: u32 = 1000;
/// Minimum and target seconds of a run.
const MIN_RUN_S: f64 = 0.2;
const TARGET_RUN_S: f64 = 0.3;

struct SoakProgram {
    name: &'static str,
    program: &'static str,
    arguments: &'static str,
    size: WorkSize,
}

const fn soak_program(
    name: &'static str,
    program: &'static str,
    arguments: &'static str,
    option: &'static str,
    number: u64,
) -> SoakProgram {
    SoakProgram { name, program, arguments, size: WorkSize { option, number } }
}

const COUNT: &str = "--iterations";

const PROGRAMS: [SoakProgram; 10] = [
    soak_program("counters -O0", "sharing/counters-O0", "", COUNT, 20_000_000),
    soak_program("counters -O2, 4 threads", "sharing/counters-O2", "--threads 4", COUNT, 20_000_000),
    soak_program("counters -O2, lock add", "sharing/counters-O2", "--atomic --globals", COUNT, 10_000_000),
    soak_program("counters -O1, re-entered", "sharing/counters-O1", "--reenter 100", COUNT, 20_000_000),
    soak_program(
        "linear_regression -O0",
        "sharing/linear_regression-O0",
        "--shift 16 --points 2000000",
        "--rounds",
        10,
    ),
    soak_program(
        "linear_regression -O1",
        "sharing/linear_regression-O1",
        "--shift 24 --points 2000000",
        "--rounds",
        20,
    ),
    soak_program("histogram -O2", "sharing/histogram-O2", "--pixels 2000000", "--rounds", 10),
    soak_program("string_match -O0", "sharing/string_match-O0", "--words 500000", "--rounds", 5),
    soak_program("word_count -O1", "sharing/word_count-O1", "--words 500000", "--rounds", 20),
    soak_program("streamcluster -O2", "sharing/streamcluster-O2", "--points 20000", "--rounds", 100),
];

/// The counts of one program's runs.
#[derive(Debug, Default)]
struct SoakRow {
    name: &'static str,
    /// Seconds of the runs that were long enough.
    seconds: Vec<f64>,
    short: usize,
    wrong: usize,
    /// Runs in which lines were separated.
    separated: usize,
}

/// Runs each program `runs` times, or as often as `limit` allows.
pub(super) fn measure(programs: &Programs, goal: Goal, limit: Duration, runs: Option<u32>) -> anyhow::Result<GoalCell> {
    if let Some(why) = PROGRAMS.iter().find_map(|one| programs.missing_reason(one.program)) {
        return Ok(GoalCell::skipped(goal, &why));
    }
    println!("# {HEADING}");
    let mut rows = Vec::new();
    for one in &PROGRAMS {
        let row = one.soak(programs, limit.div_f64(PROGRAMS.len() as f64), runs)?;
        println!("# {row}");
        rows.push(row);
    }
    Ok(cell(goal, rows))
}

impl SoakProgram {
    fn soak(&self, programs: &Programs, limit: Duration, runs: Option<u32>) -> anyhow::Result<SoakRow> {
        let size = find_size(self.size, TARGET_RUN_S, |size| {
            Ok(programs.repaired(self.program, self.arguments, size)?.run.wall_s)
        })?;
        let expected = programs.plain(self.program, self.arguments, size)?.output;
        let (since, mut row) = (Instant::now(), SoakRow { name: self.name, ..SoakRow::default() });
        let wanted = runs.unwrap_or(RUNS) as usize;
        // Short runs are repeated.
        while row.seconds.len() < wanted && row.runs() < 2 * wanted {
            let found = programs.run_repaired(self.program, self.arguments, size)?;
            if !row.add(&found, &expected) {
                println!("{}", failure(&format!("{}, run {}", self.name, row.runs()), &found, &expected));
            }
            if runs.is_none() && since.elapsed() > limit {
                break;
            }
        }
        Ok(row)
    }
}

impl SoakRow {
    /// Adds a run. Returns whether its result is right.
    fn add(&mut self, found: &RepairedRun, expected: &str) -> bool {
        let is_right = found.run.succeeded() && found.run.output == expected;
        self.wrong += usize::from(!is_right);
        self.separated += usize::from(was_separated(&found.stats.events, found.run.threads_s()));
        if found.run.wall_s < MIN_RUN_S {
            self.short += 1;
        } else {
            self.seconds.push(found.run.wall_s);
        }
        is_right
    }

    fn runs(&self) -> usize {
        self.seconds.len() + self.short
    }

    /// Whether its threads contend in each run; the other programs are here for their loops.
    fn is_expected_to_repair(&self) -> bool {
        self.name.starts_with("counters") || self.name.starts_with("linear_regression")
    }

    /// Whether enough runs were long enough.
    fn is_complete(&self) -> bool {
        self.seconds.len() >= RUNS as usize
    }
}

const HEADING: &str = "program                       runs  wrong  short  separated  median s  shortest s";

impl fmt::Display for SoakRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, seconds, short, wrong, separated } = self;
        let runs = self.runs();
        let shortest = seconds.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::NAN);
        let median = median(seconds).unwrap_or(f64::NAN);
        write!(f, "{name:28}  {runs:4}  {wrong:5}  {short:5}  {separated:9}  {median:8.3}  {shortest:10.3}")
    }
}

/// All information about a wrong run.
fn failure(name: &str, found: &RepairedRun, expected: &str) -> String {
    let RepairedRun { run, stats } = found;
    let parts = [("expected", expected), ("its output", &run.output), ("its errors", &run.errors)];
    let mut report = format!("WRONG {name}: {}\n", run.ending());
    for (title, text) in parts {
        report += &format!("--- {title}\n{}\n", text.trim_end());
    }
    report += "--- what the repair did\n";
    for event in &stats.events {
        report += &format!("{:9.1} ms  {:?}\n", event.at_ms, event.kind);
    }
    report
}

/// One wrong result is decisive. No wrong result is decisive only after all runs.
fn cell(goal: Goal, rows: Vec<SoakRow>) -> GoalCell {
    let wrong: usize = rows.iter().map(|row| row.wrong).sum();
    let counted: usize = rows.iter().map(|row| row.seconds.len()).sum();
    // A program whose lines are rarely separated tests nothing.
    let is_idle = |row: &&SoakRow| row.is_expected_to_repair() && row.separated * 2 <= row.runs();
    let idle: Vec<&str> = rows.iter().filter(is_idle).map(|row| row.name).collect();
    let is_decided = wrong > 0 || rows.iter().all(SoakRow::is_complete) && idle.is_empty();
    let required = rows.len() * RUNS as usize;
    let note = if !idle.is_empty() {
        format!("lines were not separated in most runs of {}", idle.join(", "))
    } else if is_decided {
        format!("{counted} runs of at least {MIN_RUN_S} s")
    } else {
        format!("{counted} of {required} runs of at least {MIN_RUN_S} s: `make soak-sharing` does all of them")
    };
    let count = wrong as f64;
    let confidence = is_decided.then_some(1.0);
    let estimate = Estimate { n: counted, median: count, low: count, high: count, confidence };
    let mut cell = GoalCell::measured(goal, &format!("{} programs", rows.len()), Some(estimate), &note);
    cell.samples = rows.into_iter().map(|row| (row.name.to_owned(), row.seconds)).collect();
    cell
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::super::comparisons::tests::check_options;
    use super::super::program_run::WorkloadRun;
    use super::super::repair_record::tests::stats_of;
    use super::*;
    use crate::cell::GoalVerdict;
    use crate::goals::Goals;

    #[test]
    fn programs_runs_and_milliseconds_are_those_of_the_goal() {
        let goal = Goals::read().unwrap().get("sharing", "wrong_results").unwrap();
        let thousands = format!("{},{:03}", RUNS / 1000, RUNS % 1000);
        let required =
            format!("{thousands} runs of each of {} programs of at least {} ms", PROGRAMS.len(), MIN_RUN_S * 1e3);
        assert!(goal.what.contains(&required), "{required}; {}", goal.what);
        PROGRAMS.iter().for_each(|one| check_options(one.program, &[one.arguments, one.size.option]));
    }

    fn repaired(code: i32, output: &str, wall_s: f64) -> RepairedRun {
        let run = WorkloadRun {
            status: Some(ExitStatus::from_raw(code << 8)),
            wall_s,
            output: output.to_owned(),
            ..WorkloadRun::default()
        };
        RepairedRun { run, stats: stats_of(&[0x1000]) }
    }

    #[test]
    fn different_output_different_status_and_hanging_are_wrong() {
        let mut row = SoakRow { name: "test", ..SoakRow::default() };
        assert!(row.add(&repaired(0, "checksum: 1\n", 0.3), "checksum: 1\n"));
        assert!(row.add(&repaired(0, "checksum: 1\n", 0.1), "checksum: 1\n"));
        let mut hung = repaired(0, "checksum: 1\n", 120.0);
        hung.run.status = None;
        for wrong in [repaired(0, "checksum: 2\n", 0.3), repaired(1, "checksum: 1\n", 0.3), hung] {
            assert!(!row.add(&wrong, "checksum: 1\n"), "{wrong:?}");
        }
        assert_eq!((row.seconds.len(), row.short, row.wrong, row.separated), (4, 1, 3, 5));
        let failure = failure("test, run 3", &repaired(1, "checksum: 2\n", 0.3), "checksum: 1\n");
        for case in ["test, run 3", "checksum: 1", "checksum: 2", "Moved"] {
            assert!(failure.contains(case), "{failure}");
        }
    }

    #[test]
    fn one_wrong_result_is_decisive_and_none_only_after_all_runs() {
        let goal = || Goals::read().unwrap().get("sharing", "wrong_results").unwrap();
        let row = |runs: usize, wrong| SoakRow { name: "test", seconds: vec![0.3; runs], wrong, ..SoakRow::default() };
        for (rows, verdict) in [
            (vec![row(1000, 0), row(1000, 0)], GoalVerdict::Ok),
            (vec![row(1000, 0), row(999, 0)], GoalVerdict::Undecided),
            (vec![row(1000, 0), row(1, 1)], GoalVerdict::Miss),
            (vec![SoakRow { name: "counters -O2", ..row(1000, 0) }], GoalVerdict::Undecided),
            (vec![SoakRow { name: "counters -O2", separated: 7, ..row(1000, 0) }], GoalVerdict::Undecided),
            (vec![SoakRow { name: "counters -O2", separated: 900, ..row(1000, 0) }], GoalVerdict::Ok),
        ] {
            assert_eq!(cell(goal(), rows).verdict, verdict);
        }
    }
}
