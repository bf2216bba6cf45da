//! DIRTY: the cost of the first write to a clean page, and the cost of finding the written pages.
//!
//! Two scans are timed: one that finds a hundred written units and makes them clean, and one that
//! finds none.

use std::time::Instant;

use anyhow::{Result, ensure};
use fieldstone_pages::Tracking;
use fieldstone_workloads::random::SplitMix64;

use super::test_memory::{SpinningThread, TestMemory, UNITS, medians_of_rounds, shuffled};
use super::{DIRTY, PAGE, Setting, rounds};
use crate::experiment::{MeasuredValue, Quantity, Row};
use crate::trial::Trial;

const WRITE: &str = "first write";
const FOUND: &str = "found and made clean";
const CLEAN: &str = "clean, passed over";

pub(super) fn rows(setting: Setting) -> Vec<Row> {
    let size = if setting.unit == PAGE { String::new() } else { format!(", {}", setting.unit.column) };
    let name = format!("{}{size}", setting.name());
    [WRITE, FOUND, CLEAN].map(|column| Row::new(Quantity::Microseconds, DIRTY, name.clone()).in_column(column)).into()
}

pub(super) fn measure(trial: &Trial, setting: Setting) -> Result<Vec<MeasuredValue>> {
    let test_memory = TestMemory::new(setting.unit)?;
    let (units, pages) = (test_memory.units, (setting.unit != PAGE).then(|| test_memory.pages()));
    let tracking = Tracking::with(test_memory.memory, setting.mechanism)?;
    let spinner = SpinningThread::start(setting.threads);
    let mut random = SplitMix64::new(trial.layout.seed);
    let scan = |expected: usize| -> Result<f64> {
        let since = Instant::now();
        let mut found = [false; UNITS];
        for range in tracking.dirty()? {
            let range = range?;
            (units.at(range.start)..=units.at(range.end - 1)).for_each(|unit| found[unit] = true);
        }
        let took_ns = since.elapsed().as_secs_f64() * 1e9;
        let count = found.iter().filter(|&&found| found).count();
        ensure!(count == expected, "{count} of {expected} written units were found");
        Ok(took_ns / UNITS as f64)
    };
    let spinner = spinner.as_ref().and_then(|spinner| spinner.with_own_faults(setting.mechanism));
    let values = medians_of_rounds(rounds(trial), spinner, || {
        let order = shuffled(&mut random);
        let since = Instant::now();
        order.iter().for_each(|&unit| units.write(tracking.memory(), unit, 1));
        let write_ns = since.elapsed().as_secs_f64() * 1e9 / UNITS as f64;
        Ok([write_ns, scan(UNITS)?, scan(0)?])
    })?;
    let figure =
        |(row, value): (Row, f64)| MeasuredValue { pages: pages.clone(), ..MeasuredValue::of(row.value_name(), value) };
    Ok(rows(setting).into_iter().zip(values).map(figure).collect())
}
