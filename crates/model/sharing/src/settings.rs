//! Settings: line size, half-life, windows of time, bounds.

use serde::{Deserialize, Serialize};

use crate::bits::Bits;
use crate::error::{Error, Result};

/// How lines are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Bytes of a cache line: 16, 32, 64 or 128.
    pub line_bytes: u32,
    /// Whether to count pairs of lines. The adjacent-line prefetcher of some processors fetches the
    /// other line of an aligned pair, so threads can contend for a pair without sharing a line.
    /// Lines have at most 64 bytes then.
    pub pairs: bool,
    /// Half-life of weights in nanoseconds; `None` for no decay.
    pub half_life_ns: Option<u64>,
    /// Length of a window in nanoseconds. Threads sampled in the same windows ran at the same time.
    pub window_ns: u64,
    /// Maximum number of lines or pairs in the table.
    pub most_lines: u32,
}

impl Default for Settings {
    /// Lines of 64 bytes; half-life of 250 ms; 4096 lines; windows of 4 ms. A running thread is
    /// sampled four times in such a window at 1 kHz, and three windows pass in a quarter of the 50
    /// ms that a repair may take.
    fn default() -> Self {
        Self { line_bytes: 64, pairs: false, half_life_ns: Some(250_000_000), window_ns: 4_000_000, most_lines: 4096 }
    }
}

impl Settings {
    /// Bytes that are counted together: of a line or of a pair.
    #[must_use]
    pub fn unit_bytes(&self) -> u32 {
        if self.pairs { self.line_bytes * 2 } else { self.line_bytes }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// A setting out of its range, with the range.
    pub fn check(&self) -> Result<()> {
        let most_line_bytes = if self.pairs { Bits::COUNT / 2 } else { Bits::COUNT };
        let line_fits = self.line_bytes.is_power_of_two() && (16..=most_line_bytes).contains(&self.line_bytes);
        let checks = [
            ("line_bytes", line_fits, self.line_bytes.into(), "give 16, 32, 64 or, without pairs, 128"),
            ("half_life_ns", self.half_life_ns != Some(0), 0, "give a time, or none for weights that never fade"),
            ("window_ns", self.window_ns > 0, 0, "give about four times the time between two samples of a thread"),
            (
                "most_lines",
                (1..=1 << 20).contains(&self.most_lines),
                self.most_lines.into(),
                "give 1 to 1048576 (a line takes about 2 KiB, a pair 4 KiB)",
            ),
        ];
        match checks.into_iter().find(|(_, fine, ..)| !fine) {
            Some((field, _, value, remedy)) => Err(Error::Setting { field, value, remedy }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let fine = Settings::default();
        assert_eq!(fine.check(), Ok(()));
        assert_eq!(Settings { line_bytes: 128, ..fine }.check(), Ok(()));
        for (wrong, field) in [
            (Settings { line_bytes: 48, ..fine }, "line_bytes"),
            (Settings { line_bytes: 8, ..fine }, "line_bytes"),
            (Settings { line_bytes: 128, pairs: true, ..fine }, "line_bytes"),
            (Settings { half_life_ns: Some(0), ..fine }, "half_life_ns"),
            (Settings { window_ns: 0, ..fine }, "window_ns"),
            (Settings { most_lines: 0, ..fine }, "most_lines"),
        ] {
            let found = wrong.check().unwrap_err().to_string();
            assert!(found.contains(field) && found.contains("give"), "{found}");
        }
    }
}
