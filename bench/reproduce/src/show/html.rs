//! All experiments on one page: no script, nothing fetched, readable in light and dark.

use anyhow::Result;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};
use serde::Serialize;

use super::{NOT_IN_TEXT, bars, has_paper, interval, lacks_paper, notes, ours, paper_words, plot, session};
use crate::experiment::Shows;
use crate::summary::{Entry, Line, Summary, Table};

#[derive(Serialize)]
struct Page {
    experiments: Vec<Section>,
    version: &'static str,
}

#[derive(Serialize)]
struct Section {
    name: &'static str,
    title: &'static str,
    source: &'static str,
    about: &'static str,
    tables: Vec<Shown>,
    sessions: Vec<String>,
}

#[derive(Serialize)]
struct Shown {
    heading: &'static str,
    columns: Vec<String>,
    lines: Vec<ShownLine>,
    plot: Option<Value>,
    /// Colours and names of what is plotted.
    key: Vec<(String, String)>,
    /// Whether rings are in the plot.
    rings: bool,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct ShownLine {
    row: String,
    paper: Option<&'static str>,
    cells: Vec<[String; 3]>,
}

/// The page of these results: a whole HTML document.
///
/// # Errors
/// When a plot or the page cannot be made; results that could be read cause neither.
pub fn page(summaries: &[Summary]) -> Result<String> {
    let experiments = summaries.iter().map(section).collect::<Result<Vec<_>>>()?;
    let page = Page { experiments, version: env!("CARGO_PKG_VERSION") };
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    // The name's ending turns escaping on.
    environment.add_template("reproduce.html", include_str!("../../templates/reproduce.html"))?;
    Ok(environment.get_template("reproduce.html")?.render(Value::from(Serde(page)))?)
}

fn section(summary: &Summary) -> Result<Section> {
    let Summary { name, title, source, about, .. } = *summary;
    let tables = summary.tables.iter().map(shown).collect::<Result<Vec<_>>>()?;
    Ok(Section {
        name,
        title,
        source,
        about,
        tables,
        sessions: summary.sessions.iter().map(|of| session(summary, of)).collect(),
    })
}

fn shown(table: &Table) -> Result<Shown> {
    let plotted = plot::lines(table);
    let of_lines = || plotted.iter().enumerate().map(|(at, line)| (plot::colour(at), line.row.clone())).collect();
    let (plot, key) = match bars::bars(table)? {
        Some(bars) => (Some(bars), bars::key(table)),
        None => (plot::plot(table)?, of_lines()),
    };
    Ok(Shown {
        heading: table.heading,
        columns: table.columns.clone(),
        lines: table.lines.iter().map(shown_line).collect(),
        plot: plot.map(Value::from_safe_string),
        key,
        rings: plotted.iter().any(|line| has_paper(line)),
        notes: notes(&table.columns, &table.lines),
    })
}

fn shown_line(line: &Line) -> ShownLine {
    let paper = lacks_paper(line).then_some(NOT_IN_TEXT);
    let cells =
        line.entries.iter().map(|entry| entry.as_ref().map(|entry| cell(line.shows, entry)).unwrap_or_default());
    ShownLine { row: line.row.clone(), paper, cells: cells.collect() }
}

/// Ours, its interval, the paper's.
fn cell(shows: Shows, entry: &Entry) -> [String; 3] {
    let interval = entry.ours.as_ref().map(|estimate| interval(shows, estimate)).unwrap_or_default();
    let paper = entry.paper.as_ref().map(|paper| paper_words(shows, paper)).unwrap_or_default();
    // What is only published is in the paper's colour.
    let ours = if shows == Shows::Published { String::new() } else { ours(shows, entry) };
    [ours, interval, paper]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Figure, Outcome};
    use crate::provenance::Provenance;
    use crate::store::{Sample, Saved};

    #[test]
    fn the_page_is_whole_and_fetches_nothing() {
        let figure = |row: &str, ratio| Figure { ratio, pages: Some("<4k>".into()), ..Figure::of(row, 1.0) };
        let figures = vec![figure("Linear Scan: Naive", Some(3.21)), figure("array, ns an element", None)];
        let outcome = Outcome::Measured { figures, alternately: true };
        let samples = (0..6)
            .map(|run| Sample {
                cell: "table2/paper-tree/4M".into(),
                run,
                seed: 0,
                took_s: 1.0,
                outcome: outcome.clone(),
            })
            .collect();
        let saved = Saved { sessions: vec![Provenance::here(false)], samples };
        let page = page(&[Summary::of(&crate::table2::experiment(), &saved)]).unwrap();
        assert!(page.contains("3.21") && page.contains("2.97") && page.contains("<svg") && page.contains("</html>"));
        assert!(page.contains("&lt;4k&gt;") && page.contains("default-src 'none'"));
        for address in ["http:", "https:", "src=", "url(", "@import", "<script"] {
            assert!(!page.contains(address), "{address}");
        }
    }
}
