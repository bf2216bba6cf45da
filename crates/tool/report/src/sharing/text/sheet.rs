//! Lines for a terminal, no wider than it is, what belongs to a heading set in below it.
//!
//! Text that is not ours has its control characters shown, not sent. Tables make room by their widest column of text, whose
//! cells are shortened and never broken; what is verbatim keeps its lines as they are.

use crate::shell::printable;
use crate::tables::Table;
use crate::text::Style;
use crate::translation::sites::{shortened, shortened_path};

/// What stands below a heading is set in by this.
const INDENT: usize = 2;
/// Between two columns.
const GAP: &str = "  ";
/// The narrowest terminal, as for all reports.
const LEAST_WIDTH: usize = 40;
/// Letters that a cell keeps, however narrow the terminal is.
const LEAST_LETTERS: usize = 8;

/// A text that grows downwards.
pub(super) struct Sheet {
    text: String,
    width: usize,
    bold: bool,
    indent: usize,
}

impl Sheet {
    pub(super) fn new(style: Style) -> Self {
        let width = usize::from(style.width).max(LEAST_WIDTH);
        Self { text: String::new(), width, bold: style.colour, indent: 0 }
    }

    /// Columns that a line has here.
    pub(super) fn room(&self) -> usize {
        self.width - self.indent
    }

    /// The first line; what follows is not set in.
    pub(super) fn title(&mut self, text: &str) {
        let text = one_line(text);
        self.text += &if self.bold { format!("\x1b[1m{text}\x1b[0m\n") } else { format!("{text}\n") };
    }

    /// A heading after an empty line; what follows is set in.
    pub(super) fn heading(&mut self, text: &str) {
        self.indent = 0;
        self.gap();
        for line in wrapped(&one_line(text), self.room()) {
            self.title(&line);
        }
        self.indent = INDENT;
    }

    /// An empty line, unless there is one.
    pub(super) fn gap(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    pub(super) fn paragraph(&mut self, text: &str) {
        for line in wrapped(&one_line(text), self.room()) {
            self.row(&line);
        }
    }

    /// A sentence of a list: behind a dash, wrapped under it.
    pub(super) fn item(&mut self, text: &str) {
        for (at, line) in wrapped(&one_line(text), self.room() - 2).into_iter().enumerate() {
            self.row(&format!("{} {line}", if at == 0 { "-" } else { " " }));
        }
    }

    /// A line that fits.
    pub(super) fn row(&mut self, line: &str) {
        self.text += &format!("{:1$}{2}\n", "", self.indent, line.trim_end());
    }

    /// Lines to be copied, set in and never broken.
    pub(super) fn verbatim(&mut self, text: &str) {
        for line in printable(text).lines() {
            self.text += &format!("{:1$}{line}\n", "", self.indent + INDENT + 2);
        }
    }

    /// A table; nothing, if it has no rows.
    pub(super) fn table(&mut self, of: &Table) {
        if of.rows.is_empty() {
            return;
        }
        let cells = |row: &Vec<String>| row.iter().map(|cell| one_line(cell)).collect::<Vec<_>>();
        let rows: Vec<Vec<String>> = std::iter::once(&of.heading).chain(&of.rows).map(cells).collect();
        let widths = self.widths(&rows, of.text_columns);
        for (at, row) in rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                let cell = fitting(cell, width);
                if column < of.text_columns { format!("{cell:width$}") } else { format!("{cell:>width$}") }
            });
            let line = cells.collect::<Vec<_>>().join(GAP);
            self.row(&line);
            if at == 0 {
                self.row(&"─".repeat(widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)));
            }
        }
    }

    /// How wide the columns are: as wide as their cells, the widest column of text narrower until all fit.
    fn widths(&self, rows: &[Vec<String>], text_columns: usize) -> Vec<usize> {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widest = |column| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell: &String| letters(cell)).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..columns).map(widest).collect();
        let room = self.room().saturating_sub(GAP.len() * columns.saturating_sub(1));
        while widths.iter().sum::<usize>() > room {
            let Some(width) = widths.iter_mut().take(text_columns).max().filter(|width| **width > LEAST_LETTERS) else {
                break;
            };
            *width -= 1;
        }
        widths
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

/// A cell in so many letters: of a path the end, of a name the beginning and the end.
fn fitting(cell: &str, width: usize) -> String {
    if cell.contains('/') { shortened_path(cell, width) } else { shortened(cell, width) }
}

/// Without control characters and line ends.
fn one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// Lines of so many letters at most, broken between words, and within a word only if it is longer than a line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ').flat_map(|word| pieces(word, width)) {
        let line = lines.last_mut().expect("there is always one");
        if line.is_empty() {
            *line = word;
        } else if letters(line) + 1 + letters(&word) <= width {
            *line += &format!(" {word}");
        } else {
            lines.push(word);
        }
    }
    lines
}

fn pieces(word: &str, width: usize) -> Vec<String> {
    let letters: Vec<char> = word.chars().collect();
    letters.chunks(width.max(1)).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet(width: u16) -> Sheet {
        Sheet::new(Style { width, colour: false })
    }

    fn table(rows: &[[&str; 3]]) -> Table {
        let cells = |row: &[&str; 3]| row.map(str::to_owned).to_vec();
        Table { heading: cells(&["name", "where", "n"]), rows: rows.iter().map(cells).collect(), text_columns: 2 }
    }

    #[test]
    fn words_are_kept_whole_where_a_line_has_room() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a abcdefgh b", 4), ["a", "abcd", "efgh", "b"]);
        assert_eq!(wrapped("", 4), [""]);
    }

    #[test]
    fn items_and_headings_set_in_what_belongs_to_them() {
        let mut sheet = sheet(40);
        sheet.title("title");
        sheet.heading("heading");
        sheet.item("a sentence that is longer than the line has room");
        sheet.verbatim("struct {\n};\n");
        let expected =
            "title\n\nheading\n  - a sentence that is longer than the\n    line has room\n      struct {\n      };\n";
        assert_eq!(sheet.finish(), expected);
    }

    #[test]
    fn a_table_fits_by_its_widest_text_and_numbers_stand_to_the_right() {
        let mut sheet = sheet(40);
        sheet.table(&table(&[
            ["a_very_long_name_that_goes_on", "/usr/src/deep/below/file.c:12", "1"],
            ["b", "c", "22222"],
        ]));
        let text = sheet.finish();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 40), "{text}");
        assert!(lines[2].contains("…") && lines[2].contains("file.c:12") && lines[2].ends_with("    1"), "{text}");
        assert!(lines[1].starts_with('─') && lines[3].ends_with("22222"), "{text}");
    }

    #[test]
    fn control_characters_and_line_ends_are_shown() {
        let mut sheet = sheet(60);
        sheet.title("a\x1b[2J\nb");
        sheet.item("\x07");
        sheet.verbatim("x\x1b[0m\ny");
        sheet.table(&table(&[["\x1b", "\n", "\r"]]));
        let text = sheet.finish();
        assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
        assert!(text.starts_with("a\\x1b[2J\\nb\n"), "{text}");
    }
}
