//! Converts counts to time.
//!
//! A walk costs a few to more than a hundred nanoseconds. It is cheap if the cache line of its last
//! entry is near, more expensive if not, and most expensive if the program cannot continue without
//! it. So an estimate has three values, and [`PageWalkCost`] prices near and far walks separately:
//!
//! ```text
//!   time = near walks × near + far walks × far        far: low      as few dependent walks as possible
//!                                                          likely   the likely number
//!                                                          high     as many as possible
//! ```
//! [`Calibration`] computes prices on a machine from timed loads at a program's addresses.
//! [`MosaicFit`] computes them from real runs with different shares of larger pages. They are
//! independent, so each checks the other.

mod calibration;
mod mosaic_fit;

use serde::{Deserialize, Serialize};

use crate::simulator::{Counts, SideCounts};

use fieldstone_stats::Interval;

pub use calibration::{Calibration, CalibrationPattern, CalibrationPoint};
pub use mosaic_fit::{MosaicFit, MosaicRun};

/// The cost of a page walk.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PageWalkCost {
    /// A walk whose last entry's cache line was recently used, in ns.
    pub near_ns: Interval,
    /// A walk that reads its last entry from farther away, in ns.
    pub far_ns: Interval,
}

impl PageWalkCost {
    /// Nanoseconds of all counted walks, for data and instructions.
    #[must_use]
    pub fn of(&self, counts: &Counts) -> Interval {
        self.of_side(&counts.data).plus(self.of_side(&counts.instruction))
    }

    /// Nanoseconds of the walks for data or instructions.
    #[must_use]
    pub fn of_side(&self, side: &SideCounts) -> Interval {
        let far = side.walks_pte_line_missed;
        self.near_ns.times((side.walks - far) as f64).plus(self.far_ns.times(far as f64))
    }

    /// The share of the run time spent in these walks. The run took `run_ns` and made `scale` times
    /// the counted accesses (1 for a full trace; for bursts, all accesses divided by the counted
    /// ones).
    #[must_use]
    pub fn share(&self, side: &SideCounts, scale: f64, run_ns: f64) -> Interval {
        self.of_side(side).times(scale).share_of(run_ns)
    }

    /// The share of the run time that `other` would save; negative if it would cost time. `counts`
    /// are those of the configuration that ran for `run_ns`.
    #[must_use]
    pub fn saving(&self, counts: &Counts, other: &Counts, scale: f64, run_ns: f64) -> Interval {
        self.of(counts).minus(self.of(other)).times(scale).share_of(run_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::{Interval, PageWalkCost};
    use crate::simulator::{Counts, SideCounts};

    const COST: PageWalkCost = PageWalkCost {
        near_ns: Interval { low: 3.0, likely: 3.0, high: 3.0 },
        far_ns: Interval { low: 5.0, likely: 50.0, high: 100.0 },
    };

    fn counts(walks: u64, far: u64) -> Counts {
        let side = SideCounts { accesses: 1000, walks, walks_pte_line_missed: far, ..SideCounts::default() };
        Counts { data: side, ..Counts::default() }
    }

    #[test]
    fn near_and_far_walks_are_priced_separately() {
        // 60 near ones: 180 ns. 40 far ones: 200, 2000, 4000 ns.
        let cost = COST.of(&counts(100, 40));
        assert_eq!(cost, Interval { low: 380.0, likely: 2180.0, high: 4180.0 });
        let share = COST.share(&counts(100, 40).data, 2.0, 10_000.0);
        assert_eq!(share, Interval { low: 0.076, likely: 0.436, high: 0.836 });
    }

    #[test]
    fn a_saving_is_a_difference_and_can_be_negative() {
        let (many, few) = (counts(100, 40), counts(20, 0));
        let saving = COST.saving(&many, &few, 1.0, 10_000.0);
        assert_eq!(saving, Interval { low: 0.032, likely: 0.212, high: 0.412 });
        let loss = COST.saving(&few, &many, 1.0, 10_000.0);
        assert_eq!(loss, Interval { low: -0.412, likely: -0.212, high: -0.032 });
    }
}
