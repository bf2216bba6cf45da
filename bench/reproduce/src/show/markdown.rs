//! Results as Markdown, for `docs/results.md`.

use std::fmt::Write as _;

use super::{NOT_IN_TEXT, interval, lacks_paper, notes, ours, paper_words, session};
use crate::experiment::Shows;
use crate::summary::{Entry, Line, Summary};

/// The results of experiments. `command` is what makes this page.
#[must_use]
pub fn markdown(summaries: &[Summary], command: &str) -> String {
    let mut all = format!(
        "# Results\n\nMade by `{command}` from saved samples, not by hand. A number is the median over processes with layouts of \
         their own; in brackets is its 95 % interval. The paper's number, where its text has one, stands below ours.\n"
    );
    for summary in summaries {
        // Writing to a String cannot fail.
        let _ = writeln!(all, "\n## {}: {}\n\n{}. {}", summary.name, summary.title, summary.source, summary.about);
        for table in &summary.tables {
            let _ = writeln!(all, "\n### {}\n\n| | {} |", table.heading, table.columns.join(" | "));
            let _ = writeln!(all, "|---|{}", "---|".repeat(table.columns.len()));
            for line in &table.lines {
                let _ = writeln!(all, "{}", row(line));
            }
            all.push('\n');
            for note in notes(&table.columns, &table.lines) {
                let _ = writeln!(all, "- {note}");
            }
        }
        all.push('\n');
        for of in &summary.sessions {
            let _ = writeln!(all, "Measured {}.", session(summary, of));
        }
    }
    all
}

fn row(line: &Line) -> String {
    let name = if lacks_paper(line) { format!("{} (paper: {NOT_IN_TEXT})", line.row) } else { line.row.clone() };
    let cells: Vec<String> = line.entries.iter().map(|entry| cell(line.shows, entry.as_ref())).collect();
    format!("| {name} | {} |", cells.join(" | "))
}

fn cell(shows: Shows, entry: Option<&Entry>) -> String {
    let Some(entry) = entry else { return String::new() };
    let interval = entry.ours.as_ref().map(|estimate| interval(shows, estimate)).filter(|words| !words.is_empty());
    let interval = interval.map(|words| format!(" ({words})")).unwrap_or_default();
    let paper = entry.paper.as_ref().filter(|_| shows != Shows::Published);
    let paper = paper.map(|paper| format!("<br>paper {}", paper_words(shows, paper))).unwrap_or_default();
    format!("{}{interval}{paper}", ours(shows, entry))
}
