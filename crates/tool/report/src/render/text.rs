//! A document for a terminal, no wider than it is.
//!
//! ```text
//! title
//! lead: paragraphs, and items
//! - behind a dash
//!
//!     a command to copy, never broken
//!
//! Heading
//!   what belongs to it, set in by two columns
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `table` | the widths of columns; what is shortened |
//! | `wrap` | line breaks |
//! | `bytes` | the map of a cache line |
//!
//! Plots and [`Block::Detail`] are left out. Text of a measured program has its control characters
//! shown, not sent.

mod bytes;
mod table;
mod wrap;

use crate::document::{Block, Document};
use crate::shell::printable;
use wrap::{one_line, wrapped};

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
    /// `text` behind `lead`, wrapped between words and under where it began. A word that no line
    /// holds stays whole.
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
}

/// `document` as text.
pub fn render(document: &Document, style: Style) -> String {
    let mut sheet = Sheet::new(style);
    if !document.title.is_empty() {
        sheet.line_in_bold(&one_line(&document.title));
        sheet.before = Spacing::Prose;
    }
    let lead = &document.lead;
    if lead.heading.is_empty() && !lead.blocks.is_empty() {
        sheet.blocks(&lead.blocks);
        sheet.before = Spacing::Apart;
    }
    sheet.blocks(&document.blocks);
    if !lead.heading.is_empty() {
        sheet.section(&lead.heading, &lead.blocks);
    }
    sheet.text
}

/// Columns by which the contents of a section are set in.
const INDENT: usize = 2;
/// Columns by which commands and listings are set in.
const VERBATIM_INDENT: usize = 4;
/// The narrowest terminal.
const LEAST_WIDTH: usize = 40;
/// The widest column of the names of facts.
const FACT_NAME_WIDTH: usize = 24;

/// How what was written last keeps its distance from what follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spacing {
    /// A heading, or a map of bytes: what follows belongs to it.
    None,
    /// Prose: more prose follows without an empty line.
    Prose,
    /// All else.
    Apart,
}

/// The text as it grows downwards.
struct Sheet {
    text: String,
    width: usize,
    bold: bool,
    indent: usize,
    before: Spacing,
}

impl Sheet {
    fn new(style: Style) -> Self {
        let width = usize::from(style.width).max(LEAST_WIDTH);
        Self { text: String::new(), width, bold: style.colour, indent: 0, before: Spacing::None }
    }

    /// Columns that a line has.
    fn room(&self) -> usize {
        self.width - self.indent
    }

    fn blocks(&mut self, blocks: &[Block]) {
        for block in blocks.iter().filter(|block| !block.is_empty()) {
            self.block(block);
        }
    }

    fn block(&mut self, block: &Block) {
        match block {
            Block::Section(section) => self.section(&section.heading, &section.blocks),
            Block::Paragraph(words) | Block::Strong(words) => {
                self.begin(Spacing::Prose);
                self.paragraph(words);
            }
            Block::List(sentences) => {
                self.begin(Spacing::Prose);
                sentences.iter().for_each(|sentence| self.hanging("- ", sentence));
            }
            Block::Facts(facts) => {
                self.begin(Spacing::Apart);
                self.facts(facts);
            }
            Block::Command(words) | Block::Listing(words) => {
                self.begin(Spacing::Apart);
                for line in printable(words).lines() {
                    self.text += &format!("{:VERBATIM_INDENT$}{line}\n", "");
                }
            }
            Block::Table(table) => {
                self.begin(Spacing::Apart);
                table::draw(table, self);
            }
            Block::ByteMap(map) => {
                self.begin(Spacing::Apart);
                bytes::draw(map, self);
                // The table of the map follows it.
                self.before = Spacing::None;
            }
            Block::Plots(_) | Block::Detail(_) => {}
        }
    }

    fn section(&mut self, heading: &str, blocks: &[Block]) {
        let is_shown = |block: &Block| !block.is_empty() && !matches!(block, Block::Plots(_) | Block::Detail(_));
        if !blocks.iter().any(is_shown) {
            return;
        }
        let outer = self.indent;
        self.begin(Spacing::Apart);
        for line in wrapped(&one_line(heading), self.room()) {
            self.line_in_bold(&line);
        }
        self.before = Spacing::None;
        self.indent = INDENT;
        self.blocks(blocks);
        self.indent = outer;
        self.before = Spacing::Apart;
    }

    /// An empty line where what was written before and what begins now need one.
    fn begin(&mut self, kind: Spacing) {
        let is_apart = self.before == Spacing::Apart || (self.before == Spacing::Prose && kind == Spacing::Apart);
        if is_apart && !self.text.is_empty() {
            self.text.push('\n');
        }
        self.before = kind;
    }

    fn line_in_bold(&mut self, line: &str) {
        let line = if self.bold { format!("\x1b[1m{line}\x1b[0m") } else { line.to_owned() };
        self.row(&line);
    }

    fn paragraph(&mut self, words: &str) {
        for line in words.lines().flat_map(|line| wrapped(&one_line(line), self.room())).collect::<Vec<_>>() {
            self.row(&line);
        }
    }

    /// Words behind `lead`, wrapped under where they began. A line of the words begins a line.
    fn hanging(&mut self, lead: &str, words: &str) {
        let indent = lead.chars().count();
        let room = self.room().saturating_sub(indent);
        let lines = words.trim_end().split('\n').flat_map(|line| wrapped(&one_line(line), room));
        for (at, line) in lines.collect::<Vec<_>>().iter().enumerate() {
            let lead = if at == 0 { lead } else { "" };
            self.row(&format!("{lead:indent$}{line}"));
        }
    }

    fn facts(&mut self, facts: &[(String, String)]) {
        let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).min(FACT_NAME_WIDTH);
        for (name, value) in facts {
            self.hanging(&format!("{:width$}  ", one_line(name)), value);
        }
    }

    /// A line that fits.
    fn row(&mut self, line: &str) {
        self.text += &format!("{:1$}{2}\n", "", self.indent, line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{ByteMap, ByteUse, ByteUser, Column, Table, row};

    fn text(blocks: Vec<Block>, width: u16) -> String {
        let document = Document { title: "title".into(), blocks, ..Document::default() };
        render(&document, Style { width, colour: false })
    }

    #[test]
    fn hanging_words_are_wrapped_under_where_they_began() {
        let narrow = Style { width: 12, colour: false };
        assert_eq!(
            narrow.hanging("  a  ", "four is too much-for-a-line b"),
            "  a  four is\n     too\n     much-for-a-line\n     b\n"
        );
        assert_eq!(narrow.hanging("  a  ", ""), "  a  \n");
    }

    #[test]
    fn items_and_headings_set_in_what_belongs_to_them() {
        let item = "a sentence that is longer than the line has room";
        let section =
            Block::section("heading", [Block::List(vec![item.into()]), Block::Listing("struct {\n};\n".into())]);
        assert_eq!(
            text(vec![section, Block::section("empty", [])], 40),
            "title\n\nheading\n  - a sentence that is longer than the\n    line has room\n\n    struct {\n    };\n"
        );
    }

    #[test]
    fn prose_is_set_solid_and_all_else_apart() {
        let facts = Block::facts([("name", "value".to_owned()), ("long name", "value".to_owned())]);
        let prose = |words: &str| Block::Paragraph(words.into());
        let blocks = vec![prose("one"), prose("two"), Block::Command("run".into()), prose("three"), facts];
        assert_eq!(text(blocks, 40), "title\none\ntwo\n\n    run\n\nthree\n\nname       value\nlong name  value\n");
    }

    #[test]
    fn control_characters_are_shown() {
        let evil = "\x1b[2J\r\x07";
        let table = Table::new([Column::text(evil), Column::number(evil)]).with_rows([row![evil, evil]]);
        let user = ByteUser { letter: 'A', uses: vec![ByteUse::Read; 8], ..ByteUser::default() };
        let blocks = vec![
            Block::section(evil, [Block::List(vec![evil.into()]), table.with_caption(evil).into()]),
            Block::Command(evil.into()),
            Block::Facts(vec![(evil.into(), evil.into())]),
            Block::ByteMap(ByteMap { bytes: 8, users: vec![user], description: evil.into() }),
        ];
        let text = render(&Document { title: evil.into(), blocks, ..Document::default() }, Style::default());
        assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
        assert!(text.starts_with("\\x1b[2J\\x0d\\x07\n"), "{text}");
    }

    #[test]
    fn headings_are_bold_where_the_terminal_has_it() {
        let document = Document { title: "title".into(), ..Document::default() };
        assert_eq!(render(&document, Style { colour: true, ..Style::default() }), "\x1b[1mtitle\x1b[0m\n");
    }
}
