//! A table for a terminal.
//!
//! Where it is too wide, room is made in this order, each step only as far as needed:
//! 1. columns that may be omitted are omitted;
//! 2. columns of text shrink to the width of a readable name;
//! 3. headings of numbers are broken between words;
//! 4. columns of text shrink further;
//! 5. the table is split: the first column stands before each part of the others.
//!
//! A number is never broken. Text is wrapped, names of functions and paths are shortened.

use super::Sheet;
use super::wrap::{letters, one_line, wrapped};
use crate::document::{CellLine, Column, Table, TableCell, TableRow};
use crate::translation::names::plain;
use crate::translation::sites::{shortened, shortened_path};
use std::ops::RangeInclusive;

/// Between two columns.
const GAP: &str = "  ";
/// Letters that a column of text has on the narrowest terminal.
const LEAST_LETTERS: usize = 12;
/// Letters that names have before other columns give way: the more the longer they are.
const NAME_LETTERS: RangeInclusive<usize> = 26..=44;

/// Draws the table with its caption and, where rows are left out, a sentence on these.
pub(super) fn draw(table: &Table, sheet: &mut Sheet) {
    let (rows, rest) = table.on_terminal();
    let layout = TableLayout::new(&table.columns, &rows, sheet.room());
    for (part, shown) in layout.parts.iter().enumerate() {
        if part > 0 {
            sheet.row("");
        }
        let line = |cells: Vec<Vec<String>>, sheet: &mut Sheet| {
            for at in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                let words = cells.iter().zip(shown).map(|(lines, &column)| {
                    let (line, width) = (lines.get(at).map_or("", String::as_str), layout.widths[column]);
                    if table.columns[column].is_number { format!("{line:>width$}") } else { format!("{line:width$}") }
                });
                sheet.row(&words.collect::<Vec<_>>().join(GAP));
            }
        };
        let headings = shown.iter().map(|&at| wrapped(&one_line(&table.columns[at].heading), layout.widths[at]));
        line(headings.collect(), sheet);
        sheet.row(&"─".repeat(width_of(shown, &layout.widths)));
        for row in &rows {
            let cells = shown.iter().map(|&at| cell_lines(&row.cells[at], layout.widths[at], &table.columns[at]));
            line(cells.collect(), sheet);
        }
    }
    let is_shown = |at: usize| layout.parts.iter().flatten().any(|&shown| shown == at);
    let explanations = table.columns.iter().enumerate().filter(|(at, _)| is_shown(*at));
    let words =
        std::iter::once(&rest).chain([&table.caption]).chain(explanations.map(|(_, column)| &column.explanation));
    words.filter(|words| !words.is_empty()).for_each(|words| sheet.paragraph(words));
}

/// Columns of the terminal that columns of the table take.
fn width_of(columns: &[usize], widths: &[usize]) -> usize {
    columns.iter().map(|&at| widths[at]).sum::<usize>() + GAP.len() * columns.len().saturating_sub(1)
}

/// Which columns are shown, in how many parts, and how wide they are.
struct TableLayout {
    parts: Vec<Vec<usize>>,
    widths: Vec<usize>,
}

impl TableLayout {
    fn new(columns: &[Column], rows: &[TableRow], room: usize) -> Self {
        let widest = |at: usize, of: fn(&CellLine) -> usize| {
            rows.iter().filter_map(|row| row.cells.get(at)).flat_map(|cell| &cell.0).map(of).max().unwrap_or(0)
        };
        let heading = |at: usize| letters(&one_line(&columns[at].heading));
        let all = 0..columns.len();
        let mut widths: Vec<usize> = all.clone().map(|at| widest(at, line_letters).max(heading(at))).collect();
        // What a column keeps as long as others can give way.
        let comfortable: Vec<usize> = all
            .clone()
            .map(|at| widest(at, name_letters).clamp(*NAME_LETTERS.start(), *NAME_LETTERS.end()).min(widths[at]))
            .collect();
        let mut shown: Vec<usize> = all.collect();
        let is_text = |at: usize| !columns[at].is_number;
        loop {
            let needed = |at: usize| if is_text(at) { comfortable[at] } else { widths[at] };
            let total = shown.iter().map(|&at| needed(at)).sum::<usize>() + GAP.len() * shown.len().saturating_sub(1);
            let omitted = shown.iter().copied().max_by_key(|&at| columns[at].order_of_omission);
            match omitted.filter(|&at| columns[at].order_of_omission > 0 && total > room) {
                Some(omitted) => shown.retain(|&at| at != omitted),
                None => break,
            }
        }
        let word = |at: usize| {
            let words = one_line(&columns[at].heading);
            widest(at, line_letters).max(words.split(' ').map(letters).max().unwrap_or(0))
        };
        let shrink = |widths: &mut Vec<usize>, of: &dyn Fn(usize) -> bool, least: &dyn Fn(usize) -> usize| {
            while width_of(&shown, widths) > room {
                let wider = shown.iter().copied().filter(|&at| of(at) && widths[at] > least(at));
                let Some(widest) = wider.max_by_key(|&at| widths[at]) else { break };
                widths[widest] -= 1;
            }
        };
        shrink(&mut widths, &is_text, &|at| comfortable[at]);
        shrink(&mut widths, &|at| !is_text(at), &word);
        shrink(&mut widths, &is_text, &|at| comfortable[at].min(LEAST_LETTERS));
        Self { parts: parts(&shown, &widths, room), widths }
    }
}

/// The columns, split where not all fit beside the first one.
fn parts(shown: &[usize], widths: &[usize], room: usize) -> Vec<Vec<usize>> {
    let Some((&first, others)) = shown.split_first() else { return Vec::new() };
    let mut parts = vec![vec![first]];
    for &column in others {
        let last = parts.len() - 1;
        parts[last].push(column);
        if width_of(&parts[last], widths) > room && parts[last].len() > 2 {
            parts[last].pop();
            parts.push(vec![first, column]);
        }
    }
    parts
}

/// Letters of a line that is shown in full.
fn line_letters(line: &CellLine) -> usize {
    match line {
        CellLine::Function(name) => letters(&one_line(&plain(name))),
        // It takes what room there is.
        CellLine::Caller { .. } => 0,
        CellLine::Quiet(words) => letters(&one_line(words)) + 2,
        other => letters(&one_line(&other.to_string())),
    }
}

/// Letters of names, of which more than a beginning or an end has to be seen.
fn name_letters(line: &CellLine) -> usize {
    if matches!(line, CellLine::Path(_)) { 0 } else { line_letters(line) }
}

fn cell_lines(cell: &TableCell, width: usize, column: &Column) -> Vec<String> {
    let lines = cell.0.iter().flat_map(|line| match line {
        CellLine::Function(name) => vec![shortened(&one_line(&plain(name)), width)],
        CellLine::Path(path) => vec![shortened_path(&one_line(path), width)],
        CellLine::Caller { name, place } => vec![caller(&one_line(name), &one_line(place), width)],
        other if column.is_number => vec![one_line(&other.to_string())],
        CellLine::Quiet(words) => {
            let lines = wrapped(&one_line(words), width.saturating_sub(2));
            lines.into_iter().map(|line| format!("  {line}")).collect()
        }
        other => wrapped(&one_line(&other.to_string()), width),
    });
    lines.collect()
}

/// `  by main (src/main.c:7)`; without the place where there is no room for its file's name.
fn caller(name: &str, place: &str, width: usize) -> String {
    let words = format!("  by {}", shortened(&plain(name), width.saturating_sub(5)));
    let room = width.saturating_sub(letters(&words) + 3);
    let file = place.rfind('/').map_or(place, |at| &place[at..]).chars().count() + 1;
    if place.is_empty() || room < file { words } else { format!("{words} ({})", shortened_path(place, room)) }
}

#[cfg(test)]
mod tests {
    use crate::document::{CellLine, Column, Document, Table, TableCell, row};
    use crate::render::text::{Style, render};

    fn text(table: Table, width: u16) -> String {
        render(&Document { blocks: vec![table.into()], ..Document::default() }, Style { width, colour: false })
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn text_gives_way_to_numbers_which_stand_to_the_right() {
        let path = |path: &str| TableCell::from(CellLine::Path(path.to_owned()));
        let name = |name: &str| TableCell::from(CellLine::Function(name.to_owned()));
        let table = Table::new([Column::text("name"), Column::text("where"), Column::number("n")]).with_rows([
            row![name("a_very_long_name_that_goes_on"), path("/usr/src/deep/below/file.c:12"), "1"],
            row![name("b"), path("c"), "22222"],
        ]);
        let text = text(table, 40);
        let lines: Vec<&str> = text.lines().collect();
        assert!(widest(&text) <= 40, "{text}");
        assert!(lines[2].contains('…') && lines[2].contains("file.c:12") && lines[2].ends_with("    1"), "{text}");
        assert!(lines[1].starts_with('─') && lines[3].ends_with("22222"), "{text}");
    }

    #[test]
    fn words_are_wrapped_and_headings_of_numbers_broken_before_that() {
        let columns = [Column::text("reason"), Column::number("of the time"), Column::number("requested")];
        let table =
            Table::new(columns).with_rows([row!["a file mapping, which is left to the kernel", "1.0 %", "33 MiB"]]);
        let text = text(table, 40);
        assert!(widest(&text) <= 40 && text.contains("kernel") && text.contains("33 MiB"), "{text}");
        assert!(!text.contains("of the time") && !text.contains("requested"), "{text}");
    }

    #[test]
    fn columns_are_omitted_in_their_order_and_explained_where_they_are_shown() {
        let number = |heading: &str, order| {
            Column::number(heading).explained(format!("{heading} is explained.")).omissible(order)
        };
        let name = || TableCell::from(CellLine::Function("a_name_of_twenty_six_letters".into()));
        let columns = [Column::text("name"), number("always", 0), number("first", 2), number("second", 1)];
        let table = Table::new(columns).with_rows([row![name(), "1", "2", "3"]]);
        let wide = text(table.clone(), 100);
        assert!(wide.contains("first is explained.") && wide.contains("second is explained."), "{wide}");
        let narrow = text(table, 46);
        assert!(narrow.contains("second") && !narrow.contains("first"), "{narrow}");
    }

    #[test]
    fn a_table_of_numbers_is_split_before_it_is_too_wide() {
        let columns = ["4KB", "4MB", "256MB", "4GB", "16GB"].map(Column::number);
        let columns = [Column::text("")].into_iter().chain(columns);
        let row = row!["a row", "0", "100.0 %", "0.00000191", "0.00000191", "range 3.01 – 3.02"];
        let table = Table::new(columns).with_rows([row]);
        for width in 40..80 {
            let text = text(table.clone(), width);
            assert!(widest(&text) <= width.into(), "{width}\n{text}");
            assert!(text.contains("range 3.01 – 3.02"), "a number is never broken\n{text}");
        }
        assert_eq!(text(table, 40).matches("a row").count(), 2);
    }
}
