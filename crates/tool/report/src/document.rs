//! A report as data: what it shows, and not how it is drawn.
//!
//! ```text
//!   Profile, RunStats, …  ─ reports::NAME::document ─►  Document  ─ text, html, markdown ─►  String
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `value` | a number with its unit; its digits |
//! | `table` | a table; which rows and columns are shown |
//! | `plot` | a plot as data; the unit of an axis |
//! | `bytes` | the use of the bytes of a cache line |
//!
//! A [`Document`] is a title, a lead (the conclusion) and blocks in the order of reading. Cells of
//! its tables hold numbers with their units ([`Value`]), so that a renderer can sum up, align,
//! shorten and leave out without knowledge of the subject.
//!
//! Invariants: rows of a [`Table`] have a cell for each column; blocks without contents
//! ([`Block::is_empty`]) are not drawn, and neither is the heading of a section that has nothing
//! else.

mod bytes;
mod plot;
mod table;
mod value;

pub use bytes::{ByteMap, ByteUse, ByteUser};
pub use plot::{
    Axis, Bar, BarRow, Bars, Chart, Colour, ColumnSeries, Columns, Curves, Legend, Plot, Series, SeriesForm,
};
pub use table::{CellLine, Column, Rest, RowLimit, Table, TableCell, TableRow};
pub use value::{Unit, Value};

pub(crate) use table::row;
pub(crate) use value::NOISY_MARK;

/// A report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document {
    /// What kind of report it is, such as `profile`: the end of a page's title.
    pub kind: String,
    /// The subject of all such reports; a page shows it above the title.
    pub subject: String,
    /// The heading of the whole, mostly the measured command. A terminal shows none if it is empty.
    pub title: String,
    /// Whether the title is a command line.
    pub is_command: bool,
    /// The conclusion and what to do. A page highlights it at its top. On a terminal it stands
    /// under the title, or, if it has a heading, at the end, next to the prompt.
    pub lead: Section,
    /// The report itself.
    pub blocks: Vec<Block>,
    /// Version of the tool that measured; empty if it is not known.
    pub tool_version: String,
}

/// A part of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// A heading with what belongs to it.
    Section(Section),
    /// A paragraph.
    Paragraph(String),
    /// A paragraph that a reader must not miss.
    Strong(String),
    /// Names and values.
    Facts(Vec<(String, String)>),
    /// Sentences, an item each.
    List(Vec<String>),
    /// A command to copy, on a line of its own and never broken.
    Command(String),
    /// Lines to copy, drawn as they are.
    Listing(String),
    /// A table.
    Table(Table),
    /// Plots that belong together. A terminal leaves them out.
    Plots(Vec<Plot>),
    /// Which bytes of a cache line are used, and by whom.
    ByteMap(ByteMap),
    /// Blocks for a reader with room and time: a page shows them, a terminal leaves them out.
    Detail(Vec<Block>),
}

/// A heading with what belongs to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Section {
    /// The heading.
    pub heading: String,
    /// Whether a page shows the heading alone until a reader opens it.
    pub is_folded: bool,
    /// What stands under it.
    pub blocks: Vec<Block>,
}

impl From<Vec<Block>> for Section {
    /// Blocks without a heading.
    fn from(blocks: Vec<Block>) -> Self {
        Self { blocks, ..Self::default() }
    }
}

impl Block {
    /// A section that is drawn if any of `blocks` has contents.
    pub fn section(heading: impl Into<String>, blocks: impl IntoIterator<Item = Self>) -> Self {
        Self::Section(Section { heading: heading.into(), is_folded: false, blocks: blocks.into_iter().collect() })
    }

    /// A section that a page shows folded.
    pub fn folded(heading: impl Into<String>, blocks: impl IntoIterator<Item = Self>) -> Self {
        Self::Section(Section { heading: heading.into(), is_folded: true, blocks: blocks.into_iter().collect() })
    }

    /// A paragraph, if there is a sentence.
    pub fn paragraph(words: impl Into<Option<String>>) -> Self {
        Self::Paragraph(words.into().unwrap_or_default())
    }

    /// A command, if there is one.
    pub fn command(command: Option<impl Into<String>>) -> Self {
        Self::Command(command.map(Into::into).unwrap_or_default())
    }

    /// Facts, those without a value left out.
    pub fn facts<N: Into<String>>(facts: impl IntoIterator<Item = (N, String)>) -> Self {
        let facts = facts.into_iter().filter(|(_, value)| !value.trim().is_empty());
        Self::Facts(facts.map(|(name, value)| (name.into(), value)).collect())
    }

    /// Whether it has no contents.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Section(section) => section.blocks.iter().all(Self::is_empty),
            Self::Paragraph(words) | Self::Strong(words) | Self::Command(words) | Self::Listing(words) => {
                words.is_empty()
            }
            Self::Facts(facts) => facts.is_empty(),
            Self::List(sentences) => sentences.is_empty(),
            Self::Table(table) => table.rows.is_empty(),
            Self::Plots(plots) => plots.is_empty(),
            Self::ByteMap(map) => map.users.is_empty(),
            Self::Detail(blocks) => blocks.iter().all(Self::is_empty),
        }
    }
}

impl From<Table> for Block {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl From<Option<Plot>> for Block {
    fn from(plot: Option<Plot>) -> Self {
        Self::Plots(plot.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_without_contents_is_empty() {
        let empty = [Block::paragraph(None::<String>), Block::List(Vec::new()), Table::default().into(), None.into()];
        let section = Block::section("heading", [Block::section("inner", empty), Block::Detail(Vec::new())]);
        assert!(section.is_empty());
        assert!(!Block::section("heading", [Block::facts([("a", "b".to_owned())])]).is_empty());
        assert!(Block::facts([("a", " ".to_owned())]).is_empty(), "a fact without a value is left out");
    }
}
