//! The parent's loop: run after run over all cells, so that slow drift of the machine falls on all of them alike.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fieldstone_report::quantity::bytes;
use fieldstone_sys::machine::machine;
use indicatif::{ProgressBar, ProgressStyle};

use crate::child;
use crate::experiment::{Cell, Experiment, Outcome, Scale, Shows};
use crate::provenance::Provenance;
use crate::store::{Sample, Saved, Store};
use crate::trial::{Task, Trial};

/// Samples of a cell by default: as many as in the paper.
const RUNS: u32 = 10;
/// Of a cell of more than [`LARGE_BYTES`], and of every cell of a quick run: the fewest that have an interval.
const FEW_RUNS: u32 = 6;
const LARGE_BYTES: u64 = 1 << 30;
/// Of a cell that counts instructions: counts are exact, and the second one shows it.
const COUNTS: u32 = 2;
/// Of a cell whose numbers come from models, or are counts: those are alike each time, and whole profiles have rounds of their own.
const MODELLED: u32 = 1;
/// The group of the cells that are measured only if their names say so: what takes very much.
pub const ON_REQUEST: &str = "on-request";
/// What is left to the rest of the system.
const SPARED_BYTES: u64 = 1 << 30;
/// How often the bar moves, and how often a line is said where there is none.
const TICK: Duration = Duration::from_millis(500);
const LINE_EVERY: Duration = Duration::from_secs(10);

/// How to measure.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Where results are kept.
    pub directory: PathBuf,
    /// Small sizes, short rounds.
    pub quick: bool,
    /// Samples of each cell; by its size, if none.
    pub runs: Option<u32>,
    /// Go on where an earlier run was ended.
    pub resume: bool,
    /// Memory that may be used; by what is free, if none.
    pub memory_bytes: Option<u64>,
}

impl Campaign {
    /// Measures those cells of an experiment that `names` name, and returns all its results.
    ///
    /// # Errors
    /// When a sample fails, or results cannot be kept.
    pub fn measure(&self, experiment: &Experiment, names: &[String]) -> Result<Saved> {
        let scale = if self.quick { Scale::Quick } else { Scale::Full };
        let is_wanted =
            |cell: &Cell| !cell.id.contains(ON_REQUEST) || names.iter().any(|name| name.contains(ON_REQUEST));
        let all: Vec<Cell> = (experiment.cells)(scale).into_iter().filter(is_wanted).collect();
        let count = all.len();
        let cells: Vec<Cell> = all.into_iter().filter(|cell| is_named(&cell.id, names)).collect();
        if cells.is_empty() {
            bail!("{} has no cell named {}: `list --cells` names them", experiment.name, names.join(", "));
        }
        let mut store = if self.resume {
            Store::resume(&self.directory, experiment.name, self.quick)?
        } else if cells.len() < count {
            let named: Vec<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
            Store::begin_cells(&self.directory, experiment.name, self.quick, &named)?
        } else {
            Store::begin(&self.directory, experiment.name)?
        };
        let program = std::env::current_exe().context("cannot find this program")?;
        let todo: Vec<(u32, &Cell)> = self.todo(&cells, &store.saved);
        if todo.is_empty() {
            return Ok(store.saved);
        }
        store.add_session(Provenance::here(self.quick))?;
        let mut progress = Progress::new(experiment.name, todo.len());
        let mut skipped = Vec::<&str>::new();
        for (run, cell) in todo {
            progress.begin(&cell.id);
            if !skipped.contains(&cell.id.as_str()) {
                let sample = self.sample(&program, cell, run)?;
                if let Outcome::Skipped { reason } = &sample.outcome {
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

    /// What is not measured yet, run by run.
    fn todo<'a>(&self, cells: &'a [Cell], saved: &Saved) -> Vec<(u32, &'a Cell)> {
        let runs_of = |cell: &Cell| {
            let shows = |shows| cell.rows.iter().any(|row| row.shows == shows);
            let is_counted = cell.rows.iter().all(|row| row.shows == Shows::Count);
            let few = self.quick || cell.memory_bytes > LARGE_BYTES;
            self.runs.unwrap_or(if is_counted || shows(Shows::Walks) || shows(Shows::References) {
                MODELLED
            } else if shows(Shows::Instructions) {
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

    fn sample(&self, program: &Path, cell: &Cell, run: u32) -> Result<Sample> {
        let layout = child::layout_of(&cell.id, run);
        let free_bytes = machine().memory_available_bytes.saturating_sub(SPARED_BYTES);
        let memory_bytes = self.memory_bytes.unwrap_or(u64::MAX).min(free_bytes);
        let began = Instant::now();
        let outcome = if cell.memory_bytes > memory_bytes {
            let reason = format!("needs {}, and {} may be used", bytes(cell.memory_bytes), bytes(memory_bytes));
            Outcome::Skipped { reason }
        } else {
            let trial = Trial { cell: cell.id.clone(), layout, quick: self.quick, memory_bytes, task: Task::Time };
            child::sample(program, &trial)?
        };
        Ok(Sample { cell: cell.id.clone(), run, seed: layout.seed, took_s: began.elapsed().as_secs_f64(), outcome })
    }
}

/// Whether one of the names is this id, or a part of it from its beginning up to a slash.
#[must_use]
pub fn is_named(id: &str, names: &[String]) -> bool {
    let named =
        |name: &String| id.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    names.iter().any(named)
}

/// How far it has come: a bar that moves while a cell takes minutes; where there is no terminal, a line now and then.
struct Progress {
    bar: ProgressBar,
    /// When the last line was said; none before the first.
    said: Option<Instant>,
}

impl Progress {
    fn new(name: &str, samples: usize) -> Self {
        let style =
            ProgressStyle::with_template("{spinner} {prefix} {bar:30} {pos}/{len} {msg}, {elapsed}, {eta} left");
        let bar = ProgressBar::new(samples as u64).with_prefix(name.to_owned());
        // The template is fixed; without it the default one does.
        let bar = style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style));
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        Self { bar, said: None }
    }

    /// A sample of the cell begins.
    fn begin(&mut self, cell: &str) {
        self.bar.set_message(cell.to_owned());
        if self.bar.is_hidden() && self.said.is_none_or(|said| said.elapsed() >= LINE_EVERY) {
            let all = self.bar.length().unwrap_or(0);
            eprintln!("fieldstone reproduce: {} of {all} samples done, next {cell}", self.bar.position());
            self.said = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Row;

    fn cell(id: &str, memory_bytes: u64) -> Cell {
        let measure = Box::new(|_: &Trial| Ok(Outcome::Skipped { reason: "never run".into() }));
        Cell { id: id.into(), column: "c".into(), memory_bytes, rows: vec![Row::ratio("t", "r")], measure }
    }

    fn campaign(runs: Option<u32>) -> Campaign {
        Campaign { directory: PathBuf::new(), quick: false, runs, resume: false, memory_bytes: None }
    }

    #[test]
    fn runs_are_interleaved_and_what_is_done_is_left_out() {
        let cells = [cell("x/a", 0), cell("x/b", 2 << 30)];
        let all = campaign(None).todo(&cells, &Saved::default());
        assert_eq!(all.len(), 16);
        assert_eq!((all[0].1.id.as_str(), all[1].1.id.as_str(), all[2].0), ("x/a", "x/b", 1));
        let outcome = Outcome::Measured { figures: Vec::new(), alternately: true };
        let done = Sample { cell: "x/a".into(), run: 0, seed: 0, took_s: 0.0, outcome };
        let saved = Saved { samples: vec![done], ..Saved::default() };
        let left: Vec<(u32, &str)> =
            campaign(Some(2)).todo(&cells, &saved).iter().map(|(run, cell)| (*run, cell.id.as_str())).collect();
        assert_eq!(left, [(0, "x/b"), (1, "x/a"), (1, "x/b")]);
    }

    #[test]
    fn names_end_at_a_slash() {
        let named = |id, name: &str| is_named(id, &[name.to_owned()]);
        assert!(named("table2/paper/4K", "table2") && named("table2/paper/4K", "table2/paper/4K"));
        assert!(!named("table2/paper/4K", "table") && !named("table2/paper/4K", "table2/paper/4"));
    }
}
