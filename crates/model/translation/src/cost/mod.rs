//! From counts to time.
//!
//! A walk costs from a few to more than a hundred nanoseconds: little when the line of its last entry is near, more
//! when it is not, most when the program cannot go on without it. So an [`Estimate`] has three values, and a
//! [`WalkCost`] tells walks whose line was near from the others:
//!
//! ```text
//!   time = near walks × near + far walks × far        far: low      as few walks are waited for as may be
//!                                                          likely   as many as is likely
//!                                                          high     as many as may be
//! ```
//! [`Calibration`] says what walks cost on a machine, from loads at a program's addresses that do nothing else; [`MosaicFit`]
//! what they cost the program, from real runs with different shares of larger pages. Neither knows of the other: each
//! is a check of the other.

mod calibration;
mod mosaic_fit;

use serde::{Deserialize, Serialize};

use crate::simulator::{Counts, Side};

pub use calibration::{Calibration, CalibrationPoint, Pattern};
pub use mosaic_fit::{MosaicFit, MosaicRun};

/// A quantity that is known with doubt.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Estimate {
    /// Not less than this.
    pub low: f64,
    /// Most likely.
    pub likely: f64,
    /// Not more than this.
    pub high: f64,
}

impl Estimate {
    /// Known without doubt.
    #[must_use]
    pub const fn exact(value: f64) -> Self {
        Self { low: value, likely: value, high: value }
    }

    /// Times a number that is known. A negative one swaps the bounds.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        self.map(|value| value * factor)
    }

    /// The sum of two that may both be at their ends.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::sorted(self.low + other.low, self.likely + other.likely, self.high + other.high)
    }

    /// The difference to `other` where both are in doubt for the same reason: bound minus bound.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self::sorted(self.low - other.low, self.likely - other.likely, self.high - other.high)
    }

    /// As a share of `whole`, at most 1 and at least -1; nothing of nothing.
    #[must_use]
    pub fn share_of(self, whole: f64) -> Self {
        if whole > 0.0 { self.map(|value| (value / whole).clamp(-1.0, 1.0)) } else { Self::exact(0.0) }
    }

    fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self::sorted(change(self.low), change(self.likely), change(self.high))
    }

    fn sorted(one: f64, likely: f64, other: f64) -> Self {
        Self { low: one.min(other).min(likely), likely, high: one.max(other).max(likely) }
    }
}

/// What a page walk costs a program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WalkCost {
    /// A walk whose last entry's line was used lately.
    pub near_ns: Estimate,
    /// A walk that reads its last entry from farther away.
    pub far_ns: Estimate,
}

impl WalkCost {
    /// Nanoseconds of all walks that were counted, data and instruction.
    #[must_use]
    pub fn of(&self, counts: &Counts) -> Estimate {
        self.of_side(&counts.data).plus(self.of_side(&counts.instruction))
    }

    /// Nanoseconds of the walks of one side.
    #[must_use]
    pub fn of_side(&self, side: &Side) -> Estimate {
        let far = side.walks_pte_line_missed;
        self.near_ns.times((side.walks - far) as f64).plus(self.far_ns.times(far as f64))
    }

    /// Share of the run time that goes into one side's walks: of a run that took `run_ns` and did `scale` times the accesses
    /// that were counted (1 for a full trace; all accesses by those counted, for bursts).
    #[must_use]
    pub fn share(&self, side: &Side, scale: f64, run_ns: f64) -> Estimate {
        self.of_side(side).times(scale).share_of(run_ns)
    }

    /// Share of the run time that `other` would save: negative where it would cost. `counts` are those of the
    /// configuration that ran for `run_ns`.
    #[must_use]
    pub fn saving(&self, counts: &Counts, other: &Counts, scale: f64, run_ns: f64) -> Estimate {
        self.of(counts).minus(self.of(other)).times(scale).share_of(run_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::{Estimate, WalkCost};
    use crate::simulator::{Counts, Side};

    const COST: WalkCost = WalkCost {
        near_ns: Estimate { low: 3.0, likely: 3.0, high: 3.0 },
        far_ns: Estimate { low: 5.0, likely: 50.0, high: 100.0 },
    };

    fn counts(walks: u64, far: u64) -> Counts {
        let side = Side { accesses: 1000, walks, walks_pte_line_missed: far, ..Side::default() };
        Counts { data: side, ..Counts::default() }
    }

    #[test]
    fn near_and_far_walks_cost_what_they_cost() {
        // 60 near ones: 180 ns. 40 far ones: 200, 2000, 4000 ns.
        let cost = COST.of(&counts(100, 40));
        assert_eq!(cost, Estimate { low: 380.0, likely: 2180.0, high: 4180.0 });
        let share = COST.share(&counts(100, 40).data, 2.0, 10_000.0);
        assert_eq!(share, Estimate { low: 0.076, likely: 0.436, high: 0.836 });
    }

    #[test]
    fn a_saving_is_the_difference_and_may_be_a_loss() {
        let (many, few) = (counts(100, 40), counts(20, 0));
        let saving = COST.saving(&many, &few, 1.0, 10_000.0);
        assert_eq!(saving, Estimate { low: 0.032, likely: 0.212, high: 0.412 });
        let loss = COST.saving(&few, &many, 1.0, 10_000.0);
        assert_eq!(loss, Estimate { low: -0.412, likely: -0.212, high: -0.032 });
    }

    #[test]
    fn shares_stay_shares() {
        assert_eq!(Estimate::exact(7.0).share_of(5.0), Estimate::exact(1.0));
        assert_eq!(Estimate::exact(7.0).share_of(0.0), Estimate::exact(0.0));
    }
}
