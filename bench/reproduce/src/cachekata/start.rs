//! Figure 4.1, measured: the time of linear regression by the offset of its array in a line.

use anyhow::Result;

use crate::experiment::{Cell, MeasuredValue, Quantity, Row, Scale};
use crate::sibling_programs::outcome;
use crate::trial::Trial;

use super::layout::{Binary, shared_lines};
use super::program::{Form, LINEAR_REGRESSION, SharingProgram, memory_bytes};
use super::sized_program::SizedProgram;

const TABLE: &str = "Figure 4.1: linear regression -O0, 64-bit, two threads, by the offset of the array in a line";
const LINES: &str = "lines used by the loops of both threads";
const TIME: &str = "time, relative to separate elements";

const THREADS: u64 = 2;

/// The offset of the array in a line: in bytes, as a column, as arguments.
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

/// A cell for each offset; in a quick run that of Figure 4.1, and one without false sharing.
pub(super) fn cells(scale: Scale) -> Vec<Cell> {
    let is_measured = |start: &&(u64, _, _)| scale == Scale::Full || [0, 16].contains(&start.0);
    STARTS.iter().filter(is_measured).map(|&(begin, column, shared)| cell(begin, column, shared)).collect()
}

fn cell(begin: u64, column: &str, shared: &'static [&'static str]) -> Cell {
    let program = SharingProgram { shared, ..LINEAR_REGRESSION };
    let rows = vec![Row::new(Quantity::Count, TABLE, LINES), Row::ratio(TABLE, TIME)];
    let id = format!("cachekata/start/{begin}");
    Cell::new(id, column, memory_bytes(THREADS), rows, move |trial| outcome(measure(trial, program, begin)))
}

fn measure(trial: &Trial, program: SharingProgram, begin: u64) -> Result<Vec<MeasuredValue>> {
    let round = SizedProgram::new(trial, program, THREADS)?.round(trial, &[Form::Shared, Form::Padded])?;
    let lines = shared_lines(Binary::Bits64, begin, THREADS) as f64;
    Ok([MeasuredValue::of(LINES, lines)].into_iter().chain(round.times(TIME, Form::Shared, Form::Padded)).collect())
}
