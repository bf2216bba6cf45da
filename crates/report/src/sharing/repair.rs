//! What `run --repair` did: the pages that it moved, in the order of time.
//!
//! Times count from the moment at which the first contention was seen, as the goal for the time to a repair does.

use super::words::plural;
use crate::quantity::{address, bytes, count, seconds};
use serde::{Deserialize, Serialize};

/// What was done about falsely shared lines while the program ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Repair {
    /// When the first contention was seen, in seconds since it began to look; none if none was.
    pub first_contention_s: Option<f64>,
    /// The pages that were moved; one that was moved twice is there twice.
    pub pages: Vec<PageMoved>,
}

/// A page whose bytes were moved apart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageMoved {
    /// Its address.
    pub page: u64,
    /// The lines that were to be mended.
    pub lines: Vec<u64>,
    /// When it was moved, in milliseconds since the first contention.
    pub moved_ms: f64,
    /// Bytes that went to views of their own.
    pub bytes: u64,
    /// Those views.
    pub views: u32,
    /// Accesses that were redirected one by one.
    pub redirected: u64,
    /// Loops that were cloned.
    pub loops_cloned: u32,
    /// How it ended.
    pub ending: Ending,
    /// Why, in words.
    pub reason: String,
    /// When that was decided, in milliseconds since the first contention; none if it never was.
    pub decided_ms: Option<f64>,
}

/// How a repair ended. Unknown endings, of a later version, read as `Unknown`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// It helped, and stayed.
    Kept,
    /// It was taken back.
    TakenBack,
    /// The program ended before that was decided.
    OnTrial,
    /// Not known.
    #[default]
    #[serde(other)]
    Unknown,
}

/// One thing that happened to a page.
pub(super) struct Event {
    pub(super) at_ms: f64,
    pub(super) page: u64,
    pub(super) words: String,
}

impl Ending {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::TakenBack => "taken back",
            Self::OnTrial => "on trial to the end",
            Self::Unknown => "not known",
        }
    }
}

impl Repair {
    /// What happened, in the order of time.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self.pages.iter().flat_map(PageMoved::events).collect();
        events.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
        events
    }

    /// In a sentence or two.
    pub(super) fn sentence(&self) -> String {
        let Some(first_s) = self.first_contention_s else {
            return "No contention was seen, so nothing was moved.".to_owned();
        };
        let seen = format!("The first contention was seen after {}", seconds(first_s));
        if self.pages.is_empty() {
            return format!("{seen}; no page was moved.");
        }
        let moved = self.pages.iter().map(|page| page.moved_ms).fold(f64::INFINITY, f64::min);
        let with = |ending| self.pages.iter().filter(|page| page.ending == ending).count() as u64;
        format!(
            "{seen}, the first page was moved {} later. Of {} moved, {} kept and {} taken back.",
            seconds(moved / 1000.0),
            plural(self.pages.len() as u64, "page"),
            were(with(Ending::Kept)),
            were(with(Ending::TakenBack))
        )
    }
}

impl PageMoved {
    fn events(&self) -> Vec<Event> {
        let event = |at_ms, words| Event { at_ms, page: self.page, words };
        let lines: Vec<String> = self.lines.iter().map(|&line| address(line)).collect();
        let lines = if lines.is_empty() { String::new() } else { format!(" (lines {})", lines.join(", ")) };
        let views = plural(self.views.into(), "view");
        let mut events = vec![event(self.moved_ms, format!("{} moved to {views}{lines}", bytes(self.bytes)))];
        if let Some(decided_ms) = self.decided_ms {
            let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
            events.push(event(decided_ms, format!("{}{reason}", self.ending.words())));
        }
        events
    }
}

fn were(number: u64) -> String {
    format!("{} {}", count(number), if number == 1 { "was" } else { "were" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(page: u64, moved_ms: f64, ending: Ending, decided_ms: Option<f64>) -> PageMoved {
        PageMoved { page, moved_ms, ending, decided_ms, views: 1, reason: "so it is".into(), ..PageMoved::default() }
    }

    #[test]
    fn events_stand_in_the_order_of_time() {
        let pages = vec![
            page(0x2000, 30.0, Ending::TakenBack, Some(90.0)),
            page(0x1000, 12.0, Ending::Kept, Some(60.0)),
            page(0x3000, 70.0, Ending::OnTrial, None),
        ];
        let repair = Repair { first_contention_s: Some(0.5), pages };
        let order: Vec<(u64, String)> = repair.events().into_iter().map(|event| (event.page, event.words)).collect();
        let pages: Vec<u64> = order.iter().map(|event| event.0).collect();
        assert_eq!(pages, [0x1000, 0x2000, 0x1000, 0x3000, 0x2000]);
        assert_eq!((order[2].1.as_str(), order[4].1.as_str()), ("kept: so it is", "taken back: so it is"));
        let told = repair.sentence();
        for part in ["after 500 ms", "12.0 ms later", "3 pages moved", "1 was kept", "1 was taken back"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    #[test]
    fn nothing_moved_is_told_as_such() {
        assert!(Repair::default().sentence().contains("nothing was moved"));
        let seen = Repair { first_contention_s: Some(1.0), pages: Vec::new() };
        assert!(seen.sentence().contains("no page was moved"));
    }

    #[test]
    fn endings_of_a_later_version_read_as_unknown() {
        let read: PageMoved = serde_json::from_str(r#"{"page": 4096, "ending": "merged", "more": 1}"#).unwrap();
        assert_eq!((read.page, read.ending), (4096, Ending::Unknown));
        assert_eq!(serde_json::to_string(&Ending::TakenBack).unwrap(), "\"taken-back\"");
    }
}
