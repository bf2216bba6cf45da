//! A number with its unit.
//!
//! Three significant digits for what was measured, binary units for bytes, a space before a unit:
//! see [`quantity`].

use crate::quantity;
use fieldstone_stats::{Estimate, Interval};
use std::fmt;

/// What stands behind a number that a noisy measurement is behind.
pub(crate) const NOISY_MARK: &str = "~";

/// What a number is of, and how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes: `1.50 GiB`.
    Bytes,
    /// A whole number: `1,234,567`.
    Count,
    /// Seconds: `12.3 µs`.
    Seconds,
    /// Nanoseconds, always as such: `30.4 ns`.
    Nanoseconds,
    /// A ratio: `0.612`.
    Ratio,
    /// A change, as a fraction: `-2.5 %`.
    Percent,
    /// A part of a whole, as a fraction: `99.96 %`.
    Share,
    /// A share that is known to about 0.01: `97 %`.
    RoughShare,
    /// A time as a part of another, estimated: `0.61`.
    TimeShare,
    /// A rate, such as page walks for 1,000 accesses: `0.004`.
    Rate,
}

/// A number, or two or three that belong together, with a unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// One number.
    Number(f64, Unit),
    /// The ends of an interval: `0.590 – 0.612`.
    Interval {
        /// The lower end.
        low: f64,
        /// The upper end.
        high: f64,
        /// The unit of both.
        unit: Unit,
        /// Whether these are only the least and the most of a few values: `range 0.590 – 0.612`.
        is_range: bool,
    },
    /// An estimate with its bounds: `34.1 % (20.9–47.3)`.
    Estimate {
        /// The numbers.
        range: Interval,
        /// The unit of all three.
        unit: Unit,
        /// Whether the middle means nothing: `10.8 % to 100.0 %`.
        bounds_only: bool,
        /// Whether a noisy measurement is behind it.
        is_noisy: bool,
    },
}

impl Unit {
    /// The function that writes a number.
    pub fn writer(self) -> fn(f64) -> String {
        match self {
            Self::Bytes => |number| quantity::bytes(whole(number)),
            Self::Count => |number| quantity::count(whole(number)),
            Self::Seconds => quantity::seconds,
            Self::Nanoseconds => quantity::nanoseconds,
            Self::Ratio => quantity::ratio,
            Self::Percent => quantity::percent,
            Self::Share => quantity::share,
            Self::RoughShare => quantity::rough_share,
            Self::TimeShare => quantity::hundredths,
            Self::Rate => quantity::rate,
        }
    }

    /// `number` with this unit.
    pub const fn of(self, number: f64) -> Value {
        Value::Number(number, self)
    }

    /// An estimate in this unit.
    pub const fn estimate(self, range: Interval) -> Value {
        Value::Estimate { range, unit: self, bounds_only: false, is_noisy: false }
    }
}

/// A number of bytes or things, as they are counted: below 0 is 0.
fn whole(number: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a double saturates")]
    let whole = number as u64;
    whole
}

impl Value {
    /// A number of bytes.
    pub const fn bytes(bytes: u64) -> Self {
        Self::Number(bytes as f64, Unit::Bytes)
    }

    /// A number of things.
    pub const fn count(count: u64) -> Self {
        Self::Number(count as f64, Unit::Count)
    }

    /// The interval of an estimate; its range where there are too few values for an interval.
    /// `None` for a single value.
    pub fn interval(estimate: &Estimate, unit: Unit) -> Option<Self> {
        let (low, high, is_range) = (estimate.low, estimate.high, !estimate.is_interval());
        (estimate.n >= 2).then_some(Self::Interval { low, high, unit, is_range })
    }

    /// The number and the unit, if it is one number.
    pub(crate) const fn number(self) -> Option<(f64, Unit)> {
        match self {
            Self::Number(number, unit) => Some((number, unit)),
            Self::Interval { .. } | Self::Estimate { .. } => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Number(number, unit) => f.write_str(&unit.writer()(number)),
            Self::Interval { low, high, unit, is_range } => {
                let ends = quantity::interval(low, high, unit.writer());
                if is_range { write!(f, "range {ends}") } else { f.write_str(&ends) }
            }
            Self::Estimate { range, unit, bounds_only, is_noisy } => {
                let write = if bounds_only { quantity::bounds } else { quantity::estimate };
                f.write_str(&write(&range, unit.writer()))?;
                if is_noisy { write!(f, " {NOISY_MARK}") } else { Ok(()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_has_no_range() {
        let of = |values: &[f64]| Value::interval(&Estimate::of_median(values).unwrap(), Unit::Ratio);
        assert_eq!(of(&[0.899]), None);
        assert_eq!(of(&[0.8, 0.9]).unwrap().to_string(), "range 0.800 – 0.900");
    }

    #[test]
    fn an_estimate_is_marked_where_it_is_noisy_and_has_no_middle_where_that_means_nothing() {
        let range = Interval { low: 0.209, likely: 0.341, high: 1.0 };
        assert_eq!(Unit::Share.estimate(range).to_string(), "34.1 % (20.9–100.0)");
        let marked = Value::Estimate { range, unit: Unit::Share, bounds_only: true, is_noisy: true };
        assert_eq!(marked.to_string(), "20.9 % to 100.0 % ~");
        assert_eq!(Value::bytes(u64::MAX).to_string(), "16 EiB");
    }
}
