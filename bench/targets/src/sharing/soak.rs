//! `make soak-sharing`: programs under repair, over and over, and whether they give what they give without.
//!
//! Ten programs, a thousand runs each. A wrong result is another output than that of the program alone, another end, or none at all
//! within two minutes. Each program also checks its own result. A run that is over before a repair could have been made would prove
//! nothing: those below 200 ms do not count, and a program's row says in how many of its runs lines were parted.

use std::fmt;
use std::time::{Duration, Instant};

use fieldstone_stats::{Estimate, median};

use super::contests::Size;
use super::repair::{Repaired, was_parted};
use super::workload::{Place, sized};
use crate::cell::Cell;
use crate::goals::Goal;

/// Runs that each program is asked for.
const RUNS: u32 = 1000;
/// What a run takes at least, and is made to take.
const LEAST_S: f64 = 0.2;
const WANTED_S: f64 = 0.3;

struct Soaked {
    name: &'static str,
    program: &'static str,
    words: &'static str,
    size: Size,
}

const fn soaked(
    name: &'static str,
    program: &'static str,
    words: &'static str,
    option: &'static str,
    number: u64,
) -> Soaked {
    Soaked { name, program, words, size: Size { option, number } }
}

const COUNT: &str = "--iterations";

const PROGRAMS: [Soaked; 10] = [
    soaked("counters -O0", "sharing/counters-O0", "", COUNT, 20_000_000),
    soaked("counters -O2, 4 threads", "sharing/counters-O2", "--threads 4", COUNT, 20_000_000),
    soaked("counters -O2, lock add", "sharing/counters-O2", "--atomic --globals", COUNT, 10_000_000),
    soaked("counters -O1, re-entered", "sharing/counters-O1", "--reenter 100", COUNT, 20_000_000),
    soaked("linear_regression -O0", "sharing/linear_regression-O0", "--shift 16 --points 2000000", "--rounds", 10),
    soaked("linear_regression -O1", "sharing/linear_regression-O1", "--shift 24 --points 2000000", "--rounds", 20),
    soaked("histogram -O2", "sharing/histogram-O2", "--pixels 2000000", "--rounds", 10),
    soaked("string_match -O0", "sharing/string_match-O0", "--words 500000", "--rounds", 5),
    soaked("word_count -O1", "sharing/word_count-O1", "--words 500000", "--rounds", 20),
    soaked("streamcluster -O2", "sharing/streamcluster-O2", "--points 20000", "--rounds", 100),
];

/// What came of one program's runs.
#[derive(Debug, Default)]
struct Row {
    name: &'static str,
    /// Of those that were long enough.
    seconds: Vec<f64>,
    short: usize,
    wrong: usize,
    /// Runs in which lines were parted.
    parted: usize,
}

/// Runs each program `runs` times, or as often as `limit` lets each of them.
pub(super) fn measure(place: &Place, goal: Goal, limit: Duration, runs: Option<u32>) -> anyhow::Result<Cell> {
    if let Some(why) = PROGRAMS.iter().find_map(|one| place.lacks(one.program)) {
        return Ok(Cell::skipped(goal, &why));
    }
    println!("# {HEADING}");
    let mut rows = Vec::new();
    for one in &PROGRAMS {
        let row = one.soak(place, limit.div_f64(PROGRAMS.len() as f64), runs)?;
        println!("# {row}");
        rows.push(row);
    }
    Ok(told(goal, rows))
}

impl Soaked {
    fn soak(&self, place: &Place, limit: Duration, runs: Option<u32>) -> anyhow::Result<Row> {
        let size = sized(self.size, WANTED_S, |size| Ok(place.repaired(self.program, self.words, size)?.run.wall_s))?;
        let expected = place.plain(self.program, self.words, size)?.output;
        let (since, mut row) = (Instant::now(), Row { name: self.name, ..Row::default() });
        let wanted = runs.unwrap_or(RUNS) as usize;
        // Those that are too short are made up for.
        while row.seconds.len() < wanted && row.runs() < 2 * wanted {
            let found = place.tried(self.program, self.words, size)?;
            if !row.take(&found, &expected) {
                println!("{}", failure(&format!("{}, run {}", self.name, row.runs()), &found, &expected));
            }
            if runs.is_none() && since.elapsed() > limit {
                break;
            }
        }
        Ok(row)
    }
}

impl Row {
    /// Counts a run; whether it was right.
    fn take(&mut self, found: &Repaired, expected: &str) -> bool {
        let is_right = found.run.succeeded() && found.run.output == expected;
        self.wrong += usize::from(!is_right);
        self.parted += usize::from(was_parted(&found.stats.events, found.run.threads_s()));
        if found.run.wall_s < LEAST_S {
            self.short += 1;
        } else {
            self.seconds.push(found.run.wall_s);
        }
        is_right
    }

    fn runs(&self) -> usize {
        self.seconds.len() + self.short
    }

    /// Whether its threads fight, each time: the others are there for the loops that they have.
    fn is_expected_to_part(&self) -> bool {
        self.name.starts_with("counters") || self.name.starts_with("linear_regression")
    }

    /// Whether it ran as often as was asked for, and for long enough.
    fn is_complete(&self) -> bool {
        self.seconds.len() >= RUNS as usize
    }
}

const HEADING: &str = "program                       runs  wrong  short  parted  median s  shortest s";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, seconds, short, wrong, parted } = self;
        let runs = self.runs();
        let shortest = seconds.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::NAN);
        let median = median(seconds).unwrap_or(f64::NAN);
        write!(f, "{name:28}  {runs:4}  {wrong:5}  {short:5}  {parted:6}  {median:8.3}  {shortest:10.3}")
    }
}

/// All that is known of a wrong run.
fn failure(name: &str, found: &Repaired, expected: &str) -> String {
    let Repaired { run, stats } = found;
    let parts = [("expected", expected), ("its output", &run.output), ("its errors", &run.errors)];
    let mut told = format!("WRONG {name}: {}\n", run.ending());
    for (title, text) in parts {
        told += &format!("--- {title}\n{}\n", text.trim_end());
    }
    told += "--- what the repair did\n";
    for event in &stats.events {
        told += &format!("{:9.1} ms  {:?}\n", event.at_ms, event.what);
    }
    told
}

/// One wrong result decides; none at all does when all runs were made.
fn told(goal: Goal, rows: Vec<Row>) -> Cell {
    let wrong: usize = rows.iter().map(|row| row.wrong).sum();
    let counted: usize = rows.iter().map(|row| row.seconds.len()).sum();
    // A program whose lines are seldom parted shows nothing.
    let is_idle = |row: &&Row| row.is_expected_to_part() && row.parted * 2 <= row.runs();
    let idle: Vec<&str> = rows.iter().filter(is_idle).map(|row| row.name).collect();
    let is_decided = wrong > 0 || rows.iter().all(Row::is_complete) && idle.is_empty();
    let asked = rows.len() * RUNS as usize;
    let note = if !idle.is_empty() {
        format!("lines were not parted in most runs of {}", idle.join(", "))
    } else if is_decided {
        format!("{counted} runs of at least {LEAST_S} s")
    } else {
        format!("{counted} of {asked} runs of at least {LEAST_S} s: `make soak-sharing` makes all of them")
    };
    let count = wrong as f64;
    let confidence = is_decided.then_some(1.0);
    let estimate = Estimate { n: counted, median: count, low: count, high: count, confidence };
    let mut cell = Cell::measured(goal, &format!("{} programs", rows.len()), Some(estimate), &note);
    cell.samples = rows.into_iter().map(|row| (row.name.to_owned(), row.seconds)).collect();
    cell
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::super::contests::tests::check_words;
    use super::super::repair::tests::stats_of;
    use super::super::workload::Run;
    use super::*;
    use crate::cell::Verdict;
    use crate::goals::Goals;

    #[test]
    fn as_many_programs_runs_and_milliseconds_as_the_goal_says() {
        let goal = Goals::read().unwrap().get("sharing", "wrong_results").unwrap();
        let thousands = format!("{},{:03}", RUNS / 1000, RUNS % 1000);
        let asked = format!("{thousands} runs of each of {} programs of at least {} ms", PROGRAMS.len(), LEAST_S * 1e3);
        assert!(goal.what.contains(&asked), "{asked}; {}", goal.what);
        PROGRAMS.iter().for_each(|one| check_words(one.program, &[one.words, one.size.option]));
    }

    fn repaired(code: i32, output: &str, wall_s: f64) -> Repaired {
        let run =
            Run { status: Some(ExitStatus::from_raw(code << 8)), wall_s, output: output.to_owned(), ..Run::default() };
        Repaired { run, stats: stats_of(&[0x1000]) }
    }

    #[test]
    fn another_output_another_end_and_none_at_all_are_wrong() {
        let mut row = Row { name: "test", ..Row::default() };
        assert!(row.take(&repaired(0, "checksum: 1\n", 0.3), "checksum: 1\n"));
        assert!(row.take(&repaired(0, "checksum: 1\n", 0.1), "checksum: 1\n"));
        let mut hung = repaired(0, "checksum: 1\n", 120.0);
        hung.run.status = None;
        for wrong in [repaired(0, "checksum: 2\n", 0.3), repaired(1, "checksum: 1\n", 0.3), hung] {
            assert!(!row.take(&wrong, "checksum: 1\n"), "{wrong:?}");
        }
        assert_eq!((row.seconds.len(), row.short, row.wrong, row.parted), (4, 1, 3, 5));
        let failure = failure("test, run 3", &repaired(1, "checksum: 2\n", 0.3), "checksum: 1\n");
        for part in ["test, run 3", "checksum: 1", "checksum: 2", "Moved"] {
            assert!(failure.contains(part), "{failure}");
        }
    }

    #[test]
    fn one_wrong_result_decides_and_none_only_after_all_runs() {
        let goal = || Goals::read().unwrap().get("sharing", "wrong_results").unwrap();
        let row = |runs: usize, wrong| Row { name: "test", seconds: vec![0.3; runs], wrong, ..Row::default() };
        for (rows, verdict) in [
            (vec![row(1000, 0), row(1000, 0)], Verdict::Ok),
            (vec![row(1000, 0), row(999, 0)], Verdict::Undecided),
            (vec![row(1000, 0), row(1, 1)], Verdict::Miss),
            (vec![Row { name: "counters -O2", ..row(1000, 0) }], Verdict::Undecided),
            (vec![Row { name: "counters -O2", parted: 7, ..row(1000, 0) }], Verdict::Undecided),
            (vec![Row { name: "counters -O2", parted: 900, ..row(1000, 0) }], Verdict::Ok),
        ] {
            assert_eq!(told(goal(), rows).verdict, verdict);
        }
    }
}
