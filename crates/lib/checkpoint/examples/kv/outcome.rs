//! What a save did, which the thread or process that saves sends to the event loop.

use std::io::{PipeWriter, Write};
use std::time::Duration;

use fieldstone_checkpoint::Report;

/// What a save did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// The number of write commands before the instant of the save.
    pub(crate) writes: u64,
    pub(crate) bytes: u64,
    pub(crate) stop: Duration,
    pub(crate) longest_wait: Duration,
    pub(crate) total: Duration,
}

impl Outcome {
    pub(crate) fn new(report: &Report, writes: u64) -> Self {
        let Report { bytes, stop, longest_wait, total, .. } = *report;
        Self { writes, bytes, stop, longest_wait, total }
    }

    fn text(&self) -> String {
        let nanoseconds = [self.stop, self.longest_wait, self.total].map(|time| time.as_nanos());
        format!("{} {} {} {} {}", self.writes, self.bytes, nanoseconds[0], nanoseconds[1], nanoseconds[2])
    }

    /// `None` if the text is an error.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let &[writes, bytes, stop, longest_wait, total] = &numbers[..] else { return None };
        let [stop, longest_wait, total] = [stop, longest_wait, total].map(Duration::from_nanos);
        Some(Self { writes, bytes, stop, longest_wait, total })
    }
}

/// Sends a result to the event loop. A reader that has ended needs none.
pub(crate) fn send(mut sender: PipeWriter, saved: Result<Outcome, String>) {
    let text = saved.map_or_else(|error| error, |outcome| outcome.text());
    let _ = sender.write_all(text.as_bytes());
}
