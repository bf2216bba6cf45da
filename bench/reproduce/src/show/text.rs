//! Results for a terminal: a table each, a number with its interval and the paper's below it.

use std::ops::Range;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle, presets};
use fieldstone_report::{quantity::bytes, text::Style};

use super::{
    NOT_IN_TEXT, has_paper, interval, interval_words, is_published, lacks_paper, notes, ours, paper_words, session,
};
use crate::experiment::{Experiment, Scale};
use crate::summary::{Line, Summary};

/// Columns of the terminal that a table's column takes beside its words: the padding and what parts it from the next.
const BETWEEN: usize = 3;
const RULED: TableStyle = presets::NOTHING.header_separator(LineStyle::new('─', '─', '─', '─'));

/// The results of experiments, for a terminal of so many columns.
#[must_use]
pub fn text(summaries: &[Summary], width: u16) -> String {
    let mut all = String::new();
    for summary in summaries {
        for words in [&format!("{}: {}", summary.name, summary.title), summary.source, summary.about] {
            all += &paragraph(words, width);
        }
        all.push('\n');
        for table in &summary.tables {
            let heading: Vec<String> =
                [table.heading.to_owned()].into_iter().chain(table.columns.iter().cloned()).collect();
            all += &numbers(&heading, width, |columns| table.lines.iter().map(|line| row(line, columns)).collect());
            for note in notes(&table.columns, &table.lines) {
                all += &paragraph(&note, width);
            }
            all.push('\n');
        }
        for of in &summary.sessions {
            all += &paragraph(&format!("measured {}", session(summary, of)), width);
        }
        all.push('\n');
    }
    all
}

fn paragraph(words: &str, width: u16) -> String {
    Style { width, colour: false }.hanging("", words)
}

/// A table, and again with further columns where not all fit beside the first; `cells` are those of its lines in such columns.
fn numbers(heading: &[String], width: u16, cells: impl Fn(&Range<usize>) -> Vec<Vec<String>>) -> String {
    let part = |columns: Range<usize>| {
        let mut rows = new_table([&heading[..1], &heading[columns.clone()]].concat(), u16::MAX);
        rows.add_rows(cells(&columns));
        align(&mut rows, 1);
        format!("{}\n\n", rows.trim_fmt())
    };
    let all = cells(&(1..heading.len()));
    fitting(heading, &all, width.into()).into_iter().map(part).collect()
}

/// Ranges of columns after the first that fit beside it in so many places, at least one each: a number is never broken.
fn fitting(heading: &[String], lines: &[Vec<String>], width: usize) -> Vec<Range<usize>> {
    let widest = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column)).chain(heading.get(column));
        cells.flat_map(|cell| cell.lines()).map(|line| line.chars().count()).max().unwrap_or(0) + BETWEEN
    };
    let (mut ranges, mut start, mut used) = (Vec::new(), 1, 1 + widest(0));
    for column in 1..heading.len() {
        if used + widest(column) > width && column > start {
            ranges.push(start..column);
            (start, used) = (column, 1 + widest(0));
        }
        used += widest(column);
    }
    ranges.push(start..heading.len());
    ranges
}

/// A line: the name, and in each of `columns` (0 is the name's) the number, its interval and the paper's, where any of these has one.
fn row(line: &Line, columns: &Range<usize>) -> Vec<String> {
    let lacks_paper = lacks_paper(line);
    let entries = line.entries.get(columns.start - 1..columns.end - 1).unwrap_or(&line.entries).to_vec();
    let line = &Line { row: line.row.clone(), shows: line.shows, entries };
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
    } else if lacks_paper {
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
    let heading = ["name", "what, and from where", "cells", "time", "memory", "disk"].map(str::to_owned);
    let mut rows = new_table(heading, width);
    for experiment in experiments {
        let needs = experiment.needs;
        rows.add_row([
            experiment.name.to_owned(),
            format!("{}\n{}", experiment.title, experiment.source),
            (experiment.cells)(Scale::Full).len().to_string(),
            format!("{} min", needs.minutes),
            bytes(needs.memory_bytes),
            if needs.disk_bytes == 0 { "none".to_owned() } else { bytes(needs.disk_bytes) },
        ]);
    }
    align(&mut rows, 2);
    // A name is there to be typed: the words beside it are wrapped.
    for column in [0, 2, 3, 4, 5] {
        rows.column_mut(column).map(|column| column.set_constraint(ColumnConstraint::ContentWidth));
    }
    let about =
        "Time: in full; with --quick each takes a minute or two. Cells that memory does not hold are skipped by name.";
    let mut all = format!("{}\n\n{}", rows.trim_fmt(), paragraph(about, width));
    if with_cells {
        let cells = experiments.iter().flat_map(|experiment| (experiment.cells)(Scale::Full));
        all.extend(cells.map(|cell| format!("{}  {}\n", cell.id, bytes(cell.memory_bytes))));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::all;

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn the_list_is_no_wider_than_the_terminal_and_no_name_is_broken() {
        let text = list(&all(), false, 80);
        assert!(widest(&text) <= 80, "{text}");
        for experiment in all() {
            assert!(text.contains(&format!("\n {} ", experiment.name)), "{}:\n{text}", experiment.name);
        }
    }

    #[test]
    fn a_table_of_numbers_is_split_before_it_is_too_wide() {
        let heading = ["a", "4KB", "4MB", "256MB"].map(str::to_owned);
        let line = ["a row", "0", "100.0 %", "0.00000191"].map(str::to_owned);
        let cells = |columns: &Range<usize>| vec![[&line[..1], &line[columns.clone()]].concat()];
        for width in 22..60 {
            assert!(widest(&numbers(&heading, width, cells)) <= width.into(), "{width}");
        }
    }
}
