//! An upper bound of a line's cost: its share of all samples, with a confidence interval.
//!
//! A thread that waits for a line is sampled at the waiting instruction. So the share of the
//! samples at a line's accesses bounds the gain of any repair. The accesses' own time in an
//! uncontended cache remains.
//!
//! Algorithm: samples are independent draws, so the share has Wilson's interval (JASA 1927). It
//! stays inside 0 to 1 and is valid for few samples. Fractional and decayed weights make it wider
//! than necessary, never narrower.

use fieldstone_stats::Interval;
use serde::{Deserialize, Serialize};

use crate::line_use::LineUse;

/// An upper bound of a line's cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LineCost {
    /// Samples on the line.
    pub on_line: f64,
    /// All samples.
    pub all: f64,
    /// Their ratio: the share of the threads' time.
    pub share: Interval,
    /// Maximum gain of a repair, as a share of the threads' time: the upper end of `share`.
    #[serde(rename = "most_given_back")]
    pub max_gain: f64,
}

impl LineCost {
    /// The cost of `on_line` samples among `all`. `None` without samples.
    #[must_use]
    pub fn new(on_line: f64, all: f64) -> Option<Self> {
        let share = Interval::of_share(on_line, all)?;
        Some(Self { on_line, all, share, max_gain: share.high })
    }

    /// The cost of a line among all samples, both decayed to the same time. `None` without samples.
    #[must_use]
    pub fn of(line: &LineUse, all: f64) -> Option<Self> {
        Self::new(line.weight, all)
    }

    /// Maximum speedup factor of the threads; infinite if all of their time may be the line's.
    #[must_use]
    pub fn most_speedup(&self) -> f64 {
        1.0 / (1.0 - self.max_gain)
    }
}

#[cfg(test)]
mod tests {
    use super::LineCost;

    #[test]
    fn without_samples_there_is_no_cost() {
        assert!(LineCost::new(0.0, 0.0).is_none());
    }

    #[test]
    fn the_share_bounds_the_speedup() {
        let cost = LineCost::new(750.0, 1000.0).unwrap();
        assert!((cost.share.likely - 0.75).abs() < 1e-12 && cost.max_gain > 0.75);
        assert!((4.0..5.0).contains(&cost.most_speedup()), "{}", cost.most_speedup());
        assert!(LineCost::new(5.0, 5.0).unwrap().most_speedup() > 1e6);
    }
}
