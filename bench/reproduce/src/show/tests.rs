//! Results on a terminal and a page.

use super::*;
use crate::catalog::all;
use crate::experiment::{MeasuredValue, SampleOutcome};
use crate::store::{CellSample, SavedSamples};
use fieldstone_report::text::{self, Style};
use fieldstone_report::{csv, html, markdown};

fn text_of(document: &Document, width: u16) -> String {
    text::render(document, Style { width, colour: false })
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn a_bare_number_of_a_paper_has_the_unit_of_ours() {
    let paper = |value: &str| Quotation {
        id: String::new(),
        seed: String::new(),
        sentence: String::new(),
        value: value.to_owned(),
    };
    let words = |shows, value| paper_words(shows, &paper(value));
    assert_eq!(
        (words(Quantity::Estimate, "51.1"), words(Quantity::Share, "99.99")),
        ("51.1 %".into(), "99.99 %".into())
    );
    assert_eq!(
        (words(Quantity::Share, "99.96%"), words(Quantity::Share, "about a half")),
        ("99.96%".into(), "about a half".into())
    );
    assert_eq!(words(Quantity::Ratio, "1.36"), "1.36");
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
    assert_eq!((number(Quantity::Ratio, "15%"), number(Quantity::Ratio, "1.36")), (Some(1.15), Some(1.36)));
    assert_eq!(number(Quantity::Share, "99%"), Some(0.99));
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
        let columns = vec!["without-".repeat(5), "with-".repeat(8)];
        let lines = vec![Line { row: "walks".into(), shows, at_s: None, entries }];
        let tables = vec![ResultTable { heading: "a table", columns, lines }];
        let sessions = vec![Provenance::here(true)];
        text_of(
            &document(&[ExperimentSummary { name: "a", title: "b", source: "c", about: "d", sessions, tables }]),
            60,
        )
    };
    let (walks, ratio) = (of(Quantity::Walks), of(Quantity::Ratio));
    assert_eq!((walks.matches("\n  walks").count(), walks.matches("  paper").count()), (2, 2), "{walks}");
    assert!(walks.contains("a table\n"), "{walks}");
    assert!(!walks.contains("noise") && ratio.contains("noise"), "{ratio}");
}

#[test]
fn an_end_that_is_only_less_than_something_needs_words() {
    let ends = |low, high| Estimate { median: high, low, high, n: 6, confidence: Some(0.95) };
    assert_eq!(interval(Quantity::Share, &ends(7e-7, 2e-4)), "< 0.01 % to 0.02 %");
    assert_eq!(interval(Quantity::Share, &ends(0.1, 0.2)), "10.0 % – 20.0 %");
}

#[test]
fn the_page_has_the_numbers_and_the_plots() {
    let figure = |row: &str, ratio| MeasuredValue { ratio, pages: Some("<4k>".into()), ..MeasuredValue::of(row, 1.0) };
    let figures = vec![figure("Linear Scan: Naive", Some(3.21)), figure("array, ns an element", None)];
    let outcome = SampleOutcome::measured(figures);
    let samples = (0..6)
        .map(|run| CellSample {
            cell: "table2/paper-tree/4M".into(),
            run,
            seed: 0,
            took_s: 1.0,
            outcome: outcome.clone(),
        })
        .collect();
    let saved = SavedSamples { sessions: vec![Provenance::here(false)], samples };
    let summaries = [ExperimentSummary::of(&crate::table2::experiment(), &saved)];
    let page = html::render(&document(&summaries)).unwrap();
    assert!(page.contains("3.21") && page.contains("2.97") && page.contains("<svg") && page.contains("</html>"));
    assert!(page.contains("&lt;4k&gt;") && page.contains("default-src 'none'"));
    for address in ["http:", "https:", "src=", "url(", "@import", "<script"] {
        assert!(!page.contains(address), "{address}");
    }
    assert!(csv::render(&[records(&summaries)]).lines().any(|line| line.contains(",3.21,")));
}

#[test]
fn the_page_of_results_names_its_command_and_its_dates() {
    let session = |began_at_unix_s| Provenance { began_at_unix_s, ..Provenance::here(false) };
    let summary = |starts: &[u64]| {
        let sessions = starts.iter().map(|&start| session(start)).collect();
        ExperimentSummary { name: "a", title: "b", source: "c", about: "d", sessions, tables: Vec::new() }
    };
    let page = |summaries: &[ExperimentSummary]| markdown::render(&documentation(summaries, "the command"));
    let two = page(&[summary(&[86_400]), summary(&[3 * 86_400, 2 * 86_400])]);
    assert!(two.contains("Generated by `the command`"), "{two}");
    assert!(two.contains("from 1970-01-02 00:00 UTC to 1970-01-04 00:00 UTC"), "{two}");
    assert!(page(&[summary(&[86_400])]).contains("on 1970-01-02 00:00 UTC."), "{two}");
}

#[test]
fn the_list_is_no_wider_than_the_terminal_and_no_name_is_broken() {
    let text = text_of(&list(&all(), false), 80);
    assert!(widest(&text) <= 80, "{text}");
    for experiment in all() {
        assert!(text.contains(&format!("\n{} ", experiment.name)), "{}:\n{text}", experiment.name);
    }
}
