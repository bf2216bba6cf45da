//! The description of what is measured: experiments, their cells, and the rows that a cell fills.
//!
//! ```text
//! experiment   one published table or figure           table2
//! cell         what one child process measures          table2/paper-tree/4M     one column of one table
//! row          one number of a cell, and the paper's    Linear Scan: Naive       2.97
//! ```
//! A module describes its experiment in a function, which is listed in [`crate::catalog`]. The `measure` of a
//! cell runs once per sample, in a child process with a random layout ([`crate::Layout`]).
//!
//! Saved samples name their cells and rows. So ids and names of rows do not change.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::trial::Trial;

/// A published table or figure.
#[derive(Debug)]
pub struct Experiment {
    /// The name on the command line, one word.
    pub name: &'static str,
    /// The heading.
    pub title: &'static str,
    /// The paper, and its section, table or figure.
    pub source: &'static str,
    /// What is compared, the differences from the paper, and how to read the numbers.
    pub about: &'static str,
    /// The cost of a full run.
    pub needs: Needs,
    /// The cells, in the order of their tables and columns.
    pub cells: fn(Scale) -> Vec<Cell>,
}

/// The cost of an experiment in full, without `--quick`.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Approximate minutes on a machine of the year 2024.
    pub minutes: u32,
    /// Memory of the largest cell.
    pub memory_bytes: u64,
    /// Disk space, without the results.
    pub disk_bytes: u64,
}

/// The sizes that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// All sizes of the paper.
    Full,
    /// Small sizes, in less than a minute.
    Quick,
}

/// Measures a cell once.
pub type Measure = Box<dyn Fn(&Trial) -> Result<SampleOutcome>>;

/// What one child process measures: one column of one table.
pub struct Cell {
    /// `experiment/group/column`: unique, without blanks. An id means the same work at each scale.
    pub id: String,
    /// The heading of its column, such as `4 MB`. Several cells may fill rows of one column.
    pub column: String,
    /// Memory that it requires: that of its largest [`crate::Side`].
    pub memory_bytes: u64,
    /// The rows that it fills, in order.
    pub rows: Vec<Row>,
    /// Measures it once, in its own process.
    pub measure: Measure,
}

impl Cell {
    /// A cell whose `measure` runs in its own process.
    pub fn new(
        id: impl Into<String>,
        column: impl Into<String>,
        memory_bytes: u64,
        rows: Vec<Row>,
        measure: impl Fn(&Trial) -> Result<SampleOutcome> + 'static,
    ) -> Self {
        Self { id: id.into(), column: column.into(), memory_bytes, rows, measure: Box::new(measure) }
    }

    /// Whether all rows are the paper's, so that nothing is measured.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.rows.iter().all(Row::is_published)
    }
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cell").field("id", &self.id).field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// A line of a table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The heading of its table within the experiment.
    pub table: &'static str,
    /// Its name, unique in the cell together with its column.
    pub name: String,
    /// The quantity of its numbers.
    pub shows: Quantity,
    /// The id of the quotation with the paper's value, if the text of the paper has one.
    pub paper: Option<String>,
    /// Its column if it is not the cell's. A cell may fill several columns of a line.
    pub column: Option<&'static str>,
    /// A number computed from several of the paper's, if the paper shows it only in a lost image.
    pub computed: Option<f64>,
    /// Its place on the horizontal axis of the plot, in seconds. The columns of its table are curves,
    /// whose numbers only JSON and CSV contain.
    pub at_s: Option<f64>,
}

/// The quantity of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Multiple of the baseline; below 1 is faster.
    Ratio,
    /// Nanoseconds per operation.
    Nanoseconds,
    /// Instructions per operation.
    Instructions,
    /// A share of a whole, 0 to 1.
    Share,
    /// Microseconds per operation, printed without a unit. Samples hold nanoseconds.
    Microseconds,
    /// Number of ADD instructions that take the time of one operation.
    Adds,
    /// A share of a run's time from models of hardware and a calibrated cost of a page walk: the
    /// likely value, and the lowest and highest.
    Estimate,
    /// Page walks per operation, counted in models.
    Walks,
    /// Page table entries or pointers that are read per operation, counted in models.
    References,
    /// A number of things, exact in one sample.
    Count,
    /// A number of things, summed over all samples.
    Sum,
    /// The paper's value; nothing is measured.
    Published,
}

impl Row {
    /// A row of `table` with ratios and without a value of the paper.
    pub fn ratio(table: &'static str, name: impl Into<String>) -> Self {
        Self::new(Quantity::Ratio, table, name)
    }

    /// A row of `table` with the quantity `shows`.
    pub fn new(shows: Quantity, table: &'static str, name: impl Into<String>) -> Self {
        Self { table, name: name.into(), shows, paper: None, column: None, computed: None, at_s: None }
    }

    /// The rows of a baseline in nanoseconds and of its contenders as ratios.
    #[must_use]
    pub fn compared(table: &'static str, baseline: &str, contenders: &[&str]) -> Vec<Self> {
        let ratios = contenders.iter().map(|&name| Self::ratio(table, name));
        std::iter::once(Self::new(Quantity::Nanoseconds, table, baseline)).chain(ratios).collect()
    }

    /// The same with the paper's value.
    #[must_use]
    pub fn with_paper(self, quotation: impl Into<String>) -> Self {
        Self { paper: Some(quotation.into()), ..self }
    }

    /// The same in its own column.
    #[must_use]
    pub fn in_column(self, column: &'static str) -> Self {
        Self { column: Some(column), ..self }
    }

    /// The same as a point of curves, at a time.
    #[must_use]
    pub fn at(self, at_s: f64) -> Self {
        Self { at_s: Some(at_s), ..self }
    }

    /// The same with a number computed from several of the paper's.
    #[must_use]
    pub fn with_computed(self, computed: Option<f64>) -> Self {
        Self { computed, ..self }
    }

    /// The name of the [`MeasuredValue`] that fills it: its own name, and its own column if any.
    #[must_use]
    pub fn value_name(&self) -> String {
        self.column.map_or_else(|| self.name.clone(), |column| format!("{}: {column}", self.name))
    }

    /// Whether there is nothing to measure.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.shows == Quantity::Published || self.computed.is_some()
    }
}

/// A measured number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredValue {
    /// The row that it fills: [`Row::value_name`].
    pub row: String,
    /// Nanoseconds per operation, or the quantity of the row.
    pub value: f64,
    /// Multiple of the baseline; `None` for a baseline and for rows without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The page kinds that its memory is on, such as `thp 100 %`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<String>,
    /// A word that replaces the number, such as `yes` or an errno.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
    /// Its bounds, if one sample determines them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Ends>,
}

/// The bounds of a number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// The lowest value.
    pub low: f64,
    /// The highest value.
    pub high: f64,
    /// Probability that the number is within the bounds; `None` for an estimate and for the range
    /// of a few values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

impl MeasuredValue {
    /// A number without a baseline.
    pub fn of(row: impl Into<String>, value: f64) -> Self {
        Self { row: row.into(), value, ratio: None, pages: None, instead: None, ends: None }
    }

    /// A word instead of a number.
    pub fn word(row: impl Into<String>, word: impl Into<String>) -> Self {
        Self { instead: Some(word.into()), ..Self::of(row, 0.0) }
    }

    /// The number in the quantity of its row; `None` if a word replaces it.
    #[must_use]
    pub fn shown(&self, shows: Quantity) -> Option<f64> {
        match shows {
            _ if self.instead.is_some() => None,
            Quantity::Ratio => self.ratio,
            _ => Some(self.value),
        }
    }
}

/// The result of a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleOutcome {
    /// It was measured.
    Measured {
        /// The numbers, one per row of the cell.
        figures: Vec<MeasuredValue>,
        /// Whether all sides were in memory and timed alternately. Otherwise they were built and
        /// timed one after the other.
        alternately: bool,
    },
    /// The machine lacks something.
    Skipped {
        /// What it lacks.
        reason: String,
    },
}

impl SampleOutcome {
    /// The outcome of a sample whose runs alternate, or that has only one run.
    #[must_use]
    pub const fn measured(figures: Vec<MeasuredValue>) -> Self {
        Self::Measured { figures, alternately: true }
    }
}
