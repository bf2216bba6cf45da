//! The cells of OO7: traversals, queries and changes of a database of objects, cold and hot.
//!
//! ```text
//! process   build ── each operation: close, drop the page cache, open ── cold run ── 4 hot runs
//! ```
//! | module | content |
//! |---|---|
//! | `schema`, `sets` | the objects, the indexes and the texts |
//! | `contents` | the sizes, and what the database contains, as numbers |
//! | `build`, `database` | makes the database; closes and opens it |
//! | `operations` | the list of operations, and how one runs |
//! | `traversals`, `queries` | operations that read |
//! | `updates`, `structure` | operations that change parts; insertions and deletions |
//! | `model` | what each operation must find |
//!
//! Source: Carey, DeWitt and Naughton, *The OO7 Benchmark*, SIGMOD 1993; the runs as in Saito and Bershad,
//! USENIX 1998. The traversals T4, T5 and T7 and the query Q6 are not measured.

mod build;
mod contents;
mod database;
mod model;
mod operations;
mod queries;
mod schema;
mod sets;
mod structure;
#[cfg(test)]
mod tests;
mod traversals;
mod updates;

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{MEMORY_BYTES, nanoseconds};
use crate::experiment::{Cell, MeasuredValue, Quantity, Row, SampleOutcome, Scale};
use contents::{Contents, MEDIUM, QUICK, SMALL, Size};
use database::Database;
use model::Model;
use operations::{Found, OPERATIONS, Operation, RunTime, T1};

const RELATIVE: &str = "OO7, T1 hot: time relative to native pointers in memory";
const COLD: &str = "OO7, cold: the first run after the store was opened, µs";
const HOT: &str = "OO7, hot: later runs, µs";
const FILE: &str = "OO7: size";

const NATIVE: &str = "native pointers";
const OURS: &str = "Fieldstone";
const FILE_BYTES: &str = "bytes of the new file";

/// Runs after the cold one. The last one is not counted.
const HOT_RUNS: u32 = 4;
const COUNTED_RUNS: u32 = HOT_RUNS - 1;

/// A cell for each size.
pub(super) fn cells(scale: Scale) -> impl Iterator<Item = Cell> {
    let sizes = if scale == Scale::Quick { vec![QUICK] } else { vec![SMALL, MEDIUM] };
    sizes.into_iter().map(cell)
}

fn cell(size: Size) -> Cell {
    let id = format!("persistent-store/oo7/{}/{}", size.name, size.composites * size.parts);
    Cell::new(id, size.name, MEMORY_BYTES, rows(), move |_| Ok(SampleOutcome::measured(measure(size)?)))
}

/// The name of a row with a time of an operation.
fn row_name(operation: &Operation, time: &str) -> String {
    format!("{}: {time}", operation.name)
}

fn rows() -> Vec<Row> {
    let times = |table: &'static str, time: &'static str| {
        OPERATIONS.iter().flat_map(move |operation| {
            let commit = operation.is_change().then(|| row_name(operation, &format!("commit, {time}")));
            let names = std::iter::once(row_name(operation, time)).chain(commit);
            names.map(move |name| Row::new(Quantity::Microseconds, table, name))
        })
    };
    let mut rows = Row::compared(RELATIVE, NATIVE, &[OURS]);
    rows.extend(times(COLD, "cold").chain(times(HOT, "hot")));
    rows.push(Row::new(Quantity::Count, FILE, FILE_BYTES));
    rows
}

fn measure(size: Size) -> Result<Vec<MeasuredValue>> {
    let model = Model::new(Contents::new(size));
    let contents = &model.contents;
    ensure!(
        model.visits().count == contents.design.t1_visits(),
        "the graph in memory has other visits than its design"
    );
    let mut database = Database::create(contents)?;
    let mut values = vec![MeasuredValue::of(FILE_BYTES, database.file_bytes()? as f64)];
    for (place, operation) in OPERATIONS.iter().enumerate() {
        let expected = (operation.expected)(&model);
        database.reopen_cold()?;
        let cold = operation.run(database.store()?, contents, expected)?;
        values.extend(times_of(operation, "cold", cold));
        let hot = run_hot(operation, &database, contents, expected)?;
        values.extend(times_of(operation, "hot", hot));
        if place == T1 {
            values.extend(compare(hot.total, &model)?);
        }
    }
    Ok(values)
}

/// Times T1 with native pointers, directly after the same traversal of the store.
fn compare(traversal: Duration, model: &Model) -> Result<[MeasuredValue; 2]> {
    let native = time_native(model)?;
    let ratio = Some(traversal.as_secs_f64() / native.as_secs_f64());
    let ours = MeasuredValue { ratio, ..MeasuredValue::of(OURS, nanoseconds(traversal)) };
    Ok([MeasuredValue::of(NATIVE, nanoseconds(native)), ours])
}

/// The mean of the hot runs that are counted.
fn run_hot(operation: &Operation, database: &Database, contents: &Contents, expected: Found) -> Result<RunTime> {
    let mut sum = RunTime { total: Duration::ZERO, commit: Duration::ZERO };
    for run in 0..HOT_RUNS {
        let time = operation.run(database.store()?, contents, expected)?;
        if run < COUNTED_RUNS {
            sum.total += time.total;
            sum.commit += time.commit;
        }
    }
    Ok(RunTime { total: sum.total / COUNTED_RUNS, commit: sum.commit / COUNTED_RUNS })
}

fn times_of(operation: &Operation, name: &str, time: RunTime) -> impl Iterator<Item = MeasuredValue> {
    let commit = operation.is_change().then(|| row_name(operation, &format!("commit, {name}")));
    let commit = commit.map(|row| MeasuredValue::of(row, nanoseconds(time.commit)));
    std::iter::once(MeasuredValue::of(row_name(operation, name), nanoseconds(time.total))).chain(commit)
}

/// T1 with native pointers, hot: as many runs as of the store, after one that is not timed.
fn time_native(model: &Model) -> Result<Duration> {
    let expected = model.traverse();
    let start = Instant::now();
    for _ in 0..COUNTED_RUNS {
        ensure!(black_box(model.traverse()) == expected, "T1 with native pointers has visited other parts");
    }
    Ok(start.elapsed() / COUNTED_RUNS)
}
