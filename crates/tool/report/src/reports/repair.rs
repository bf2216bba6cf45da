//! A saved repair: what is known of the run, and its events in the order of time.
//!
//! The events are lines here: their kinds are known where repairs are made.

use crate::document::{Block, Document};

/// A repair to report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// The command that was run.
    pub title: String,
    /// Names and values of the whole run.
    pub facts: Vec<(String, String)>,
    /// The events, a line each.
    pub events: Vec<String>,
}

/// The report on `repair`.
pub fn document(repair: &RepairReport) -> Document {
    Document {
        kind: "repair".into(),
        subject: "False sharing repaired".into(),
        title: repair.title.clone(),
        is_command: true,
        blocks: vec![
            Block::List(repair.facts.iter().map(|(name, value)| format!("{name}: {value}")).collect()),
            Block::section("Events", [Block::Listing(repair.events.join("\n"))]),
        ],
        ..Document::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{self, Style};

    #[test]
    fn text_and_page_have_every_fact_and_event() {
        let report = RepairReport {
            title: "./a <b>".to_owned(),
            facts: vec![("outcome".to_owned(), "exit 0".to_owned())],
            events: vec!["1.0 ms  page 0x1000: moved".to_owned()],
        };
        let text = text::render(&document(&report), Style::default());
        assert_eq!(text, "./a <b>\n- outcome: exit 0\n\nEvents\n    1.0 ms  page 0x1000: moved\n");
        let page = crate::html::render(&document(&report)).unwrap().replace("&#x2f;", "/");
        assert!(page.contains("./a &lt;b&gt;") && page.contains("exit 0") && page.contains("0x1000: moved"), "{page}");
    }
}
