//! A table whose cells are values: which rows and columns a renderer shows is known from the
//! numbers.

use super::Value;
use crate::quantity::count;

/// What stands where there is no number.
pub(crate) const MISSING: &str = "–";

/// Rows under headings. Each row has a cell for each column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// What the numbers are, in sentences.
    pub caption: String,
    /// The columns, from left to right.
    pub columns: Vec<Column>,
    /// The rows, in the order of reading.
    pub rows: Vec<TableRow>,
    /// How many rows are shown where there are many; all of them if `None`.
    pub limit: Option<RowLimit>,
}

/// A column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    /// The heading.
    pub heading: String,
    /// Whether its cells are numbers, which stand to the right and are never broken.
    pub is_number: bool,
    /// A sentence on the column; it is shown where the column is.
    pub explanation: String,
    /// 0 for a column that is always shown. Of the others the one with the highest number is left
    /// out first where there is little room beside the first column.
    pub order_of_omission: u8,
}

/// A row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TableRow {
    /// One for each column.
    pub cells: Vec<TableCell>,
    /// Where not all rows are shown, those with the largest weight are.
    pub weight: f64,
    /// Whether it is shown in any case.
    pub is_pinned: bool,
}

/// A cell: lines of text, one below the other; empty if there is nothing to show.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TableCell(pub Vec<CellLine>);

/// A line of a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum CellLine {
    /// There could be a number, and there is none.
    Missing,
    /// Words, wrapped where there is no room.
    Text(String),
    /// A number.
    Value(Value),
    /// Words instead of the number that a sum of the column counts.
    Worded(String, Value),
    /// The name of a function: shortened in its middle.
    Function(String),
    /// A path, with a line number or without: shortened at its beginning.
    Path(String),
    /// A function of a call stack and its source line.
    Caller {
        /// The function.
        name: String,
        /// `file:line`; empty if it is not known.
        place: String,
    },
    /// What explains the line above it.
    Quiet(String),
    /// What a paper says.
    Quoted(String),
}

/// How many rows are shown.
#[derive(Debug, Clone, PartialEq)]
pub struct RowLimit {
    /// On a terminal.
    pub terminal: usize,
    /// On a page.
    pub page: usize,
    /// A terminal shows no row with a smaller weight than this.
    pub least: Option<Value>,
    /// What is said of the others.
    pub rest: Rest,
}

/// What is said of rows that are not shown. Both variants begin with what one row is called, and
/// several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rest {
    /// A row with the sums of the numbers.
    Sum(&'static str, &'static str),
    /// A sentence with their number; with a column, how many have which words there.
    Count(&'static str, &'static str, Option<usize>),
}

impl Table {
    /// A table of `columns` without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), ..Self::default() }
    }

    /// The same, with these rows.
    #[must_use]
    pub fn with_rows(self, rows: impl IntoIterator<Item = TableRow>) -> Self {
        Self { rows: rows.into_iter().collect(), ..self }
    }

    /// The same, with a caption.
    #[must_use]
    pub fn with_caption(self, caption: impl Into<String>) -> Self {
        Self { caption: caption.into(), ..self }
    }

    /// The same, with a limit to its rows.
    #[must_use]
    pub fn with_limit(self, limit: RowLimit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// The rows that a page shows, the last one with the sums of the others, and a sentence on the
    /// others.
    pub(crate) fn on_page(&self) -> (Vec<TableRow>, String) {
        self.shown(|limit| (limit.page, None))
    }

    /// The same for a terminal.
    pub(crate) fn on_terminal(&self) -> (Vec<TableRow>, String) {
        self.shown(|limit| (limit.terminal, limit.least))
    }

    fn shown(&self, most: impl Fn(&RowLimit) -> (usize, Option<Value>)) -> (Vec<TableRow>, String) {
        let Some(limit) = &self.limit else { return (self.rows.clone(), String::new()) };
        let (most, least) = most(limit);
        let enough = least.and_then(Value::number).map_or(f64::NEG_INFINITY, |(weight, _)| weight);
        let mut order: Vec<usize> = (0..self.rows.len()).filter(|&at| !self.rows[at].is_pinned).collect();
        order.retain(|&at| self.rows[at].weight >= enough);
        order.sort_by(|&one, &other| self.rows[other].weight.total_cmp(&self.rows[one].weight));
        order.truncate(most);
        let is_shown = |at: usize| self.rows[at].is_pinned || order.contains(&at);
        let (shown, others): (Vec<usize>, Vec<usize>) = (0..self.rows.len()).partition(|&at| is_shown(at));
        let mut rows: Vec<TableRow> = shown.into_iter().map(|at| self.rows[at].clone()).collect();
        let others: Vec<&TableRow> = others.into_iter().map(|at| &self.rows[at]).collect();
        if others.is_empty() {
            return (rows, String::new());
        }
        match limit.rest {
            Rest::Sum(one, many) => {
                let least = least.filter(|_| others.iter().all(|row| row.weight < enough));
                rows.push(self.sum(&others, &more(others.len(), one, many), least));
                (rows, String::new())
            }
            Rest::Count(one, many, by) => {
                let kinds = by.map_or_else(String::new, |column| format!(": {}", kinds(&others, column)));
                (rows, format!("And {}{kinds}.", more(others.len(), one, many)))
            }
        }
    }

    /// The row that stands for `others`.
    fn sum(&self, others: &[&TableRow], name: &str, least: Option<Value>) -> TableRow {
        let name = least.map_or_else(|| name.to_owned(), |least| format!("{name}, each under {least}"));
        let sum = |column: usize| {
            let numbers = others.iter().filter_map(|row| row.cells.get(column)?.number());
            let sum = numbers.reduce(|(sum, unit), (number, _)| (sum + number, unit));
            sum.map_or_else(TableCell::default, |(sum, unit)| unit.of(sum).into())
        };
        let sums = (1..self.columns.len()).map(sum);
        TableRow::new(std::iter::once(name.into()).chain(sums).collect())
    }
}

/// `1 more site`, `12 more sites`.
fn more(number: usize, one: &str, many: &str) -> String {
    format!("{} more {}", count(number as u64), if number == 1 { one } else { many })
}

/// `9 only read, 3 true sharing`: how many rows have which words in a column.
fn kinds(rows: &[&TableRow], column: usize) -> String {
    let mut kinds: Vec<(String, u64)> = Vec::new();
    for words in rows.iter().filter_map(|row| Some(row.cells.get(column)?.to_string())) {
        match kinds.iter_mut().find(|(known, _)| *known == words) {
            Some((_, number)) => *number += 1,
            None => kinds.push((words, 1)),
        }
    }
    kinds.iter().map(|(words, number)| format!("{} {words}", count(*number))).collect::<Vec<_>>().join(", ")
}

impl Column {
    /// A column of words.
    pub fn text(heading: impl Into<String>) -> Self {
        Self { heading: heading.into(), ..Self::default() }
    }

    /// A column of numbers.
    pub fn number(heading: impl Into<String>) -> Self {
        Self { is_number: true, ..Self::text(heading) }
    }

    /// The same, with a sentence that explains it.
    #[must_use]
    pub fn explained(self, explanation: impl Into<String>) -> Self {
        Self { explanation: explanation.into(), ..self }
    }

    /// The same, left out where there is little room: the one with the highest `order` first.
    #[must_use]
    pub fn omissible(self, order: u8) -> Self {
        Self { order_of_omission: order, ..self }
    }
}

impl TableRow {
    /// A row without a weight.
    pub fn new(cells: Vec<TableCell>) -> Self {
        Self { cells, weight: 0.0, is_pinned: false }
    }

    /// The same, with a weight.
    #[must_use]
    pub fn weighing(self, weight: f64) -> Self {
        Self { weight, ..self }
    }

    /// The same, shown in any case if `is_pinned`.
    #[must_use]
    pub fn pinned_if(self, is_pinned: bool) -> Self {
        Self { is_pinned, ..self }
    }
}

/// A row of cells that are made of whatever can be one.
macro_rules! row {
    ($($cell:expr),* $(,)?) => { $crate::document::TableRow::new(vec![$($crate::document::TableCell::from($cell)),*]) };
}
pub(crate) use row;

impl TableCell {
    /// The number that a sum counts, with its unit.
    fn number(&self) -> Option<(f64, super::Unit)> {
        self.0.iter().find_map(|line| match line {
            CellLine::Value(value) | CellLine::Worded(_, value) => value.number(),
            _ => None,
        })
    }
}

impl std::fmt::Display for TableCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }
}

impl std::fmt::Display for CellLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str(MISSING),
            Self::Value(value) => value.fmt(f),
            Self::Caller { name, place } if place.is_empty() => write!(f, "by {name}"),
            Self::Caller { name, place } => write!(f, "by {name} ({place})"),
            Self::Text(words)
            | Self::Worded(words, _)
            | Self::Function(words)
            | Self::Path(words)
            | Self::Quiet(words)
            | Self::Quoted(words) => f.write_str(words),
        }
    }
}

impl From<CellLine> for TableCell {
    fn from(line: CellLine) -> Self {
        Self(vec![line])
    }
}

impl From<String> for TableCell {
    fn from(words: String) -> Self {
        CellLine::Text(words).into()
    }
}

impl From<&str> for TableCell {
    fn from(words: &str) -> Self {
        words.to_owned().into()
    }
}

impl From<&String> for TableCell {
    fn from(words: &String) -> Self {
        words.clone().into()
    }
}

impl From<Value> for TableCell {
    fn from(value: Value) -> Self {
        CellLine::Value(value).into()
    }
}

impl<T: Into<TableCell>> From<Option<T>> for TableCell {
    fn from(value: Option<T>) -> Self {
        value.map_or_else(|| CellLine::Missing.into(), Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Unit;

    fn table(weights: &[f64], limit: RowLimit) -> Table {
        let row = |(at, weight): (usize, &f64)| {
            row![format!("row {at}"), Unit::Share.of(*weight), if at % 2 == 0 { "even" } else { "odd" }]
                .weighing(*weight)
        };
        let columns = [Column::text("name"), Column::number("share"), Column::text("kind")];
        Table::new(columns).with_rows(weights.iter().enumerate().map(row)).with_limit(limit)
    }

    fn words(rows: &[TableRow]) -> Vec<String> {
        rows.iter().map(|row| row.cells.iter().map(ToString::to_string).collect::<Vec<_>>().join("|")).collect()
    }

    #[test]
    fn the_heaviest_rows_stay_in_their_order_and_the_others_are_a_sum() {
        let least = Some(Unit::Share.of(0.1));
        let limit = RowLimit { terminal: 2, page: 3, least, rest: Rest::Sum("site", "sites") };
        let table = table(&[0.05, 0.3, 0.2, 0.5], limit);
        let shown = words(&table.on_terminal().0);
        assert_eq!(shown, ["row 1|30.0 %|odd", "row 3|50.0 %|odd", "2 more sites|25.0 %|"]);
        let shown = words(&table.on_page().0);
        assert_eq!(shown.last().unwrap(), "1 more site|5.0 %|");
    }

    #[test]
    fn rows_below_the_least_weight_are_named_as_such() {
        let least = Some(Unit::Share.of(0.1));
        let limit = RowLimit { terminal: 9, page: 9, least, rest: Rest::Sum("site", "sites") };
        let mut table = table(&[0.05, 0.3, 0.02], limit);
        assert!(words(&table.on_terminal().0)[1].starts_with("2 more sites, each under 10.0 %|"));
        assert_eq!(table.on_page().0.len(), 3);
        table.rows[0].is_pinned = true;
        assert!(words(&table.on_terminal().0)[0].starts_with("row 0"), "a pinned row is always shown");
    }

    #[test]
    fn the_others_are_counted_by_their_words() {
        let limit = RowLimit { terminal: 1, page: 9, least: None, rest: Rest::Count("line", "lines", Some(2)) };
        let table = table(&[4.0, 3.0, 2.0, 1.0], limit);
        assert_eq!(table.on_terminal().1, "And 3 more lines: 2 odd, 1 even.");
        assert_eq!(table.on_page().1, "");
    }
}
