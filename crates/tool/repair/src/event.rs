//! What a repair reports, from the mechanism to the saved file.
//!
//! ```text
//!   RemapEvent ──→ Repairer ──→ RepairEvent ──→ RepairSession ──→ TimedEvent ──→ JSON
//!   (of `remap`)   (reasons, rules)             (time)                          (a line each)
//! ```
//! The crate `remap` has an event type of its own, because it knows neither rules nor lines and
//! cannot depend on this crate. The repairer converts each of its events once; there is no third
//! type.

use serde::{Deserialize, Serialize};

use crate::line_detector::SamplingStats;

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimedEvent {
    /// Milliseconds since the repair session began.
    pub at_ms: f64,
    /// What happened.
    #[serde(flatten)]
    pub kind: RepairEvent,
    /// The variables on the lines of the event, where symbols name them: `counters+0x40`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<String>,
}

impl TimedEvent {
    /// An event without names of variables.
    #[must_use]
    pub const fn new(at_ms: f64, kind: RepairEvent) -> Self {
        Self { at_ms, kind, variables: Vec::new() }
    }
}

/// A step of a repair. The names in JSON are part of the schema `fieldstone-repair/1`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event")]
pub enum RepairEvent {
    /// A line is shared falsely.
    #[serde(rename = "found")]
    LineFound {
        /// Its address.
        line: u64,
        /// Upper bound of the share of the threads' time that it takes, 0 to 1.
        share: f64,
    },
    /// A page was moved.
    #[serde(rename = "moved")]
    PageMoved {
        /// Its address.
        page: u64,
        /// Pages that its bytes are distributed to, without the page itself.
        views: u32,
        /// Lines that are repaired by the move; empty where a rule requested it.
        lines: Vec<u64>,
    },
    /// A page could not be moved.
    #[serde(rename = "refused")]
    PageRefused {
        /// Its address.
        page: u64,
        /// The obstacle.
        why: String,
    },
    /// A page that a rule names could not be moved.
    #[serde(rename = "denied")]
    RuleRefused {
        /// Its address.
        page: u64,
        /// The obstacle.
        why: String,
    },
    /// A line stays contended, because its bytes cannot be separated.
    #[serde(rename = "left")]
    LineLeft {
        /// Its address.
        line: u64,
        /// The obstacle.
        why: String,
    },
    /// A page was restored.
    #[serde(rename = "undone")]
    PageRestored {
        /// Its address.
        page: u64,
        /// The reason.
        why: String,
    },
    /// Code was made that redirects an access.
    #[serde(rename = "led")]
    AccessRedirected {
        /// The instruction.
        ip: u64,
        /// The thread that ran it.
        thread: u32,
        /// Function, file and line of the instruction, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    /// A thread accessed bytes that a rule watches.
    #[serde(rename = "touched")]
    WatchedAccess {
        /// The place, as the rule names it.
        rule: String,
        /// The thread.
        thread: u32,
        /// The address.
        address: u64,
        /// Number of bytes.
        bytes: u32,
        /// Whether the access reads them.
        read: bool,
        /// Whether the access writes them.
        write: bool,
        /// The instruction.
        ip: u64,
        /// Function, file and line of the instruction, where the rule requests them.
        code: Option<String>,
    },
    /// The number of accesses to bytes that a rule counts.
    #[serde(rename = "counted")]
    AccessCount {
        /// The place, as the rule names it.
        rule: String,
        /// The thread.
        thread: u32,
        /// The instruction.
        ip: u64,
        /// Function, file and line of the instruction, if known.
        code: Option<String>,
        /// Number of accesses that read.
        reads: u64,
        /// Number of accesses that write.
        writes: u64,
    },
    /// A rule names a variable that no loaded file has.
    #[serde(rename = "missing")]
    SymbolMissing {
        /// The place, as the rule names it.
        rule: String,
        /// File and line of the rule, such as `rules:3`; empty if they are unknown.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        source: String,
    },
    /// The process runs another program.
    #[serde(rename = "exec")]
    Exec,
    /// The process has ended or was released; the last event.
    #[serde(rename = "over")]
    SessionEnd(SamplingStats),
}

impl RepairEvent {
    /// Whether the event answers a rule, so that it is printed without `--stats`.
    #[must_use]
    pub const fn is_requested(&self) -> bool {
        matches!(
            self,
            Self::WatchedAccess { .. }
                | Self::AccessCount { .. }
                | Self::SymbolMissing { .. }
                | Self::RuleRefused { .. }
        )
    }
}

impl SamplingStats {
    /// Removes the last event of a complete repair and returns its counts; all 0 without it.
    pub fn take_from(events: &mut Vec<TimedEvent>) -> Self {
        match events.pop_if(|last| matches!(last.kind, RepairEvent::SessionEnd(_))) {
            Some(TimedEvent { kind: RepairEvent::SessionEnd(stats), .. }) => stats,
            _ => Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_keep_their_names_in_saved_files() {
        let why = || "in use".to_owned();
        let stats = SamplingStats { samples: 3, ..SamplingStats::default() };
        for (kind, text) in [
            (RepairEvent::LineFound { line: 64, share: 0.5 }, r#""event":"found","line":64,"share":0.5"#),
            (
                RepairEvent::PageMoved { page: 4096, views: 2, lines: vec![64] },
                r#""event":"moved","page":4096,"views":2,"lines":[64]"#,
            ),
            (RepairEvent::PageRefused { page: 1, why: why() }, r#""event":"refused","page":1,"why":"in use""#),
            (RepairEvent::RuleRefused { page: 1, why: why() }, r#""event":"denied","page":1,"why":"in use""#),
            (RepairEvent::LineLeft { line: 1, why: why() }, r#""event":"left","line":1,"why":"in use""#),
            (RepairEvent::PageRestored { page: 1, why: why() }, r#""event":"undone","page":1,"why":"in use""#),
            (RepairEvent::AccessRedirected { ip: 1, thread: 2, code: None }, r#""event":"led","ip":1,"thread":2"#),
            (
                RepairEvent::SymbolMissing { rule: "a+8".to_owned(), source: String::new() },
                r#""event":"missing","rule":"a+8""#,
            ),
            (RepairEvent::Exec, r#""event":"exec""#),
        ] {
            let event = TimedEvent::new(1.5, kind);
            let json = serde_json::to_string(&event).unwrap();
            assert_eq!(json, format!(r#"{{"at_ms":1.5,{text}}}"#));
            assert_eq!(serde_json::from_str::<TimedEvent>(&json).unwrap(), event);
        }
        let last = serde_json::to_value(RepairEvent::SessionEnd(stats)).unwrap();
        assert_eq!(last["event"], "over");
        assert_eq!(last["samples"], 3);
        for name in ["walked", "alone", "blind", "accesses", "lost", "unusable", "throttled", "pauses", "execs"] {
            assert_eq!(last[name], 0, "{name}");
        }
    }
}
