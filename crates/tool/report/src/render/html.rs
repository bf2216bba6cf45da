//! A document as one self-contained page: no script, nothing fetched, readable in light and dark.
//!
//! Its policy (`Content-Security-Policy`) allows its own styles and `data:` images, and nothing
//! else, so that a page made from an untrusted file can do no more than show it. The template
//! escapes what it is given; only the plots are passed as markup, and they escape what they write.
//!
//! The tree of blocks is laid flat for the template: a section is a start, what stands in it, and
//! an end.

mod bytes;

use super::plot;
use crate::Error;
use crate::document::{Block, CellLine, Document, Legend, Plot, Section, Table, TableCell};
use crate::shell::printable;
use crate::translation::sites::{shortened, shortened_path};
use bytes::MapRow;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};
use serde::Serialize;

/// Letters of a function's name in a table: of a longer one the middle is left out.
const NAME_LETTERS: usize = 72;
/// Letters of a path, of which the end is shown.
const PATH_LETTERS: usize = 48;

/// The page of `document`: a whole HTML document. Takes some milliseconds for each plot.
///
/// # Errors
/// [`Error::Plot`] and [`Error::Page`]; what could be loaded causes neither.
pub fn render(document: &Document) -> Result<String, Error> {
    let mut flat = FlatBlocks::default();
    flat.blocks(&document.blocks, 2)?;
    let blocks = std::mem::take(&mut flat.blocks);
    flat.blocks(&document.lead.blocks, 2)?;
    let page = PageData {
        kind: printable(&document.kind),
        subject: printable(&document.subject),
        title: printable(&document.title),
        is_command: document.is_command,
        lead: flat.blocks,
        blocks,
        tool_version: printable(&document.tool_version),
    };
    let failed = |source| Error::Page { source };
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?);
    // The name's ending turns escaping on.
    environment.add_template("document.html", include_str!("../../templates/document.html")).map_err(failed)?;
    environment
        .get_template("document.html")
        .and_then(|template| template.render(Value::from(Serde(page))))
        .map_err(failed)
}

#[derive(Serialize)]
struct PageData {
    kind: String,
    subject: String,
    title: String,
    is_command: bool,
    lead: Vec<Drawn>,
    blocks: Vec<Drawn>,
    tool_version: String,
}

/// A block as the template takes it.
#[derive(Serialize)]
#[serde(tag = "block", rename_all = "kebab-case")]
enum Drawn {
    Start { heading: String, level: u8, id: usize, is_folded: bool },
    End { is_folded: bool },
    Paragraph { words: String, is_strong: bool },
    Facts { facts: Vec<(String, String)> },
    List { sentences: Vec<String> },
    Command { words: String },
    Listing { words: String },
    Table { caption: String, headings: Vec<Heading>, rows: Vec<Vec<DrawnCell>>, rest: String },
    Plots { plots: Vec<DrawnPlot> },
    ByteMap { legend: Vec<DrawnLegend>, description: String, rows: Vec<MapRow> },
}

#[derive(Serialize)]
struct Heading {
    words: String,
    is_number: bool,
}

/// A cell: its first line, and what stands below it in small letters.
#[derive(Serialize)]
struct DrawnCell {
    first: String,
    is_name: bool,
    is_quoted: bool,
    others: Vec<(String, bool)>,
}

#[derive(Serialize)]
struct DrawnPlot {
    svg: Value,
    caption: String,
    legend: Vec<DrawnLegend>,
}

#[derive(Serialize)]
struct DrawnLegend {
    css: String,
    name: String,
}

/// The blocks one after the other.
#[derive(Default)]
struct FlatBlocks {
    blocks: Vec<Drawn>,
    sections: usize,
}

impl FlatBlocks {
    fn blocks(&mut self, blocks: &[Block], level: u8) -> Result<(), Error> {
        blocks.iter().filter(|block| !block.is_empty()).try_for_each(|block| self.block(block, level))
    }

    fn block(&mut self, block: &Block, level: u8) -> Result<(), Error> {
        let paragraph = |words: &String, is_strong| Drawn::Paragraph { words: printable(words), is_strong };
        let drawn = match block {
            Block::Section(section) => return self.section(section, level),
            Block::Detail(blocks) => return self.blocks(blocks, level),
            Block::Paragraph(words) => paragraph(words, false),
            Block::Strong(words) => paragraph(words, true),
            Block::Facts(facts) => {
                Drawn::Facts { facts: facts.iter().map(|(name, value)| (printable(name), printable(value))).collect() }
            }
            Block::List(sentences) => Drawn::List { sentences: sentences.iter().map(|of| printable(of)).collect() },
            Block::Command(words) => Drawn::Command { words: printable(words) },
            Block::Listing(words) => Drawn::Listing { words: printable(words) },
            Block::Table(table) => self::table(table),
            Block::Plots(plots) => {
                Drawn::Plots { plots: plots.iter().map(drawn_plot).collect::<Result<Vec<_>, Error>>()? }
            }
            Block::ByteMap(map) => Drawn::ByteMap {
                legend: map.users.iter().map(bytes::legend).map(|of| drawn_legend(&of)).collect(),
                description: printable(&map.description),
                rows: bytes::rows(map),
            },
        };
        self.blocks.push(drawn);
        Ok(())
    }

    fn section(&mut self, Section { heading, is_folded, blocks }: &Section, level: u8) -> Result<(), Error> {
        self.sections += 1;
        let (is_folded, id) = (*is_folded, self.sections);
        self.blocks.push(Drawn::Start { heading: printable(heading), level, id, is_folded });
        self.blocks(blocks, (level + 1).min(4))?;
        self.blocks.push(Drawn::End { is_folded });
        Ok(())
    }
}

fn table(table: &Table) -> Drawn {
    let (rows, rest) = table.on_page();
    let explanations = table.columns.iter().map(|column| &column.explanation);
    let words: Vec<&str> = std::iter::once(&table.caption)
        .chain(explanations)
        .map(String::as_str)
        .filter(|words| !words.is_empty())
        .collect();
    Drawn::Table {
        caption: printable(&words.join(" ")),
        headings: table
            .columns
            .iter()
            .map(|column| Heading { words: printable(&column.heading), is_number: column.is_number })
            .collect(),
        rows: rows.iter().map(|row| row.cells.iter().map(drawn_cell).collect()).collect(),
        rest: printable(&rest),
    }
}

fn drawn_cell(TableCell(lines): &TableCell) -> DrawnCell {
    let words = |line: &CellLine| match line {
        CellLine::Function(name) => shortened(&printable(name), NAME_LETTERS),
        CellLine::Path(path) => shortened_path(&printable(path), PATH_LETTERS),
        other => printable(&other.to_string()),
    };
    let is_quoted = |line: &CellLine| matches!(line, CellLine::Quoted(_));
    let (first, others) = lines.split_first().map_or((None, lines.as_slice()), |(first, others)| (Some(first), others));
    DrawnCell {
        first: first.map(words).unwrap_or_default(),
        is_name: matches!(first, Some(CellLine::Function(_))),
        is_quoted: first.is_some_and(is_quoted),
        others: others.iter().map(|line| (words(line), is_quoted(line))).collect(),
    }
}

fn drawn_plot(plot: &Plot) -> Result<DrawnPlot, Error> {
    Ok(DrawnPlot {
        svg: Value::from_safe_string(plot::svg(plot)?),
        caption: printable(&plot.caption),
        legend: plot.legend.iter().map(drawn_legend).collect(),
    })
}

fn drawn_legend(of: &Legend) -> DrawnLegend {
    DrawnLegend { css: of.css.clone(), name: printable(&of.name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Axis, Colour, ColumnSeries};
    use crate::document::{ByteMap, ByteUser, Chart, Column, Columns, row};

    /// A document with every kind of block, each with `words`.
    fn document(words: &str) -> Document {
        let name = || TableCell(vec![CellLine::Function(words.into()), CellLine::Path(words.into())]);
        let table = Table::new([Column::text(words), Column::number(words).explained(words)]);
        let series =
            ColumnSeries { colour: Colour(1, 2, 3), is_joined: true, values: vec![None], rings: vec![Some(0.5)] };
        let columns =
            Columns { names: vec![words.into()], y: Axis::of_rate(1.0), reference: None, series: vec![series] };
        let plot = Plot {
            id: "plot".into(),
            title: words.into(),
            description: words.into(),
            caption: words.into(),
            legend: vec![Colour(1, 2, 3).named(words)],
            chart: Some(Chart::Columns(columns)),
        };
        let user = ByteUser { letter: 'A', name: words.into(), ..ByteUser::default() };
        let blocks = vec![
            Block::Strong(words.into()),
            Block::Facts(vec![(words.into(), words.into())]),
            Block::List(vec![words.into()]),
            Block::Listing(words.into()),
            table.with_rows([row![name(), words]]).with_caption(words).into(),
            Some(plot).into(),
            Block::ByteMap(ByteMap { bytes: 8, users: vec![user], description: words.into() }),
            Block::Detail(vec![Block::folded(words, [Block::folded(words, [Block::Paragraph(words.into())])])]),
        ];
        Document {
            kind: words.into(),
            subject: words.into(),
            title: words.into(),
            is_command: true,
            lead: vec![Block::Paragraph(words.into()), Block::Command(words.into())].into(),
            blocks: vec![Block::section(words, blocks)],
            tool_version: words.into(),
        }
    }

    #[test]
    fn each_block_is_drawn_and_whatever_it_says_stays_text() {
        let page = render(&document("<script>alert('x')</script>\"><img src=x onerror=y>\x1b[2J")).unwrap();
        assert!(page.matches("&lt;script&gt;").count() >= 25, "{}", page.matches("&lt;script&gt;").count());
        assert!(!page.contains("<script") && !page.contains("<img") && !page.contains('\x1b'), "markup got through");
    }

    #[test]
    fn nothing_is_fetched_and_all_is_there_once() {
        let page = render(&document("words")).unwrap();
        assert!(page.starts_with("<!doctype html>\n<html lang=\"en\">\n<head>"), "{}", &page[..200]);
        for part in ["default-src 'none'", "prefers-color-scheme: dark", "– Fieldstone words</title>", "</html>"] {
            assert_eq!(page.matches(part).count(), 1, "{part}");
        }
        for part in ["http:", "https:", "src=", "url(", "@import", "<link rel=\"stylesheet\"", "{{", "{%"] {
            assert!(!page.contains(part), "{part}");
        }
        let links: Vec<&str> = page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert!(links.iter().all(|link| link.starts_with("data:") || link.starts_with('#')), "{links:?}");
        assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
        assert_eq!(page.matches("<details").count(), page.matches("</details>").count());
    }

    #[test]
    fn a_document_without_blocks_is_a_page() {
        assert!(render(&Document::default()).unwrap().contains("</html>"));
    }
}
