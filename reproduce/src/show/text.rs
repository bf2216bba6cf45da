//! Results for a terminal: a table each, a number with its interval and the paper's below it.

use std::fmt::Write as _;
use std::ops::Range;

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle, presets};
use fieldstone_report::quantity::bytes;

use super::{
    NOT_IN_TEXT, has_paper, interval, interval_words, is_published, lacks_paper, notes, ours, paper_words, session,
};
use crate::experiment::{Experiment, Scale};
use crate::summary::{Line, Summary};

const RULED: TableStyle = presets::NOTHING.header_separator(LineStyle::new('─', '─', '─', '─'));

/// The results of experiments, for a terminal of so many columns.
#[must_use]
pub fn text(summaries: &[Summary], width: u16) -> String {
    let mut all = String::new();
    for summary in summaries {
        // Writing to a String cannot fail.
        let _ = writeln!(all, "{}: {}\n{}\n{}\n", summary.name, summary.title, summary.source, summary.about);
        for table in &summary.tables {
            let heading: Vec<String> =
                [table.heading.to_owned()].into_iter().chain(table.columns.iter().cloned()).collect();
            let lines: Vec<Vec<String>> = table.lines.iter().map(row).collect();
            for columns in fitting(&heading, &lines, width.into()) {
                let pick = |cells: &[String]| [&cells[..1], &cells[columns.clone()]].concat();
                let mut rows = new_table(pick(&heading), u16::MAX);
                for line in &lines {
                    rows.add_row(pick(line));
                }
                align(&mut rows, 1);
                let _ = writeln!(all, "{}\n", rows.trim_fmt());
            }
            for note in notes(&table.columns, &table.lines) {
                let _ = writeln!(all, "{note}");
            }
            all.push('\n');
        }
        for of in &summary.sessions {
            let _ = writeln!(all, "measured {}", session(of));
        }
        all.push('\n');
    }
    all
}

/// Ranges of columns after the first that fit beside it in so many places, at least one each: a number is never broken.
fn fitting(heading: &[String], lines: &[Vec<String>], width: usize) -> Vec<Range<usize>> {
    let widest = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column)).chain(heading.get(column));
        cells.flat_map(|cell| cell.lines()).map(|line| line.chars().count()).max().unwrap_or(0) + 2
    };
    let (mut ranges, mut start, mut used) = (Vec::new(), 1, widest(0));
    for column in 1..heading.len() {
        if used + widest(column) > width && column > start {
            ranges.push(start..column);
            (start, used) = (column, widest(0));
        }
        used += widest(column);
    }
    ranges.push(start..heading.len());
    ranges
}

/// A line: the name, and in each column the number, its interval and the paper's.
fn row(line: &Line) -> Vec<String> {
    if is_published(line) {
        let numbers =
            line.entries.iter().map(|entry| entry.as_ref().map_or_else(String::new, |entry| ours(line.shows, entry)));
        return [line.row.clone()].into_iter().chain(numbers).collect();
    }
    let (words, with_paper) = (interval_words(line), has_paper(line));
    let mut name = vec![line.row.clone()];
    name.extend(words.map(|words| format!("  {words}")));
    if with_paper {
        name.push("  paper".to_owned());
    } else if lacks_paper(line) {
        name.push(format!("  paper: {NOT_IN_TEXT}"));
    }
    let mut cells = vec![name.join("\n")];
    cells.extend(line.entries.iter().map(|entry| {
        let Some(entry) = entry else { return String::new() };
        let ends = || entry.ours.as_ref().map(|estimate| interval(line.shows, estimate)).unwrap_or_default();
        let paper = || entry.paper.as_ref().map(|paper| paper_words(line.shows, paper)).unwrap_or_default();
        let parts = [Some(ours(line.shows, entry)), words.map(|_| ends()), with_paper.then(paper)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("\n").trim_end_matches('\n').to_owned()
    }));
    cells
}

/// What there is to reproduce, and what it takes.
#[must_use]
pub fn list(experiments: &[Experiment], with_cells: bool, width: u16) -> String {
    let heading = ["name", "what", "source", "cells", "time", "memory", "disk"].map(str::to_owned);
    let mut rows = new_table(heading, width);
    for experiment in experiments {
        let needs = experiment.needs;
        rows.add_row([
            experiment.name.to_owned(),
            experiment.title.to_owned(),
            experiment.source.to_owned(),
            (experiment.cells)(Scale::Full).len().to_string(),
            format!("{} min", needs.minutes),
            bytes(needs.memory_bytes),
            if needs.disk_bytes == 0 { "none".to_owned() } else { bytes(needs.disk_bytes) },
        ]);
    }
    align(&mut rows, 3);
    let mut all = rows.trim_fmt()
        + "\n\nTime: in full; with --quick each takes a minute or two. Cells that memory does not hold are skipped by name.\n";
    if with_cells {
        let cells = experiments.iter().flat_map(|experiment| (experiment.cells)(Scale::Full));
        for cell in cells {
            let _ = writeln!(all, "{}  {}", cell.id, bytes(cell.memory_bytes));
        }
    }
    all
}

fn new_table(heading: impl IntoIterator<Item = String>, width: u16) -> Table {
    let mut table = Table::new();
    table.load_style(RULED).set_content_arrangement(ContentArrangement::Dynamic).set_width(width.max(60));
    table.set_header(heading);
    table
}

fn align(table: &mut Table, text_columns: usize) {
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if at >= text_columns {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
