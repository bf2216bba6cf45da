//! DIRTY: what the first write to a clean page costs, and what finding the written ones costs.
//!
//! A look is timed twice: one that finds a hundred written units and makes them clean, and one that finds nothing.

use std::time::Instant;

use anyhow::{Result, ensure};
use fieldstone_pages::Tracking;
use fieldstone_workloads::random::SplitMix64;

use super::stage::{Ground, Spinner, UNITS, medians, outcome, shuffled};
use super::{DIRTY, PAGE, Setting};
use crate::experiment::{Figure, Outcome, Row, Shows};
use crate::trial::Trial;

const WRITE: &str = "first write";
const FOUND: &str = "found and made clean";
const CLEAN: &str = "clean, passed over";

pub(super) fn rows(setting: Setting) -> Vec<Row> {
    let size = if setting.unit == PAGE { String::new() } else { format!(", {}", setting.unit.column) };
    let name = format!("{}{size}", setting.name());
    [WRITE, FOUND, CLEAN].map(|column| Row::showing(Shows::Microseconds, DIRTY, name.clone()).in_column(column)).into()
}

pub(super) fn measure(trial: &Trial, setting: Setting) -> Result<Outcome> {
    outcome(figures(trial, setting))
}

fn figures(trial: &Trial, setting: Setting) -> Result<Vec<Figure>> {
    let rounds = if trial.quick { 10 } else { 30 };
    let ground = Ground::new(setting.unit)?;
    let (units, pages) = (ground.units, (setting.unit != PAGE).then(|| ground.pages()));
    let tracking = Tracking::with(ground.memory, setting.mechanism)?;
    let spinner = Spinner::start(setting.threads);
    let mut random = SplitMix64::new(trial.layout.seed);
    let look = |expected: usize| -> Result<f64> {
        let since = Instant::now();
        let mut found = [false; UNITS];
        for range in tracking.dirty()? {
            let range = range?;
            (units.at(range.start)..=units.at(range.end - 1)).for_each(|unit| found[unit] = true);
        }
        let took_ns = since.elapsed().as_secs_f64() * 1e9;
        let count = found.iter().filter(|&&found| found).count();
        ensure!(count == expected, "{expected} were written, and {count} found");
        Ok(took_ns / UNITS as f64)
    };
    let beside = spinner.as_ref().and_then(|spinner| spinner.beside(setting.mechanism));
    let values = medians(rounds, beside, || {
        let order = shuffled(&mut random);
        let since = Instant::now();
        order.iter().for_each(|&unit| units.write(tracking.memory(), unit, 1));
        let write_ns = since.elapsed().as_secs_f64() * 1e9 / UNITS as f64;
        Ok([write_ns, look(UNITS)?, look(0)?])
    })?;
    let figure = |(row, value): (Row, f64)| Figure { pages: pages.clone(), ..Figure::of(row.figure(), value) };
    Ok(rows(setting).into_iter().zip(values).map(figure).collect())
}
