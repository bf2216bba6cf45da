//! Results as a document: a section for each experiment, in it a table with its plot for each table
//! of the paper. The terminal, the page and Markdown draw it; CSV has its records, and JSON is
//! [`Summary`] itself.

mod plot;
#[cfg(test)]
mod tests;

use fieldstone_report::csv::{Records, full};
use fieldstone_report::document::{
    Block, CellLine, Column, Document, Section, Table as DocumentTable, TableCell as Cell, TableRow as Row,
};
use fieldstone_report::quantity::{self, bytes};
use fieldstone_stats::Estimate;

use crate::experiment::{Experiment, Scale, Shows};
use crate::provenance::Provenance;
use crate::quotation::Quotation;
use crate::summary::{Entry, Line, Summary, Table};

/// Where a paper's text has no number.
const NOT_IN_TEXT: &str = "not in the text";
/// The fields of a record.
const FIELDS: &str = "experiment,table,row,column,cell,shows,median,low,high,confidence,samples,value,paper,skipped";
/// How to read the numbers.
const ABOUT: &str = "Each number is a median over processes whose code and data have other addresses each time. Below it are its \
                     95 % interval and what the paper’s text says.";

/// The results of experiments.
#[must_use]
pub fn document(summaries: &[Summary]) -> Document {
    Document {
        kind: "reproduce".to_owned(),
        subject: "Memory without virtual memory".to_owned(),
        title: "The papers’ numbers, and this machine’s".to_owned(),
        lead: Section::from(vec![Block::Paragraph(ABOUT.to_owned())]),
        blocks: summaries.iter().map(experiment).collect(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Document::default()
    }
}

/// The same for `docs/results.md`. `command` is what makes that page.
#[must_use]
pub fn documentation(summaries: &[Summary], command: &str) -> Document {
    let made = format!("Made by `{command}` from saved samples, not by hand. {ABOUT}");
    let lead = Section::from(vec![Block::Paragraph(made)]);
    Document { title: "Results".to_owned(), lead, ..document(summaries) }
}

fn experiment(summary: &Summary) -> Block {
    let words = [summary.source, summary.about].map(|words| Block::Paragraph(words.to_owned()));
    let sessions = summary.sessions.iter().map(|of| Block::Paragraph(format!("Measured {}.", session(summary, of))));
    let blocks = words.into_iter().chain(summary.tables.iter().map(table)).chain(sessions);
    Block::section(format!("{}: {}", summary.name, summary.title), blocks)
}

fn table(table: &Table) -> Block {
    let columns = std::iter::once(Column::text("")).chain(table.columns.iter().map(Column::number));
    let numbers = DocumentTable::new(columns).with_rows(table.lines.iter().map(row));
    let notes = Block::List(notes(&table.columns, &table.lines));
    Block::section(table.heading, [plot::plot(table).into(), numbers.into(), notes])
}

/// A line: the name, and for each column the number, its interval and the paper's, where any column
/// has one of these.
fn row(line: &Line) -> Row {
    if is_published(line) {
        let numbers = line.entries.iter().map(|entry| match entry {
            Some(entry) => CellLine::Quoted(ours(line.shows, entry)).into(),
            None => Cell::default(),
        });
        return Row::new(std::iter::once(Cell::from(&line.row)).chain(numbers).collect());
    }
    let (words, has_paper) = (interval_words(line), has_paper(line));
    let paper = if has_paper { Some("paper".to_owned()) } else { None };
    let paper = paper.or_else(|| lacks_paper(line).then(|| format!("paper: {NOT_IN_TEXT}")));
    let explained = words.map(str::to_owned).into_iter().chain(paper).map(CellLine::Quiet);
    let name = Cell(std::iter::once(CellLine::Text(line.row.clone())).chain(explained).collect());
    let cell = |entry: &Option<Entry>| {
        let Some(entry) = entry else { return Cell::default() };
        let interval = entry.ours.as_ref().map(|estimate| interval(line.shows, estimate)).unwrap_or_default();
        let paper = entry.paper.as_ref().map(|paper| paper_words(line.shows, paper)).unwrap_or_default();
        let interval = words.map(|_| CellLine::Quiet(interval));
        let paper = has_paper.then_some(CellLine::Quoted(paper));
        Cell([Some(CellLine::Text(ours(line.shows, entry))), interval, paper].into_iter().flatten().collect())
    };
    Row::new(std::iter::once(name).chain(line.entries.iter().map(cell)).collect())
}

/// All results as records: one for each number.
#[must_use]
pub fn records(summaries: &[Summary]) -> Records {
    let mut records = Records::new(FIELDS);
    for summary in summaries {
        for (table, line) in summary.lines() {
            let entries = table.columns.iter().zip(&line.entries);
            let known = entries.filter_map(|(column, entry)| Some((column, entry.as_ref()?)));
            records.records.extend(known.map(|(column, entry)| record(summary, (table, line, column), entry)));
        }
    }
    records
}

fn record(summary: &Summary, (table, line, column): (&Table, &Line, &String), entry: &Entry) -> Vec<String> {
    let ours = |field: fn(&Estimate) -> f64| full(entry.ours.as_ref().map(field));
    vec![
        summary.name.to_owned(),
        table.heading.to_owned(),
        line.row.clone(),
        column.clone(),
        entry.cell.clone(),
        format!("{:?}", line.shows).to_lowercase(),
        ours(|estimate| estimate.median),
        ours(|estimate| estimate.low),
        ours(|estimate| estimate.high),
        full(entry.ours.and_then(|estimate| estimate.confidence)),
        entry.ours.map(|estimate| estimate.n.to_string()).unwrap_or_default(),
        full(entry.value),
        entry.paper.as_ref().map(|paper| paper.value.clone()).unwrap_or_default(),
        entry.skipped.clone().unwrap_or_else(|| entry.instead.join(" ")),
    ]
}

/// The experiments and what they take; with `with_cells`, their cells.
#[must_use]
pub fn list(experiments: &[Experiment], with_cells: bool) -> Document {
    let columns = [Column::text("name"), Column::text("what, and from where")]
        .into_iter()
        .chain(["cells", "time", "memory", "disk"].map(Column::number));
    let rows = experiments.iter().map(|experiment| {
        let needs = experiment.needs;
        let what = [experiment.title, experiment.source].map(|words| CellLine::Text(words.to_owned()));
        let disk = if needs.disk_bytes == 0 { "none".to_owned() } else { bytes(needs.disk_bytes) };
        let numbers = [
            (experiment.cells)(Scale::Full).len().to_string(),
            format!("{} min", needs.minutes),
            bytes(needs.memory_bytes),
            disk,
        ];
        let words = [Cell::from(experiment.name), Cell(what.into())];
        Row::new(words.into_iter().chain(numbers.map(Cell::from)).collect())
    });
    let caption =
        "Time: in full; with --quick each takes a minute or two. Cells that memory does not hold are skipped by name.";
    let cells = experiments.iter().filter(|_| with_cells).flat_map(|experiment| (experiment.cells)(Scale::Full));
    let cells = cells.map(|cell| Row::new(vec![cell.id.into(), bytes(cell.memory_bytes).into()]));
    Document {
        blocks: vec![
            DocumentTable::new(columns).with_rows(rows).with_caption(caption).into(),
            DocumentTable::new([Column::text("cell"), Column::number("memory")]).with_rows(cells).into(),
        ],
        ..Document::default()
    }
}

/// A number as its row shows it.
fn number(shows: Shows, value: f64) -> String {
    match shows {
        Shows::Ratio => format!("{value:.2}"),
        Shows::Nanoseconds => quantity::seconds(value * 1e-9),
        Shows::Instructions => format!("{value:.1}"),
        Shows::Share => quantity::share(value),
        Shows::Estimate => quantity::percent(value),
        Shows::Microseconds => three_digits(value),
        Shows::Walks | Shows::References => counted(value),
        Shows::Count if value.fract() != 0.0 => format!("{value:.1}"),
        Shows::Adds | Shows::Count | Shows::Published => format!("{value:.0}"),
    }
}

/// `1.31 – 1.40`, or `range 1.31 – 1.40` of few values. Empty for a number that was counted once.
fn interval(shows: Shows, estimate: &Estimate) -> String {
    let is_one = estimate.n == 1 && estimate.low == estimate.high;
    let (low, high) = (number(shows, estimate.low), number(shows, estimate.high));
    let ends = if low.starts_with('<') { format!("{low} to {high}") } else { format!("{low} – {high}") };
    match estimate.is_interval() || shows == Shows::Estimate {
        _ if is_one => String::new(),
        true => ends,
        false => format!("range {ends}"),
    }
}

/// The name of the line's intervals; `None` without one.
fn interval_words(line: &Line) -> Option<&'static str> {
    let ends = line.entries.iter().flatten().filter_map(|entry| entry.ours.as_ref());
    let words = if line.shows == Shows::Estimate { "least – most" } else { "95 % interval" };
    ends.map(|ours| interval(line.shows, ours)).any(|words| !words.is_empty()).then_some(words)
}

/// Whether the paper may have the number of the line, but its text does not.
fn lacks_paper(line: &Line) -> bool {
    matches!(line.shows, Shows::Ratio | Shows::Share) && !has_paper(line)
}

/// The paper's number on the scale of the line: its shares and its increases of time are in
/// percent.
fn paper_number(shows: Shows, entry: &Entry) -> Option<f64> {
    let paper = entry.paper.as_ref()?;
    let number = paper.number()?;
    Some(match shows {
        Shows::Share | Shows::Estimate => number / 100.0,
        Shows::Ratio if paper.value.ends_with('%') => 1.0 + number / 100.0,
        _ => number,
    })
}

/// The paper's number as in its text, with a percent sign where only the heading of its table has
/// one.
fn paper_words(shows: Shows, paper: &Quotation) -> String {
    let is_share = matches!(shows, Shows::Share | Shows::Estimate);
    let bare = is_share && paper.value.parse::<f64>().is_ok();
    if bare { format!("{} %", paper.value) } else { paper.value.clone() }
}

/// Our number, or why there is none.
fn ours(shows: Shows, entry: &Entry) -> String {
    match (&entry.ours, &entry.skipped, entry.value) {
        (Some(estimate), ..) => number(shows, estimate.median),
        (None, Some(_), _) => "SKIP".to_owned(),
        _ if !entry.instead.is_empty() => entry.instead.join(", "),
        _ if shows == Shows::Published => entry.paper.as_ref().map_or("–", |paper| &paper.value).to_owned(),
        (None, None, Some(computed)) => number(shows, computed),
        (None, None, None) => "–".to_owned(),
    }
}

/// Whether no number of the line is measured: they have no intervals.
fn is_published(line: &Line) -> bool {
    line.shows == Shows::Published
        || line.entries.iter().flatten().all(|entry| entry.ours.is_none() && entry.value.is_some())
}

/// A count of models per operation: 0 only if there is none.
fn counted(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { three_digits(value) }
}

/// At least three significant digits.
fn three_digits(value: f64) -> String {
    let mut behind = 0;
    while behind < 9 && value.abs() * 10_f64.powi(behind) < 99.95 {
        behind += 1;
    }
    format!("{value:.*}", usize::try_from(behind).unwrap_or(0))
}

/// Whether the line has a number of the paper.
fn has_paper(line: &Line) -> bool {
    line.entries.iter().flatten().any(|entry| entry.paper.is_some())
}

/// The reasons of empty cells, each once with its columns.
fn skips(columns: &[String], lines: &[Line]) -> Vec<String> {
    let mut reasons = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let mut found: Vec<&String> =
            lines.iter().filter_map(|line| line.entries[at].as_ref()?.skipped.as_ref()).collect();
        found.dedup();
        reasons.extend(found.into_iter().map(|reason| (reason.clone(), column.as_str())));
    }
    by_text(reasons).map(|(reason, columns)| format!("SKIP {columns}: {reason}")).collect()
}

/// The reasons of empty cells, the pages of the memory, and sides that were measured one after the
/// other.
fn notes(columns: &[String], lines: &[Line]) -> Vec<String> {
    let mut pages = Vec::new();
    let mut apart = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let entries = || lines.iter().filter_map(|line| line.entries[at].as_ref());
        let mut kinds: Vec<&str> = entries().flat_map(|entry| entry.pages.iter().map(String::as_str)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if !kinds.is_empty() {
            pages.push((kinds.join("; "), column.as_str()));
        }
        if entries().any(|entry| entry.one_after_the_other > 0) {
            apart.push((
                "memory did not hold both sides, which were measured one after the other".to_owned(),
                column.as_str(),
            ));
        }
    }
    let mut all = skips(columns, lines);
    all.extend(by_text(pages).map(|(kinds, columns)| format!("Pages got ({columns}): {kinds}")));
    all.extend(by_text(apart).map(|(text, columns)| format!("{columns}: {text}")));
    all
}

/// Each text once, with the columns that it is about.
fn by_text(notes: Vec<(String, &str)>) -> impl Iterator<Item = (String, String)> {
    let mut grouped = Vec::<(String, String)>::new();
    for (text, column) in notes {
        match grouped.iter_mut().find(|(known, _)| *known == text) {
            Some((_, columns)) => *columns += &format!(", {column}"),
            None => grouped.push((text, column.to_owned())),
        }
    }
    grouped.into_iter()
}

/// Whether a line has times, or numbers that follow from them: models count the same on any
/// machine.
fn is_timed(summary: &Summary) -> bool {
    let is_counted = |shows| {
        matches!(shows, Shows::Walks | Shows::References | Shows::Instructions | Shows::Share | Shows::Published)
    };
    summary.tables.iter().flat_map(|table| &table.lines).any(|line| !is_counted(line.shows))
}

/// A session of `summary` in words, with the noise of the machine if times were measured.
fn session(summary: &Summary, of: &Provenance) -> String {
    let noise = if is_timed(summary) { format!(", noise {}", quantity::percent(of.noise)) } else { String::new() };
    let hypervisor = if of.virtual_machine { ", a virtual machine" } else { "" };
    let quick = if of.quick { ", quick" } else { "" };
    let fixed = if of.randomised { "" } else { ", address spaces not randomised" };
    format!(
        "{}{quick}: {} ({} processors{hypervisor}), {}, Linux {}, transparent huge pages {}, commit {}{noise}{fixed}",
        quantity::moment(of.began_at_unix_s),
        of.cpu,
        of.cpus,
        quantity::bytes(of.memory_bytes),
        of.kernel,
        of.thp,
        of.commit,
    )
}
