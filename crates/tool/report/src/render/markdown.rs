//! A document as Markdown, for a page of documentation. Plots and [`Block::Detail`] are left out.

use crate::document::{Block, Document, Table};
use crate::shell::printable;

/// `document` as Markdown.
pub fn render(document: &Document) -> String {
    let mut text = format!("# {}\n", one_line(&document.title));
    blocks(&document.lead.blocks, 2, &mut text);
    blocks(&document.blocks, 2, &mut text);
    text
}

fn blocks(blocks: &[Block], level: usize, text: &mut String) {
    for block in blocks.iter().filter(|block| !block.is_empty()) {
        let words = match block {
            Block::Section(section) => {
                *text += &format!("\n{} {}\n", "#".repeat(level), one_line(&section.heading));
                self::blocks(&section.blocks, level + 1, text);
                continue;
            }
            Block::Paragraph(words) => one_line(words) + "\n",
            Block::Strong(words) => format!("**{}**\n", one_line(words)),
            Block::Facts(facts) => list(facts.iter().map(|(name, value)| format!("{name}: {value}"))),
            Block::List(sentences) => list(sentences.iter().cloned()),
            Block::Command(words) | Block::Listing(words) => format!("```\n{}\n```\n", printable(words.trim_end())),
            Block::Table(of) => table(of),
            Block::ByteMap(map) => one_line(&map.description) + "\n",
            Block::Plots(_) | Block::Detail(_) => continue,
        };
        *text += &format!("\n{words}");
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.map(|item| format!("- {}\n", one_line(&item))).collect()
}

fn table(table: &Table) -> String {
    let (rows, rest) = table.on_page();
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(table.columns.iter().map(|column| cell(&column.heading)).collect());
    text += &format!(
        "|{}\n",
        table.columns.iter().map(|of| if of.is_number { "---:|" } else { "---|" }).collect::<String>()
    );
    for row in &rows {
        let lines = row.cells.iter().map(|of| {
            let lines = of.0.iter().map(|line| cell(&line.to_string())).filter(|line| !line.is_empty());
            lines.collect::<Vec<_>>().join("<br>")
        });
        text += &line(lines.collect());
    }
    let words = [&rest, &table.caption].into_iter().filter(|words| !words.is_empty());
    text + &words.map(|words| format!("\n{}\n", one_line(words))).collect::<String>()
}

/// Words that do not end their cell.
fn cell(words: &str) -> String {
    one_line(words).replace('|', "\\|")
}

fn one_line(words: &str) -> String {
    printable(words).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{CellLine, Column, TableCell, row};

    #[test]
    fn sections_tables_and_lists_have_their_marks() {
        let number = TableCell(vec![CellLine::Text("3.21".into()), CellLine::Quoted("paper 2.97".into())]);
        let table = Table::new([Column::text(""), Column::number("4 | MB")]).with_rows([row!["a row", number]]);
        let inner = Block::section("table", [table.with_caption("Ratios.").into(), Block::List(vec!["a note".into()])]);
        let blocks = vec![Block::Paragraph("words".into()), Block::section("experiment", [inner])];
        let document = Document { title: "Results".into(), blocks, ..Document::default() };
        assert_eq!(
            render(&document),
            "# Results\n\nwords\n\n## experiment\n\n### table\n\n|  | 4 \\| MB |\n|---|---:|\n\
             | a row | 3.21<br>paper 2.97 |\n\nRatios.\n\n- a note\n"
        );
    }
}
