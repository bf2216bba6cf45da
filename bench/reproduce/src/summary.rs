//! The results of samples: a median with its interval for each entry of each table, and the paper's
//! number.

use std::collections::BTreeSet;

use fieldstone_stats::{Estimate, median};
use serde::Serialize;

use crate::experiment::{Cell, Experiment, MeasuredValue, Quantity, Row, SampleOutcome, Scale};
use crate::provenance::Provenance;
use crate::quotation::{self, Quotation};
use crate::store::SavedSamples;

/// An experiment's results.
#[derive(Clone, Debug, Serialize)]
pub struct ExperimentSummary {
    /// [`Experiment::name`].
    pub name: &'static str,
    /// [`Experiment::title`].
    pub title: &'static str,
    /// [`Experiment::source`].
    pub source: &'static str,
    /// [`Experiment::about`].
    pub about: &'static str,
    /// The sessions, first to last.
    pub sessions: Vec<Provenance>,
    /// The tables, in the order of the experiment.
    pub tables: Vec<ResultTable>,
}

/// A table of results.
#[derive(Clone, Debug, Serialize)]
pub struct ResultTable {
    /// The heading.
    pub heading: &'static str,
    /// The headings of the columns.
    pub columns: Vec<String>,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A line of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The name of the row.
    pub row: String,
    /// The quantity of its numbers.
    pub shows: Quantity,
    /// Its place on the horizontal axis, in seconds, if the columns of the table are curves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_s: Option<f64>,
    /// One per column; `None` if no cell fills it.
    pub entries: Vec<Option<Entry>>,
}

/// A number of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// The id of its cell.
    pub cell: String,
    /// Our number.
    pub ours: Option<Estimate>,
    /// If `ours` is a ratio: the median time or count per operation of its contender. Without
    /// `ours`: a number computed from several of the paper's.
    pub value: Option<f64>,
    /// The paper's number.
    pub paper: Option<Quotation>,
    /// Why our number is missing.
    pub skipped: Option<String>,
    /// Words that replace the number, each once.
    pub instead: Vec<String>,
    /// The page kinds of the samples, each once.
    pub pages: Vec<String>,
    /// Number of samples whose sides did not fit in memory together.
    pub one_after_the_other: usize,
}

impl ResultTable {
    /// Whether its columns are curves.
    pub(crate) fn has_curves(&self) -> bool {
        self.lines.iter().any(|line| line.at_s.is_some())
    }
}

impl ExperimentSummary {
    /// The summary of the saved samples. The cells are those of the last session's scale; without a
    /// session, of the full scale.
    #[must_use]
    pub fn of(experiment: &Experiment, saved: &SavedSamples) -> Self {
        let quick = saved.sessions.last().is_some_and(|session| session.quick);
        let cells = (experiment.cells)(if quick { Scale::Quick } else { Scale::Full });
        let mut tables = Vec::<ResultTable>::new();
        let is_sampled = |cell: &Cell| saved.samples.iter().any(|sample| sample.cell == cell.id);
        let headings: BTreeSet<&str> = cells
            .iter()
            .filter(|cell| is_sampled(cell))
            .flat_map(|cell| cell.rows.iter().map(|row| row.table))
            .collect();
        // A published cell is shown if its table has measured cells.
        let is_beside = |cell: &Cell| cell.is_published() && cell.rows.iter().any(|row| headings.contains(row.table));
        for cell in cells.iter().filter(|cell| is_sampled(cell) || is_beside(cell)) {
            for row in &cell.rows {
                put(&mut tables, cell, row, entry(cell, row, saved));
            }
        }
        let Experiment { name, title, source, about, .. } = *experiment;
        Self { name, title, source, about, sessions: saved.sessions.clone(), tables }
    }

    /// Each line of each table, with its table.
    pub fn lines(&self) -> impl Iterator<Item = (&ResultTable, &Line)> {
        self.tables.iter().flat_map(|table| table.lines.iter().map(move |line| (table, line)))
    }
}

/// Inserts an entry at its row and column. Creates its table, column and line if they are missing.
fn put(tables: &mut Vec<ResultTable>, cell: &Cell, row: &Row, entry: Entry) {
    let at = tables.iter().position(|table| table.heading == row.table).unwrap_or_else(|| {
        tables.push(ResultTable { heading: row.table, columns: Vec::new(), lines: Vec::new() });
        tables.len() - 1
    });
    let table = &mut tables[at];
    let heading = row.column.unwrap_or(&cell.column);
    let column = table.columns.iter().position(|column| column == heading).unwrap_or_else(|| {
        table.columns.push(heading.to_owned());
        table.lines.iter_mut().for_each(|line| line.entries.push(None));
        table.columns.len() - 1
    });
    let line = table.lines.iter().position(|line| line.row == row.name).unwrap_or_else(|| {
        let entries = vec![None; table.columns.len()];
        table.lines.push(Line { row: row.name.clone(), shows: row.shows, at_s: row.at_s, entries });
        table.lines.len() - 1
    });
    table.lines[line].entries[column] = Some(entry);
}

fn entry(cell: &Cell, row: &Row, saved: &SavedSamples) -> Entry {
    let measured = saved.measured(&cell.id);
    let mut figures = Vec::<&MeasuredValue>::new();
    let mut one_after_the_other = 0;
    for sample in measured.values() {
        if let SampleOutcome::Measured { figures: all, alternately } = &sample.outcome {
            figures.extend(all.iter().filter(|figure| figure.row == row.value_name()));
            one_after_the_other += usize::from(!alternately);
        }
    }
    // The unit of the row, for all output formats.
    let unit = if row.shows == Quantity::Microseconds { 1e-3 } else { 1.0 };
    let shown: Vec<f64> =
        figures.iter().filter_map(|figure| figure.shown(row.shows)).map(|value| value * unit).collect();
    let numbers = figures.iter().filter(|figure| figure.instead.is_none());
    let values: Vec<f64> = numbers.map(|figure| figure.value * unit).chain(row.computed).collect();
    let mut instead: Vec<String> = figures.iter().filter_map(|figure| figure.instead.clone()).collect();
    instead.sort_unstable();
    instead.dedup();
    let mut pages: Vec<String> = figures.iter().filter_map(|figure| figure.pages.clone()).collect();
    pages.sort_unstable();
    pages.dedup();
    Entry {
        cell: cell.id.clone(),
        ours: if row.shows == Quantity::Sum { sum(&shown) } else { estimate(&figures, &shown) },
        value: median(&values),
        paper: row.paper.as_deref().and_then(quotation::find).cloned(),
        skipped: if measured.is_empty() { saved.skipped(&cell.id).map(str::to_owned) } else { None },
        instead,
        pages,
        one_after_the_other,
    }
}

/// The sum of the values, which has no interval.
fn sum(shown: &[f64]) -> Option<Estimate> {
    let sum = shown.iter().sum();
    (!shown.is_empty()).then_some(Estimate { n: shown.len(), median: sum, low: sum, high: sum, confidence: None })
}

/// The median and its interval, extended to the bounds of the values if they have any.
fn estimate(figures: &[&MeasuredValue], shown: &[f64]) -> Option<Estimate> {
    let plain = Estimate::of_median(shown)?;
    let ends = || figures.iter().filter_map(|figure| figure.ends);
    let Some(first) = ends().next() else { return Some(plain) };
    let low = ends().map(|ends| ends.low).fold(plain.low, f64::min);
    let high = ends().map(|ends| ends.high).fold(plain.high, f64::max);
    // The union of several intervals has no known probability.
    let confidence = if figures.len() == 1 { first.confidence } else { None };
    Some(Estimate { low, high, confidence, ..plain })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::CellSample;

    fn sample(cell: &str, run: u32, ratio: f64) -> CellSample {
        let figure = MeasuredValue { ratio: Some(ratio), ..MeasuredValue::of("Linear Scan: Naive", 2.0 * ratio) };
        let outcome = SampleOutcome::Measured { figures: vec![figure], alternately: run > 0 };
        CellSample { cell: cell.into(), run, seed: 1, took_s: 1.0, outcome }
    }

    #[test]
    fn medians_intervals_and_the_paper_s_number_come_together() {
        let cell = "table2/paper-tree/4M";
        let mut samples: Vec<CellSample> =
            (0..6).map(|run| sample(cell, run, [3.0, 1.0, 2.0, 5.0, 4.0, 6.0][run as usize])).collect();
        let outcome = SampleOutcome::Skipped { reason: "too large".into() };
        samples.push(CellSample { cell: "table2/paper-tree/16G".into(), run: 0, seed: 1, took_s: 0.0, outcome });
        let saved = SavedSamples { sessions: Vec::new(), samples };
        let summary = ExperimentSummary::of(&crate::table2::experiment(), &saved);
        let (table, line) = summary.lines().find(|(_, line)| line.row == "Linear Scan: Naive").unwrap();
        assert_eq!(table.columns, ["4MB", "16GB"]);
        let entry = line.entries[0].as_ref().unwrap();
        let ours = entry.ours.unwrap();
        assert_eq!((ours.median, ours.low, ours.high, ours.n), (3.5, 1.0, 6.0, 6));
        assert!(ours.is_interval());
        assert_eq!((entry.paper.as_ref().unwrap().value.as_str(), entry.one_after_the_other), ("2.97", 1));
        let none = line.entries[1].as_ref().unwrap();
        assert_eq!((none.ours, none.skipped.as_deref()), (None, Some("too large")));
    }

    #[test]
    fn the_bounds_of_a_value_are_its_interval() {
        let figure = |low, value, high, confidence| MeasuredValue {
            ends: Some(crate::experiment::Ends { low, high, confidence }),
            ..MeasuredValue::of("r", value)
        };
        let (one, other) = (figure(0.1, 0.2, 0.4, Some(0.95)), figure(0.05, 0.3, 0.35, Some(0.95)));
        let alone = estimate(&[&one], &[0.2]).unwrap();
        assert_eq!((alone.low, alone.median, alone.high, alone.confidence), (0.1, 0.2, 0.4, Some(0.95)));
        let both = estimate(&[&one, &other], &[0.2, 0.3]).unwrap();
        assert_eq!((both.low, both.median, both.high, both.confidence), (0.05, 0.25, 0.4, None));
        assert_eq!((estimate(&[], &[]), sum(&[])), (None, None));
        let sum = sum(&[3.0, 4.0]).unwrap();
        assert_eq!((sum.median, sum.low, sum.high, sum.n), (7.0, 7.0, 7.0, 2));
    }

    #[test]
    fn microseconds_have_their_unit_in_each_format() {
        let experiment = crate::appel_li::experiment();
        let cells = (experiment.cells)(crate::experiment::Scale::Full);
        let is_time = |row: &&Row| row.shows == Quantity::Microseconds;
        let (cell, row) = cells.iter().find_map(|cell| Some((cell, cell.rows.iter().find(is_time)?))).unwrap();
        let outcome = SampleOutcome::measured(vec![MeasuredValue::of(row.value_name(), 2958.0)]);
        let sample = CellSample { cell: cell.id.clone(), run: 0, seed: 1, took_s: 1.0, outcome };
        let summary = ExperimentSummary::of(&experiment, &SavedSamples { sessions: Vec::new(), samples: vec![sample] });
        let csv = fieldstone_report::csv::render(&[crate::show::records(std::slice::from_ref(&summary))]);
        let json = serde_json::to_string(&summary).unwrap();
        assert!(csv.contains(",2.958,") && json.contains("2.958"), "{csv}");
        assert!(!csv.contains("2958") && !json.contains("2958"), "{json}");
    }
}
