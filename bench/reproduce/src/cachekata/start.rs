//! Figure 4.1, measured: what linear regression takes, by where in a line its array begins.

use anyhow::Result;

use crate::beside::outcome;
use crate::experiment::{Cell, Figure, Row, Scale, Shows};
use crate::trial::Trial;

use super::layout::{Binary, shared_lines};
use super::program::{Form, LINEAR_REGRESSION, Program, memory_bytes};
use super::race::Race;

const TABLE: &str =
    "Figure 4.1: linear regression -O0, 64-bit, two threads, by the byte of a line where the array begins";
const LINES: &str = "lines that both threads' loops use";
const TIME: &str = "time, times that of elements apart";

const THREADS: u64 = 2;

/// Where the array begins: in bytes, as a column, as an option.
const STARTS: [(u64, &str, &[&str]); 8] = [
    (0, "0", &["--shift", "0"]),
    (8, "8", &["--shift", "8"]),
    (16, "16", &["--shift", "16"]),
    (24, "24", &["--shift", "24"]),
    (32, "32", &["--shift", "32"]),
    (40, "40", &["--shift", "40"]),
    (48, "48", &["--shift", "48"]),
    (56, "56", &["--shift", "56"]),
];

/// A cell for each start; in a quick run the drawing's, and one without false sharing.
pub(super) fn cells(scale: Scale) -> Vec<Cell> {
    let is_measured = |start: &&(u64, _, _)| scale == Scale::Full || [0, 16].contains(&start.0);
    STARTS.iter().filter(is_measured).map(|&(begin, column, shared)| cell(begin, column, shared)).collect()
}

fn cell(begin: u64, column: &str, shared: &'static [&'static str]) -> Cell {
    let program = Program { shared, ..LINEAR_REGRESSION };
    Cell {
        id: format!("cachekata/start/{begin}"),
        column: column.to_owned(),
        memory_bytes: memory_bytes(THREADS),
        rows: vec![Row::showing(Shows::Count, TABLE, LINES), Row::ratio(TABLE, TIME)],
        measure: Box::new(move |trial| outcome(measure(trial, program, begin))),
    }
}

fn measure(trial: &Trial, program: Program, begin: u64) -> Result<Vec<Figure>> {
    let round = Race::new(trial, program, THREADS)?.round(trial, &[Form::Shared, Form::Apart])?;
    let lines = shared_lines(Binary::Bits64, begin, THREADS) as f64;
    Ok([Figure::of(LINES, lines)].into_iter().chain(round.times(TIME, Form::Shared, Form::Apart)).collect())
}
