//! Where results are shown: the terminal, JSON, CSV, Markdown, one page of HTML. All print what [`crate::summary::Summary`] says.

mod bars;
mod csv;
mod html;
mod markdown;
mod plot;
mod text;

pub use csv::csv;
pub use html::page;
pub use markdown::markdown;
pub use text::{list, text};

use fieldstone_report::quantity;
use fieldstone_stats::Estimate;

use crate::experiment::Shows;
use crate::provenance::Provenance;
use crate::quotation::Quotation;
use crate::summary::{Entry, Line, Summary};

/// Where a paper's text has no number.
const NOT_IN_TEXT: &str = "not in the text";

/// A number as its row shows it.
fn number(shows: Shows, value: f64) -> String {
    match shows {
        Shows::Ratio => format!("{value:.2}"),
        Shows::Nanoseconds => quantity::seconds(value * 1e-9),
        Shows::Instructions => format!("{value:.1}"),
        Shows::Share => quantity::share(value),
        Shows::Estimate => quantity::percent(value),
        Shows::Microseconds => three_digits(value),
        Shows::Walks | Shows::References => counted(value),
        Shows::Count if value.fract() != 0.0 => format!("{value:.1}"),
        Shows::Adds | Shows::Count | Shows::Published => format!("{value:.0}"),
    }
}

/// `1.31 – 1.40`, and that it is no interval where it is none. Nothing for what was counted once.
fn interval(shows: Shows, estimate: &Estimate) -> String {
    let is_one = estimate.n == 1 && estimate.low == estimate.high;
    let (low, high) = (number(shows, estimate.low), number(shows, estimate.high));
    let ends = if low.starts_with('<') { format!("{low} to {high}") } else { format!("{low} – {high}") };
    match estimate.is_interval() || shows == Shows::Estimate {
        _ if is_one => String::new(),
        true => ends,
        false => format!("range {ends}"),
    }
}

/// What the line's intervals are, where one has any.
fn interval_words(line: &Line) -> Option<&'static str> {
    let ends = line.entries.iter().flatten().filter_map(|entry| entry.ours.as_ref());
    let words = if line.shows == Shows::Estimate { "least – most" } else { "95 % interval" };
    ends.map(|ours| interval(line.shows, ours)).any(|words| !words.is_empty()).then_some(words)
}

/// Whether the line shows what the paper might have measured, and its text has not.
fn lacks_paper(line: &Line) -> bool {
    matches!(line.shows, Shows::Ratio | Shows::Share) && !has_paper(line)
}

/// The paper's number on the scale of the line: its shares are in percent, and so is by how much something takes longer.
fn paper_number(shows: Shows, entry: &Entry) -> Option<f64> {
    let paper = entry.paper.as_ref()?;
    let number = paper.number()?;
    Some(match shows {
        Shows::Share | Shows::Estimate => number / 100.0,
        Shows::Ratio if paper.value.ends_with('%') => 1.0 + number / 100.0,
        _ => number,
    })
}

/// The paper's number as its text has it; where ours has a percent sign and the text leaves it to a heading, with one.
fn paper_words(shows: Shows, paper: &Quotation) -> String {
    let is_share = matches!(shows, Shows::Share | Shows::Estimate);
    let bare = is_share && paper.value.parse::<f64>().is_ok();
    if bare { format!("{} %", paper.value) } else { paper.value.clone() }
}

/// Ours, or why there is none.
fn ours(shows: Shows, entry: &Entry) -> String {
    match (&entry.ours, &entry.skipped, entry.value) {
        (Some(estimate), ..) => number(shows, estimate.median),
        (None, Some(_), _) => "SKIP".to_owned(),
        _ if !entry.instead.is_empty() => entry.instead.join(", "),
        _ if shows == Shows::Published => entry.paper.as_ref().map_or("–", |paper| &paper.value).to_owned(),
        (None, None, Some(computed)) => number(shows, computed),
        (None, None, None) => "–".to_owned(),
    }
}

/// Whether nothing of the line is measured: its numbers have no intervals.
fn is_published(line: &Line) -> bool {
    line.shows == Shows::Published
        || line.entries.iter().flatten().all(|entry| entry.ours.is_none() && entry.value.is_some())
}

/// What models counted, an operation: none at all is told from very few.
fn counted(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { three_digits(value) }
}

/// At least three digits that count, and no more behind the point than that takes.
fn three_digits(value: f64) -> String {
    let mut behind = 0;
    while behind < 9 && value.abs() * 10_f64.powi(behind) < 99.95 {
        behind += 1;
    }
    format!("{value:.*}", usize::try_from(behind).unwrap_or(0))
}

/// Whether the line has a number of the paper.
fn has_paper(line: &Line) -> bool {
    line.entries.iter().flatten().any(|entry| entry.paper.is_some())
}

/// Why cells are empty, each reason once with its columns.
fn skips(columns: &[String], lines: &[Line]) -> Vec<String> {
    let mut reasons = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let mut found: Vec<&String> =
            lines.iter().filter_map(|line| line.entries[at].as_ref()?.skipped.as_ref()).collect();
        found.dedup();
        reasons.extend(found.into_iter().map(|reason| (reason.clone(), column.as_str())));
    }
    by_text(reasons).map(|(reason, columns)| format!("SKIP {columns}: {reason}")).collect()
}

/// Why cells are empty; the pages that the lines' memory really got; what was measured one after the other.
fn notes(columns: &[String], lines: &[Line]) -> Vec<String> {
    let mut pages = Vec::new();
    let mut apart = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let entries = || lines.iter().filter_map(|line| line.entries[at].as_ref());
        let mut kinds: Vec<&str> = entries().flat_map(|entry| entry.pages.iter().map(String::as_str)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if !kinds.is_empty() {
            pages.push((kinds.join("; "), column.as_str()));
        }
        if entries().any(|entry| entry.one_after_the_other > 0) {
            apart.push((
                "memory did not hold both sides, which were measured one after the other".to_owned(),
                column.as_str(),
            ));
        }
    }
    let mut all = skips(columns, lines);
    all.extend(by_text(pages).map(|(kinds, columns)| format!("Pages got ({columns}): {kinds}")));
    all.extend(by_text(apart).map(|(text, columns)| format!("{columns}: {text}")));
    all
}

/// Each text once, with the columns that it is about.
fn by_text(notes: Vec<(String, &str)>) -> impl Iterator<Item = (String, String)> {
    let mut grouped = Vec::<(String, String)>::new();
    for (text, column) in notes {
        match grouped.iter_mut().find(|(known, _)| *known == text) {
            Some((_, columns)) => *columns += &format!(", {column}"),
            None => grouped.push((text, column.to_owned())),
        }
    }
    grouped.into_iter()
}

/// Whether a line tells times, or what follows from them: models count the same on any machine.
fn is_timed(summary: &Summary) -> bool {
    let is_counted = |shows| {
        matches!(shows, Shows::Walks | Shows::References | Shows::Instructions | Shows::Share | Shows::Published)
    };
    summary.tables.iter().flat_map(|table| &table.lines).any(|line| !is_counted(line.shows))
}

/// A session of `summary` in words; how noisy the machine was, where that matters.
fn session(summary: &Summary, of: &Provenance) -> String {
    let noise = if is_timed(summary) { format!(", noise {}", quantity::percent(of.noise)) } else { String::new() };
    let hypervisor = if of.virtual_machine { ", a virtual machine" } else { "" };
    let quick = if of.quick { ", quick" } else { "" };
    let fixed = if of.randomised { "" } else { ", address spaces not randomised" };
    format!(
        "{}{quick}: {} ({} processors{hypervisor}), {}, Linux {}, transparent huge pages {}, commit {}{noise}{fixed}",
        quantity::moment(of.began_at_unix_s),
        of.cpu,
        of.cpus,
        quantity::bytes(of.memory_bytes),
        of.kernel,
        of.thp,
        of.commit,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Table;

    #[test]
    fn a_bare_number_of_a_paper_has_the_unit_of_ours() {
        let paper = |value: &str| Quotation {
            id: String::new(),
            seed: String::new(),
            sentence: String::new(),
            value: value.to_owned(),
        };
        let words = |shows, value| paper_words(shows, &paper(value));
        assert_eq!((words(Shows::Estimate, "51.1"), words(Shows::Share, "99.99")), ("51.1 %".into(), "99.99 %".into()));
        assert_eq!(
            (words(Shows::Share, "99.96%"), words(Shows::Share, "about a half")),
            ("99.96%".into(), "about a half".into())
        );
        assert_eq!(words(Shows::Ratio, "1.36"), "1.36");
        let entry = |value| Entry {
            cell: String::new(),
            ours: None,
            value: None,
            paper: Some(paper(value)),
            skipped: None,
            instead: Vec::new(),
            pages: Vec::new(),
            one_after_the_other: 0,
        };
        let number = |shows, value| paper_number(shows, &entry(value));
        assert_eq!((number(Shows::Ratio, "15%"), number(Shows::Ratio, "1.36")), (Some(1.15), Some(1.36)));
        assert_eq!(number(Shows::Share, "99%"), Some(0.99));
    }

    #[test]
    fn the_paper_s_row_is_where_it_has_a_number_and_the_noise_where_something_is_timed() {
        let counted = Estimate { median: 0.5, low: 0.5, high: 0.5, n: 1, confidence: None };
        let entry = |paper: Option<&str>| {
            Some(Entry {
                cell: String::new(),
                ours: Some(counted),
                value: None,
                paper: paper.and_then(crate::quotation::find).cloned(),
                skipped: None,
                instead: Vec::new(),
                pages: Vec::new(),
                one_after_the_other: 0,
            })
        };
        let of = |shows| {
            let entries = vec![entry(None), entry(Some("tree-walks/strided-misses"))];
            let columns = vec!["without ".repeat(5), "with ".repeat(8)];
            let lines = vec![Line { row: "walks".into(), shows, entries }];
            let tables = vec![Table { heading: "a table", columns, lines }];
            let sessions = vec![Provenance::here(true)];
            text(&[Summary { name: "a", title: "b", source: "c", about: "d", sessions, tables }], 60)
        };
        let (walks, ratio) = (of(Shows::Walks), of(Shows::Ratio));
        assert_eq!((walks.matches("a table").count(), walks.matches("  paper").count()), (2, 1), "{walks}");
        assert!(!walks.contains("noise") && ratio.contains("noise"), "{ratio}");
    }

    #[test]
    fn an_end_that_is_only_less_than_something_needs_words() {
        let ends = |low, high| Estimate { median: high, low, high, n: 6, confidence: Some(0.95) };
        assert_eq!(interval(Shows::Share, &ends(7e-7, 2e-4)), "< 0.01 % to 0.02 %");
        assert_eq!(interval(Shows::Share, &ends(0.1, 0.2)), "10.0 % – 20.0 %");
    }
}
