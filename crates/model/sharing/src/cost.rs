//! An upper bound of a line's cost: its share of all samples, with a confidence interval.
//!
//! A thread that waits for a line is sampled at the waiting instruction. So the share of the
//! samples at a line's accesses bounds the gain of any repair. The accesses' own time in an
//! uncontended cache remains.
//!
//! Algorithm: samples are independent draws, so the share has Wilson's interval (JASA 1927). It
//! stays inside 0 to 1 and is valid for few samples. Fractional and decayed weights make it wider
//! than necessary, never narrower.

pub use fieldstone_stats::Interval;
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
    use super::{Interval, LineCost};

    fn near(found: Interval, low: f64, high: f64) {
        assert!((found.low - low).abs() < 5e-4 && (found.high - high).abs() < 5e-4, "{found:?}, not {low} to {high}");
    }

    #[test]
    fn intervals_equal_published_wilson_intervals() {
        near(Interval::of_share(10.0, 100.0).unwrap(), 0.0552, 0.1744);
        near(Interval::of_share(0.0, 10.0).unwrap(), 0.0, 0.2775);
        near(Interval::of_share(10.0, 10.0).unwrap(), 0.7225, 1.0);
        near(Interval::of_share(1.0, 2.0).unwrap(), 0.0945, 0.9055);
    }

    #[test]
    fn without_samples_there_is_no_share() {
        assert_eq!(Interval::of_share(0.0, 0.0), None);
        assert_eq!(Interval::of_share(1.0, f64::NAN), None);
        assert_eq!(Interval::of_share(f64::NAN, 1.0), None);
        assert!(LineCost::new(0.0, 0.0).is_none());
        let rounded = Interval::of_share(1.0 + 1e-9, 1.0).unwrap();
        assert!(rounded.likely <= 1.0 && rounded.high <= 1.0);
    }

    #[test]
    fn intervals_contain_the_true_share_with_their_confidence() {
        // The exact probability of each count among 40 samples at a share of 0.3.
        let (samples, share) = (40_u32, 0.3_f64);
        let mut chance = (1.0 - share).powi(40);
        let mut held = 0.0;
        for count in 0..=samples {
            let found = Interval::of_share(count.into(), samples.into()).unwrap();
            if (found.low..=found.high).contains(&share) {
                held += chance;
            }
            chance *= f64::from(samples - count) / f64::from(count + 1) * share / (1.0 - share);
        }
        assert!((0.93..0.98).contains(&held), "{held}");
    }

    #[test]
    fn the_share_bounds_the_speedup() {
        let cost = LineCost::new(750.0, 1000.0).unwrap();
        assert!((cost.share.likely - 0.75).abs() < 1e-12 && cost.max_gain > 0.75);
        assert!((4.0..5.0).contains(&cost.most_speedup()), "{}", cost.most_speedup());
        assert!(LineCost::new(5.0, 5.0).unwrap().most_speedup() > 1e6);
    }

    #[test]
    fn rates_that_scatter_have_wide_intervals() {
        let close = Interval::of_rates(&[10.0, 10.1, 9.9, 10.0]).unwrap();
        let far = Interval::of_rates(&[5.0, 15.0, 7.0, 13.0]).unwrap();
        assert!((close.likely - 10.0).abs() < 1e-9 && (far.likely - 10.0).abs() < 1e-9);
        near(close, 9.92, 10.08);
        assert!(far.high - far.low > 30.0 * (close.high - close.low));
        assert_eq!(Interval::of_rates(&[1.0]), None);
    }
}
