//! Reports for a terminal: tables and sentences, no wider than it is.
//!
//! A command to copy stands on a line of its own and is never broken. Text that is not ours (arguments, reasons)
//! has its control characters shown, not sent.

mod collapse;
mod diff;
mod profile;
mod run;
mod translation;

pub use collapse::collapse;
pub use diff::diff;
pub use profile::profile;
pub use run::run;

use crate::shell::printable;
use crate::tables;
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle, presets};

/// How to write for a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Columns that the terminal has.
    pub width: u16,
    /// Whether headings may be set in bold by escape sequences.
    pub colour: bool,
}

impl Default for Style {
    /// 100 columns, no escape sequences.
    fn default() -> Self {
        Self { width: 100, colour: false }
    }
}

impl Style {
    /// `text` behind `lead`, wrapped between words and under where it began. A word that no line holds stays whole.
    #[must_use]
    pub fn hanging(self, lead: &str, text: &str) -> String {
        let indent = lead.chars().count();
        let room = usize::from(self.width).saturating_sub(indent);
        let mut lines = Vec::<String>::new();
        for word in text.split_whitespace() {
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + word.chars().count() <= room => *line += &format!(" {word}"),
                _ => lines.push(word.to_owned()),
            }
        }
        format!("{lead}{}\n", lines.join(&format!("\n{:indent$}", "")))
    }

    fn heading(self, text: &str) -> String {
        let text = printable(text);
        if self.colour { format!("\x1b[1m{text}\x1b[0m\n") } else { format!("{text}\n") }
    }

    /// Sentences, each behind a dash and wrapped under it.
    fn list<S: AsRef<str>>(self, sentences: impl IntoIterator<Item = S>) -> String {
        let mut table = self.table(presets::NOTHING);
        for sentence in sentences {
            table.add_row(["-".to_owned(), printable(sentence.as_ref())]);
        }
        self.without_padding(table)
    }

    /// One paragraph, wrapped.
    fn paragraph(self, text: &str) -> String {
        let mut table = self.table(presets::NOTHING);
        table.add_row([printable(text)]);
        self.without_padding(table)
    }

    /// A table, its numbers set to the right.
    fn rows(self, of: &tables::Table) -> String {
        const RULED: TableStyle = presets::NOTHING.header_separator(LineStyle::new('─', '─', '─', '─'));
        let mut table = self.table(RULED);
        table.set_header(&of.heading);
        for row in &of.rows {
            table.add_row(row.iter().map(|cell| printable(cell)));
        }
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if at >= of.text_columns {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt() + "\n"
    }

    fn table(self, style: TableStyle) -> Table {
        let mut table = Table::new();
        table.load_style(style).set_content_arrangement(ContentArrangement::Dynamic).set_width(self.width.max(40));
        table
    }

    fn without_padding(self, mut table: Table) -> String {
        if table.is_empty() {
            return String::new();
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 1));
        }
        table.trim_fmt() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::Style;

    #[test]
    fn what_hangs_is_wrapped_between_words() {
        let narrow = Style { width: 12, colour: false };
        assert_eq!(
            narrow.hanging("  a  ", "four is too much-for-a-line b"),
            "  a  four is\n     too\n     much-for-a-line\n     b\n"
        );
        assert_eq!(narrow.hanging("  a  ", ""), "  a  \n");
    }
}
