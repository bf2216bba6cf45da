//! What is measured: experiments, their cells, the rows that a cell fills.
//!
//! ```text
//! experiment   one published table or figure           table2
//! cell         what one child process measures          table2/paper-tree/4M     one column of one table
//! row          one number of a cell, and the paper's    Linear Scan: Naive       2.97
//! ```
//! An experiment is a file of its own with a function that makes this description; it is listed in [`all`]. A cell's `measure` runs
//! in a child process whose layout is randomised ([`crate::Layout`]), once for each sample.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::trial::Trial;

/// A published table or figure.
#[derive(Debug)]
pub struct Experiment {
    /// What it is called on the command line: one word.
    pub name: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// The paper, and the section, table or figure.
    pub source: &'static str,
    /// What is measured against what, where we differ from the paper, how to read the numbers. Plain sentences.
    pub about: &'static str,
    /// What it takes in full.
    pub needs: Needs,
    /// The cells, in the order of their tables and columns.
    pub cells: fn(Scale) -> Vec<Cell>,
}

/// What an experiment takes, in full (not `--quick`).
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Approximate minutes on a machine of the year 2024.
    pub minutes: u32,
    /// Memory at which the largest cell is measured.
    pub memory_bytes: u64,
    /// Disk, besides the results.
    pub disk_bytes: u64,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// All sizes of the paper.
    Full,
    /// Small sizes, in less than a minute.
    Quick,
}

/// Measures a cell once.
pub type Measure = Box<dyn Fn(&Trial) -> Result<Outcome>>;

/// What one child process measures: one column of one table.
pub struct Cell {
    /// `experiment/group/column`: unique, without blanks; the same id means the same work at each scale.
    pub id: String,
    /// Its column's heading, such as `4 MB`. Several cells may fill different rows of one column.
    pub column: String,
    /// Memory without which it cannot be measured: that of its largest [`crate::Side`].
    pub memory_bytes: u64,
    /// The rows that it fills, in order.
    pub rows: Vec<Row>,
    /// Measures once, in a process that was started for it.
    pub measure: Measure,
}

impl Cell {
    /// Whether all of it is the paper's, and nothing to measure.
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
    /// The table within the experiment that it stands in: its heading.
    pub table: &'static str,
    /// Its name: unique in the cell, with its column.
    pub name: String,
    /// What its numbers are.
    pub shows: Shows,
    /// The id of the quotation with the paper's value (`quotations.toml`), where the paper's text has one.
    pub paper: Option<String>,
    /// Its column, where that is not its cell's: a cell may fill a line of several columns.
    pub column: Option<&'static str>,
    /// A number that follows from several of the paper's, where it shows the numbers themselves in a lost image only.
    pub computed: Option<f64>,
}

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shows {
    /// Times the baseline: under 1 is faster.
    Ratio,
    /// Nanoseconds an operation.
    Nanoseconds,
    /// Instructions an operation.
    Instructions,
    /// A part of a whole, 0 to 1.
    Share,
    /// Microseconds an operation, as a plain number: the unit of 1991. Samples hold nanoseconds.
    Microseconds,
    /// As many ADD instructions as take the time of an operation.
    Adds,
    /// A part of a run's time, as models of hardware and the price of a page walk come to it: likely, the least, the most.
    Estimate,
    /// Page walks an operation, counted in models.
    Walks,
    /// Page table entries or pointers that an operation reads on its way, counted in models.
    References,
    /// How many things there are, or were: exact in one sample.
    Count,
    /// What the paper says; nothing is measured.
    Published,
}

impl Row {
    /// A row of `table` that shows ratios; the paper has none in its text.
    pub fn ratio(table: &'static str, name: impl Into<String>) -> Self {
        Self::showing(Shows::Ratio, table, name)
    }

    /// A row of `table` that shows something else.
    pub fn showing(shows: Shows, table: &'static str, name: impl Into<String>) -> Self {
        Self { table, name: name.into(), shows, paper: None, column: None, computed: None }
    }

    /// The same, with the paper's value.
    #[must_use]
    pub fn with_paper(self, quotation: impl Into<String>) -> Self {
        Self { paper: Some(quotation.into()), ..self }
    }

    /// The same, in a column of its own.
    #[must_use]
    pub fn in_column(self, column: &'static str) -> Self {
        Self { column: Some(column), ..self }
    }

    /// The same, with a number that follows from several of the paper's.
    #[must_use]
    pub fn with_computed(self, computed: Option<f64>) -> Self {
        Self { computed, ..self }
    }

    /// The name of the [`Figure`] that fills it: its own, and its column's where it has one.
    #[must_use]
    pub fn figure(&self) -> String {
        self.column.map_or_else(|| self.name.clone(), |column| format!("{}: {column}", self.name))
    }

    /// Whether there is nothing to measure.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.shows == Shows::Published || self.computed.is_some()
    }
}

/// A measured number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The row that it fills: [`Row::figure`].
    pub row: String,
    /// Nanoseconds (or instructions, or what the row shows) an operation.
    pub value: f64,
    /// Times its baseline; none for a baseline and where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The pages that its memory really got, such as `thp 100 %`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<String>,
    /// What stands in the place of a number, such as `yes` or an errno.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<String>,
    /// How far off it may be, where one sample knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Ends>,
}

/// Between what a number lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// Probability that it lies there; none for an estimate, and for the range of a few values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

impl Figure {
    /// A number without a baseline.
    pub fn of(row: impl Into<String>, value: f64) -> Self {
        Self { row: row.into(), value, ratio: None, pages: None, instead: None, ends: None }
    }

    /// A word in the place of a number.
    pub fn word(row: impl Into<String>, word: impl Into<String>) -> Self {
        Self { instead: Some(word.into()), ..Self::of(row, 0.0) }
    }

    /// The number that its row shows.
    #[must_use]
    pub fn shown(&self, shows: Shows) -> Option<f64> {
        match shows {
            _ if self.instead.is_some() => None,
            Shows::Ratio => self.ratio,
            _ => Some(self.value),
        }
    }
}

/// What came of a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The numbers.
    Measured {
        /// One for each row of the cell.
        figures: Vec<Figure>,
        /// Whether the sides were in memory at once and timed alternately; else one was built after the other.
        alternately: bool,
    },
    /// The machine lacks something.
    Skipped {
        /// What.
        reason: String,
    },
}

/// Every experiment, in the order in which it is listed.
#[must_use]
pub fn all() -> Vec<Experiment> {
    vec![
        crate::table2::experiment(),
        crate::figure3::experiment(),
        crate::figure4::experiment(),
        crate::figure5::experiment(),
        crate::blog::experiment(),
        crate::fragmentation::experiment(),
        crate::tree_walks::experiment(),
        crate::appel_li::experiment(),
        crate::direct_segments::experiment(),
        crate::cachekata::experiment(),
    ]
}
