//! The loop of the parent process: run after run over all cells, so that slow drift of the machine
//! affects all cells alike.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fieldstone_report::quantity::bytes;
use fieldstone_sys::machine::machine;
use fieldstone_wire::Remedy;
use indicatif::{ProgressBar, ProgressStyle};

use crate::child;
use crate::experiment::{Cell, Experiment, Quantity, SampleOutcome, Scale};
use crate::provenance::Provenance;
use crate::store::{CellSample, SavedSamples, Store};
use crate::trial::{Task, Trial};

/// Samples per cell by default, as in the paper.
const RUNS: u32 = 10;
/// Samples of a cell of more than [`LARGE_BYTES`], and of a quick run: the fewest with an interval.
const FEW_RUNS: u32 = 6;
const LARGE_BYTES: u64 = 1 << 30;
/// Samples of a cell that counts instructions: counts are exact, and the second confirms it.
const COUNTS: u32 = 2;
/// Samples of a cell with counts or numbers from models, which are equal each time. Profiles repeat
/// their runs themselves.
const MODELLED: u32 = 1;
/// The group of expensive cells, which are measured only if they are named.
pub const ON_REQUEST: &str = "on-request";
/// Memory that is left to the rest of the system.
const SPARED_BYTES: u64 = 1 << 30;
/// Interval of the progress bar, and of lines without a terminal.
const TICK: Duration = Duration::from_millis(500);
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The options of a measurement.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The folder of the saved samples.
    pub directory: PathBuf,
    /// Whether sizes are small and rounds short.
    pub quick: bool,
    /// Samples per cell; `None` for the default of the cell.
    pub runs: Option<u32>,
    /// Whether an interrupted run is continued.
    pub resume: bool,
    /// Limit of the memory in use; `None` for the available memory.
    pub memory_bytes: Option<u64>,
}

impl Campaign {
    /// Measures the cells of an experiment that `names` select. Returns all its samples.
    ///
    /// # Errors
    /// If a sample fails or cannot be saved.
    pub fn measure(&self, experiment: &Experiment, names: &[String]) -> Result<SavedSamples> {
        let scale = if self.quick { Scale::Quick } else { Scale::Full };
        let is_wanted =
            |cell: &Cell| !cell.id.contains(ON_REQUEST) || names.iter().any(|name| name.contains(ON_REQUEST));
        let all: Vec<Cell> = (experiment.cells)(scale).into_iter().filter(is_wanted).collect();
        let count = all.len();
        let cells: Vec<Cell> = all.into_iter().filter(|cell| is_named(&cell.id, names)).collect();
        if cells.is_empty() {
            let remedy = Remedy(Some("fieldstone reproduce list --cells"));
            bail!("cannot measure {}: it has no cell named {}{remedy}", experiment.name, names.join(", "));
        }
        let mut store = if self.resume {
            Store::resume(&self.directory, experiment.name, self.quick)?
        } else if cells.len() < count {
            let named: Vec<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
            Store::begin_cells(&self.directory, experiment.name, self.quick, &named)?
        } else {
            Store::begin(&self.directory, experiment.name)?
        };
        let program = std::env::current_exe().context("cannot find the file of this program")?;
        let todo: Vec<(u32, &Cell)> = self.todo(&cells, &store.saved);
        if todo.is_empty() {
            return Ok(store.saved);
        }
        store.add_session(Provenance::here(self.quick))?;
        let mut progress = CampaignProgress::new(experiment.name, todo.len());
        let mut skipped = Vec::<&str>::new();
        for (run, cell) in todo {
            progress.begin(&cell.id);
            if !skipped.contains(&cell.id.as_str()) {
                let sample = self.sample(&program, cell, run)?;
                if let SampleOutcome::Skipped { reason } = &sample.outcome {
                    progress.bar.suspend(|| eprintln!("SKIP {}: {reason}", cell.id));
                    skipped.push(&cell.id);
                }
                store.add_sample(sample)?;
            }
            progress.bar.inc(1);
        }
        progress.bar.finish_and_clear();
        Ok(store.saved)
    }

    /// The samples that are not measured yet, run by run.
    fn todo<'a>(&self, cells: &'a [Cell], saved: &SavedSamples) -> Vec<(u32, &'a Cell)> {
        let runs_of = |cell: &Cell| {
            let shows = |shows| cell.rows.iter().any(|row| row.shows == shows);
            let is_counted = cell.rows.iter().all(|row| row.shows == Quantity::Count);
            let few = self.quick || cell.memory_bytes > LARGE_BYTES;
            self.runs.unwrap_or(if is_counted || shows(Quantity::Walks) || shows(Quantity::References) {
                MODELLED
            } else if shows(Quantity::Instructions) {
                COUNTS
            } else if few {
                FEW_RUNS
            } else {
                RUNS
            })
        };
        let most = cells.iter().map(runs_of).max().unwrap_or(0);
        let each_run = |run| cells.iter().filter(move |cell| run < runs_of(cell)).map(move |cell| (run, cell));
        (0..most)
            .flat_map(each_run)
            .filter(|(_, cell)| !cell.is_published())
            .filter(|(run, cell)| !saved.measured(&cell.id).contains_key(run))
            .collect()
    }

    fn sample(&self, program: &Path, cell: &Cell, run: u32) -> Result<CellSample> {
        let layout = child::layout_of(&cell.id, run);
        let free_bytes = machine().memory_available_bytes.saturating_sub(SPARED_BYTES);
        let memory_bytes = self.memory_bytes.unwrap_or(u64::MAX).min(free_bytes);
        let began = Instant::now();
        let outcome = if cell.memory_bytes > memory_bytes {
            let reason = format!("needs {}, and {} are available", bytes(cell.memory_bytes), bytes(memory_bytes));
            SampleOutcome::Skipped { reason }
        } else {
            let trial = Trial { cell: cell.id.clone(), layout, quick: self.quick, memory_bytes, task: Task::Time };
            child::sample(program, &trial)?
        };
        Ok(CellSample { cell: cell.id.clone(), run, seed: layout.seed, took_s: began.elapsed().as_secs_f64(), outcome })
    }
}

/// Whether one of `names` is this id, or consists of parts of it in their order that begin with the
/// first one: `tree-walks/zen4/gups/4M` is named by `tree-walks`, `tree-walks/zen4` and
/// `tree-walks/gups`.
#[must_use]
pub fn is_named(id: &str, names: &[String]) -> bool {
    let named = |name: &String| {
        let (mut parts, mut wanted) = (id.split('/'), name.split('/'));
        wanted.next() == parts.next() && wanted.all(|part| parts.any(|other| other == part))
    };
    names.iter().any(named)
}

/// The progress of a measurement: a bar on a terminal, else a line at intervals.
struct CampaignProgress {
    bar: ProgressBar,
    /// The time of the last line.
    printed: Option<Instant>,
}

impl CampaignProgress {
    fn new(name: &str, samples: usize) -> Self {
        let style =
            ProgressStyle::with_template("{spinner} {prefix} {bar:30} {pos}/{len} {msg}, {elapsed}, {eta} left");
        let bar = ProgressBar::new(samples as u64).with_prefix(name.to_owned());
        // The template is valid. Otherwise the default style remains.
        let bar = style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style));
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        Self { bar, printed: None }
    }

    /// Shows that a sample of `cell` begins.
    fn begin(&mut self, cell: &str) {
        self.bar.set_message(cell.to_owned());
        if self.bar.is_hidden() && self.printed.is_none_or(|printed| printed.elapsed() >= LINE_INTERVAL) {
            let all = self.bar.length().unwrap_or(0);
            eprintln!("fieldstone reproduce: {} of {all} samples done, next {cell}", self.bar.position());
            self.printed = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Row;

    fn cell(id: &str, memory_bytes: u64) -> Cell {
        let measure = Box::new(|_: &Trial| Ok(SampleOutcome::Skipped { reason: "never run".into() }));
        Cell { id: id.into(), column: "c".into(), memory_bytes, rows: vec![Row::ratio("t", "r")], measure }
    }

    fn campaign(runs: Option<u32>) -> Campaign {
        Campaign { directory: PathBuf::new(), quick: false, runs, resume: false, memory_bytes: None }
    }

    #[test]
    fn runs_are_interleaved_and_finished_samples_are_left_out() {
        let cells = [cell("x/a", 0), cell("x/b", 2 << 30)];
        let all = campaign(None).todo(&cells, &SavedSamples::default());
        assert_eq!(all.len(), 16);
        assert_eq!((all[0].1.id.as_str(), all[1].1.id.as_str(), all[2].0), ("x/a", "x/b", 1));
        let outcome = SampleOutcome::measured(Vec::new());
        let done = CellSample { cell: "x/a".into(), run: 0, seed: 0, took_s: 0.0, outcome };
        let saved = SavedSamples { samples: vec![done], ..SavedSamples::default() };
        let left: Vec<(u32, &str)> =
            campaign(Some(2)).todo(&cells, &saved).iter().map(|(run, cell)| (*run, cell.id.as_str())).collect();
        assert_eq!(left, [(0, "x/b"), (1, "x/a"), (1, "x/b")]);
    }

    #[test]
    fn a_name_is_parts_of_an_id_in_their_order() {
        let named = |id, name: &str| is_named(id, &[name.to_owned()]);
        assert!(named("table2/paper/4K", "table2") && named("table2/paper/4K", "table2/paper/4K"));
        assert!(
            named("tree-walks/zen4/gups/4M", "tree-walks/gups") && named("tree-walks/zen4/gups/4M", "tree-walks/4M")
        );
        assert!(!named("tree-walks/zen4/gups/4M", "gups") && !named("tree-walks/zen4/gups/4M", "tree-walks/4M/gups"));
        assert!(!named("table2/paper/4K", "table") && !named("table2/paper/4K", "table2/paper/4"));
    }
}
