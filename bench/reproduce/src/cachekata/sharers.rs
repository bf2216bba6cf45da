//! Section 4.3: the cost of a line that several threads use. Readers pay nothing; writers pay, of
//! the same word or of different words.

use std::time::Duration;

use anyhow::{Context, Result};
use fieldstone_stats::order;

use crate::experiment::{Cell, MeasuredValue, Quantity, Row, Scale};
use crate::sibling_programs::{outcome, sharing_program};
use crate::trial::Trial;

use super::program::{memory_bytes, threads_column};
use super::run::plain;
use super::sized_program::{check_processors, find_amount, in_parallel};

const TABLE: &str = "Section 4.3: threads that use one line, time per operation";

/// The synthetic program with a volatile counter.
const FILE: &str = "counters-O2";

/// Length of a run.
const LONG: Duration = Duration::from_millis(500);
/// The same in a quick run.
const SHORT: Duration = Duration::from_millis(100);

/// The accesses of the threads.
struct Pattern {
    row: &'static str,
    options: &'static [&'static str],
    /// The row of its baseline.
    against: Option<&'static str>,
    /// Whether only one thread runs.
    is_alone: bool,
}

const SEPARATE: &str = "each adds to its own word, on separate lines";
const LOCKED: &str = "the same, by lock add";
const READ: &str = "one thread alone reads a line";

static PATTERNS: [Pattern; 6] = [
    Pattern { row: SEPARATE, options: &["--pattern", "padded"], against: None, is_alone: false },
    Pattern {
        row: "each adds to its own word, on one line",
        options: &["--pattern", "own"],
        against: Some(SEPARATE),
        is_alone: false,
    },
    Pattern { row: LOCKED, options: &["--pattern", "padded", "--atomic"], against: None, is_alone: false },
    Pattern {
        row: "all add to one word, by lock add",
        options: &["--pattern", "same"],
        against: Some(LOCKED),
        is_alone: false,
    },
    Pattern { row: READ, options: &["--pattern", "read"], against: None, is_alone: true },
    Pattern {
        row: "all read one line, without writes",
        options: &["--pattern", "read"],
        against: Some(READ),
        is_alone: false,
    },
];

/// A cell for each number of threads.
pub(super) fn cells(scale: Scale) -> Vec<Cell> {
    let threads: &[u64] = if scale == Scale::Full { &[2, 4, 8] } else { &[2] };
    threads.iter().map(|&threads| cell(threads)).collect()
}

fn cell(threads: u64) -> Cell {
    let row = |pattern: &Pattern| {
        let shows = if pattern.against.is_some() { Quantity::Ratio } else { Quantity::Nanoseconds };
        Row::new(shows, TABLE, pattern.row)
    };
    let (id, rows) = (format!("cachekata/sharers/{threads}"), PATTERNS.iter().map(row).collect());
    Cell::new(id, threads_column(threads), memory_bytes(threads), rows, move |trial| outcome(measure(trial, threads)))
}

fn measure(trial: &Trial, threads: u64) -> Result<Vec<MeasuredValue>> {
    check_processors(threads)?;
    let file = sharing_program(FILE)?;
    let wanted = if trial.quick { SHORT } else { LONG };
    let operation_ns = |pattern: &Pattern| -> Result<f64> {
        let threads = if pattern.is_alone { 1 } else { threads };
        let run = |iterations: u64| plain(&file, &arguments(pattern, threads, iterations));
        let iterations = find_amount(wanted, run)?;
        let timed = in_parallel(threads, || run(iterations))?;
        Ok(timed.kernel.as_secs_f64() * 1e9 / iterations as f64)
    };
    let mut took: Vec<(&Pattern, f64)> = PATTERNS.iter().map(|pattern| (pattern, 0.0)).collect();
    // Seeds of consecutive samples are consecutive, so the order alternates from sample to sample.
    for at in order(took.len(), usize::try_from(trial.layout.seed % 2)?) {
        took[at].1 = operation_ns(took[at].0)?;
    }
    took.iter().map(|&(pattern, each_ns)| figure(pattern, each_ns, &took)).collect()
}

fn figure(pattern: &Pattern, each_ns: f64, took: &[(&Pattern, f64)]) -> Result<MeasuredValue> {
    let Some(against) = pattern.against else { return Ok(MeasuredValue::of(pattern.row, each_ns)) };
    let baseline = took.iter().find(|(baseline, _)| baseline.row == against);
    let (_, of_ns) = baseline.with_context(|| format!("there is no baseline of {:?}", pattern.row))?;
    Ok(MeasuredValue { ratio: Some(each_ns / of_ns), ..MeasuredValue::of(pattern.row, each_ns) })
}

fn arguments(pattern: &Pattern, threads: u64, iterations: u64) -> Vec<String> {
    let numbers = ["--threads".to_owned(), threads.to_string(), "--iterations".to_owned(), iterations.to_string()];
    let own = pattern.options.iter().map(|&word| word.to_owned());
    own.chain(["--pin".to_owned()]).chain(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pattern_finds_its_baseline() {
        let took: Vec<(&Pattern, f64)> = PATTERNS.iter().zip([1.5, 6.0, 5.0, 50.0, 0.5, 0.6]).collect();
        let figures = took.iter().map(|&(pattern, each_ns)| figure(pattern, each_ns, &took));
        let ratios: Vec<Option<f64>> = figures.map(|figure| figure.unwrap().ratio).collect();
        assert_eq!(ratios, [None, Some(4.0), None, Some(10.0), None, Some(1.2)]);
    }
}
