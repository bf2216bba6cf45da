//! A value with bounds, and its arithmetic.
//!
//! A confidence interval has 95 % probability to contain the true value. Bounds of a model have no
//! probability. Sources: Wilson's interval of a share (JASA 1927); the normal interval of a mean.

use serde::{Deserialize, Serialize};

/// Probability that a confidence interval misses the true value. [`DEVIATIONS`] and
/// [`Interval::LABEL`] change with it.
pub(crate) const MISS: f64 = 0.05;

/// Standard deviations to each side of an interval of the normal distribution that misses with
/// probability [`MISS`].
const DEVIATIONS: f64 = 1.959_964;

/// A value with its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower bound.
    pub low: f64,
    /// The measured or most likely value.
    pub likely: f64,
    /// The upper bound.
    pub high: f64,
}

impl Interval {
    /// What reports call a confidence interval.
    pub const LABEL: &str = "95 % interval";

    /// The share of `part` in `all` samples, with Wilson's interval. `None` without samples. Values
    /// outside of 0 to `all` are clamped.
    #[must_use]
    pub fn of_share(part: f64, all: f64) -> Option<Self> {
        if !(all.is_finite() && all > 0.0) || part.is_nan() {
            return None;
        }
        let likely = (part / all).clamp(0.0, 1.0);
        let square = DEVIATIONS * DEVIATIONS / all;
        let middle = (likely + square / 2.0) / (1.0 + square);
        let to_each_side = (likely * (1.0 - likely) * square + square * square / 4.0).sqrt() / (1.0 + square);
        let low = (middle - to_each_side).clamp(0.0, likely);
        Some(Self { low, likely, high: (middle + to_each_side).clamp(likely, 1.0) })
    }

    /// The mean of several rates, with the interval of a normal distribution. `None` for fewer than
    /// two.
    #[must_use]
    pub fn of_rates(rates: &[f64]) -> Option<Self> {
        if rates.len() < 2 {
            return None;
        }
        let count = rates.len() as f64;
        let likely = rates.iter().sum::<f64>() / count;
        let spread = rates.iter().map(|rate| (rate - likely).powi(2)).sum::<f64>() / (count - 1.0);
        let to_each_side = DEVIATIONS * (spread / count).sqrt();
        Some(Self { low: likely - to_each_side, likely, high: likely + to_each_side })
    }

    /// A value without uncertainty.
    #[must_use]
    pub const fn exact(value: f64) -> Self {
        Self { low: value, likely: value, high: value }
    }

    /// The product with a factor. A negative factor swaps the bounds.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        self.map(|value| value * factor)
    }

    /// The sum; both may be at their bounds at once.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::sorted(self.low + other.low, self.likely + other.likely, self.high + other.high)
    }

    /// The difference to `other`, with the same cause of uncertainty: bound minus bound.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self::sorted(self.low - other.low, self.likely - other.likely, self.high - other.high)
    }

    /// 1 less the number: a relative time becomes the saving, and the other way round.
    #[must_use]
    pub fn rest(self) -> Self {
        Self { low: 1.0 - self.high, likely: 1.0 - self.likely, high: 1.0 - self.low }
    }

    /// The share of `whole`, clamped to -1 to 1; 0 if `whole` is not positive.
    #[must_use]
    pub fn share_of(self, whole: f64) -> Self {
        if whole > 0.0 { self.map(|value| (value / whole).clamp(-1.0, 1.0)) } else { Self::exact(0.0) }
    }

    /// Itself, if all three numbers are finite.
    #[must_use]
    pub fn finite(self) -> Option<Self> {
        [self.low, self.likely, self.high].into_iter().all(f64::is_finite).then_some(self)
    }

    /// The image under a monotonic function. A falling one swaps the bounds.
    #[must_use]
    pub fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self::sorted(change(self.low), change(self.likely), change(self.high))
    }

    fn sorted(one: f64, likely: f64, other: f64) -> Self {
        Self { low: one.min(other).min(likely), likely, high: one.max(other).max(likely) }
    }
}

#[cfg(test)]
mod tests {
    use super::Interval;

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
    fn rates_that_scatter_have_wide_intervals() {
        let close = Interval::of_rates(&[10.0, 10.1, 9.9, 10.0]).unwrap();
        let far = Interval::of_rates(&[5.0, 15.0, 7.0, 13.0]).unwrap();
        assert!((close.likely - 10.0).abs() < 1e-9 && (far.likely - 10.0).abs() < 1e-9);
        near(close, 9.92, 10.08);
        assert!(far.high - far.low > 30.0 * (close.high - close.low));
        assert_eq!(Interval::of_rates(&[1.0]), None);
    }

    #[test]
    fn shares_are_clamped_and_defined_for_an_empty_whole() {
        assert_eq!(Interval::exact(7.0).share_of(5.0), Interval::exact(1.0));
        assert_eq!(Interval::exact(7.0).share_of(0.0), Interval::exact(0.0));
    }
}
