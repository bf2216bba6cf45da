//! The cost of a program's page walks on this machine, from timed loads at its addresses on 4 KiB
//! and on 2 MiB pages.
//!
//! ```text
//!   ns per load on 4 KiB − ns per load on 2 MiB  =  near walks per load × near  +  far walks per load × far
//!
//!   sequential      all its walks are near                              gives   near
//!   program         its addresses, with its share of dependent loads    gives   far
//! ```
//! Each point is measured at the program's footprint, since a walk's cost grows with the part of
//! the page table that is not cached. All walks get one price if near walks were not measured, if
//! few walks are far, or if noise makes near walks cost more than far ones.

use serde::{Deserialize, Serialize};

use fieldstone_stats::Interval;

use super::PageWalkCost;
use crate::error::{Error, Result};

/// The upper bound of a walk's cost in ns, to limit noise.
const MAX_NS: f64 = 1000.0;
/// The fewest walks per load from which a price can be computed.
const MIN_WALKS: f64 = 1e-4;
/// The smallest share of far walks that can be priced separately.
const MIN_FAR_SHARE: f64 = 0.1;

/// The access pattern of a calibration run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CalibrationPattern {
    /// The program's addresses, with its share of dependent loads.
    Program,
    /// Page after page: consecutive page table entries share cache lines.
    Sequential,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CalibrationPoint {
    /// The access pattern.
    pub pattern: CalibrationPattern,
    /// Walks per load on 4 KiB pages minus those on 2 MiB pages, with the entry's cache line
    /// recently used.
    pub near_walks: f64,
    /// The same for walks whose entry's cache line was not recently used.
    pub far_walks: f64,
    /// Nanoseconds per load on 4 KiB pages minus those on 2 MiB pages.
    pub ns: Interval,
}

/// Measurements at one footprint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Calibration {
    /// Bytes of memory accessed.
    pub footprint_bytes: u64,
    /// The points in any order; a pattern that was not measured has none.
    pub points: Vec<CalibrationPoint>,
}

impl Calibration {
    /// Computes the cost of a page walk.
    ///
    /// # Errors
    /// [`Error::Measurement`] if the program's loads were not measured, had no walks, or were not
    /// slower on 4 KiB pages.
    pub fn walk_cost(&self) -> Result<PageWalkCost> {
        let own = self.measured(CalibrationPattern::Program)?;
        if own.ns.high <= 0.0 {
            return Err(Error::Measurement {
                what: "calibration",
                problem: "loads on 4 KiB pages are not slower despite their walks".to_owned(),
                remedy: "calibrate on a quiet machine, or with a larger footprint",
            });
        }
        let near = self.measured(CalibrationPattern::Sequential).ok().map(CalibrationPoint::one_price);
        let near = near.filter(|_| own.far_walks >= MIN_FAR_SHARE * own.walks());
        let separate = near.map(|near| PageWalkCost { near_ns: near, far_ns: own.far_price(near) });
        // A far price at the upper bound, or below the near price, is noise divided by few walks:
        // far walks read the same entries from farther away.
        let is_price = |cost: &PageWalkCost| (cost.near_ns.likely..MAX_NS).contains(&cost.far_ns.likely);
        let one_ns = own.one_price();
        Ok(separate.filter(is_price).unwrap_or(PageWalkCost { near_ns: one_ns, far_ns: one_ns }))
    }

    fn measured(&self, pattern: CalibrationPattern) -> Result<&CalibrationPoint> {
        let usable = |point: &&CalibrationPoint| point.pattern == pattern && point.walks() >= MIN_WALKS;
        self.points.iter().find(usable).ok_or_else(|| Error::Measurement {
            what: "calibration",
            problem: format!("there is no {pattern:?} point with walks"),
            remedy: "calibrate with a footprint beyond the reach of the TLBs",
        })
    }
}

impl CalibrationPoint {
    fn walks(&self) -> f64 {
        self.near_walks + self.far_walks
    }

    /// The price of a walk, near or far.
    fn one_price(&self) -> Interval {
        self.ns.map(|ns| (ns / self.walks()).clamp(0.0, MAX_NS))
    }

    /// The price of a far walk if a near one costs `near`.
    fn far_price(&self, near: Interval) -> Interval {
        self.ns.map(|ns| ((ns - self.near_walks * near.likely) / self.far_walks).clamp(0.0, MAX_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::{Calibration, CalibrationPattern, CalibrationPoint, Interval};

    fn point(pattern: CalibrationPattern, near_walks: f64, far_walks: f64, ns: [f64; 3]) -> CalibrationPoint {
        let [low, likely, high] = ns;
        CalibrationPoint { pattern, near_walks, far_walks, ns: Interval { low, likely, high } }
    }

    fn calibration() -> Calibration {
        let points = vec![
            point(CalibrationPattern::Program, 0.5, 0.5, [6.5, 20.0, 61.5]),
            point(CalibrationPattern::Sequential, 1.0, 0.0, [2.0, 3.0, 4.0]),
        ];
        Calibration { footprint_bytes: 1 << 30, points }
    }

    #[test]
    fn near_walks_are_subtracted_before_far_ones_are_priced() {
        let cost = calibration().walk_cost().unwrap();
        assert_eq!(cost.near_ns, Interval { low: 2.0, likely: 3.0, high: 4.0 });
        // (6.5 − 0.5 × 3) / 0.5 for the likely value.
        assert_eq!(cost.far_ns, Interval { low: 10.0, likely: 37.0, high: 120.0 });
    }

    #[test]
    fn the_prices_reproduce_the_measurement() {
        let cost = calibration().walk_cost().unwrap();
        assert!((0.5 * cost.near_ns.likely + 0.5 * cost.far_ns.likely - 20.0).abs() < 1e-9, "{cost:?}");
    }

    #[test]
    fn walks_that_cannot_be_separated_have_one_price() {
        let mut all_near = calibration();
        (all_near.points[0].near_walks, all_near.points[0].far_walks) = (0.98, 0.02);
        let mut unmeasured = calibration();
        unmeasured.points.pop();
        for one in [all_near, unmeasured] {
            let cost = one.walk_cost().unwrap();
            assert_eq!(cost.near_ns, cost.far_ns);
            assert!((cost.far_ns.likely - 20.0).abs() < 1e-9, "{cost:?}");
        }
    }

    #[test]
    fn noise_is_clamped_to_the_bounds_of_a_price() {
        let mut noisy = calibration();
        noisy.points[0].ns = Interval { low: -50.0, likely: -5.0, high: 1e9 };
        let cost = noisy.walk_cost().unwrap();
        assert_eq!((cost.far_ns.low, cost.far_ns.likely, cost.far_ns.high), (0.0, 0.0, 1000.0));
    }

    #[test]
    fn far_walks_beyond_the_bound_share_one_price() {
        let mut noisy = calibration();
        noisy.points[0] = point(CalibrationPattern::Program, 0.85, 0.15, [299.0, 300.0, 301.0]);
        let cost = noisy.walk_cost().unwrap();
        assert_eq!((cost.near_ns, cost.far_ns.likely), (cost.far_ns, 300.0), "(300 - 0.85 x 3) / 0.15 is 1983");
    }

    #[test]
    fn near_walks_never_cost_more_than_far_ones() {
        let mut noisy = calibration();
        noisy.points[0] = point(CalibrationPattern::Program, 0.5, 0.5, [5.5, 6.5, 7.5]);
        noisy.points[1] = point(CalibrationPattern::Sequential, 1.0, 0.0, [7.5, 8.5, 9.5]);
        let cost = noisy.walk_cost().unwrap();
        assert_eq!((cost.near_ns, cost.far_ns.likely), (cost.far_ns, 6.5), "(6.5 - 0.5 x 8.5) / 0.5 is 4.5");
    }

    #[test]
    fn a_missing_measurement_is_reported() {
        let mut lacking = calibration();
        (lacking.points[0].near_walks, lacking.points[0].far_walks) = (0.0, 0.0);
        let error = lacking.walk_cost().unwrap_err().to_string();
        assert!(error.contains("Program") && error.contains("beyond the reach"), "{error}");
        let mut no_slower = calibration();
        no_slower.points[0].ns = Interval { low: -2.0, likely: -1.0, high: 0.0 };
        let error = no_slower.walk_cost().unwrap_err().to_string();
        assert!(error.contains("not slower"), "{error}");
    }
}
