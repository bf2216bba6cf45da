//! What walks cost one program on this machine: its own addresses, loaded in known ways on 4 KiB and on 2 MiB pages.
//!
//! ```text
//!   ns a load on 4 KiB − ns a load on 2 MiB  =  near walks a load × near  +  far walks a load × far
//!
//!   sequential      all its walks are near ones                     gives   near
//!   program         its addresses, as many waiting as it has        gives   far
//! ```
//! Each point was taken at the program's own footprint, since a walk's cost grows with what of the page table is out of the
//! caches. Where near walks were not measured, hardly any walk is far, or noise makes near ones the dearer, all walks have one
//! price: what is measured is their mixture, and a quotient of two small numbers is none.

use serde::{Deserialize, Serialize};

use super::{Estimate, WalkCost};
use crate::error::{Error, Result};

/// A walk costs no more than this, whatever the noise says.
const MOST_NS: f64 = 1000.0;
/// Fewer walks a load than this are no base for a price.
const FEWEST: f64 = 1e-4;
/// A smaller part of far walks than this cannot be told from the near ones.
const FAR_SHARE: f64 = 0.1;

/// How a calibrating program accesses its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// As the program does: at its addresses, of which as many are waited for.
    Program,
    /// Page after page: the lines of page table entries are near.
    Sequential,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CalibrationPoint {
    /// How the loads followed each other.
    pub pattern: Pattern,
    /// Walks a load on 4 KiB pages minus those on 2 MiB pages, the entry's line used lately.
    pub near_walks: f64,
    /// The same, the line not used lately.
    pub far_walks: f64,
    /// Nanoseconds of a load on 4 KiB pages minus those on 2 MiB pages.
    pub ns: Estimate,
}

/// Measurements at one footprint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Calibration {
    /// Memory that was accessed.
    pub footprint_bytes: u64,
    /// In any order; a pattern that was not measured has none.
    pub points: Vec<CalibrationPoint>,
}

impl Calibration {
    /// What a walk costs the program.
    ///
    /// # Errors
    /// [`Error::Measurement`] where its loads were not measured, had no walks, or were no slower for them.
    pub fn walk_cost(&self) -> Result<WalkCost> {
        let own = self.measured(Pattern::Program)?;
        if own.ns.high <= 0.0 {
            return Err(Error::Measurement {
                what: "calibration",
                problem: "found no load slower on 4 KiB pages, for all their walks".to_owned(),
                remedy: "calibrate on a quiet machine, or with a larger footprint",
            });
        }
        let near = self.measured(Pattern::Sequential).ok().map(CalibrationPoint::one_price);
        let near = near.filter(|_| own.far_walks >= FAR_SHARE * own.walks());
        let apart = near.map(|near| WalkCost { near_ns: near, far_ns: own.far_price(near) });
        // What is left for far walks is no price where it reaches the bound, or is below that of near ones, which read the same
        // entries from nearer: then it is noise divided by few walks.
        let is_price = |cost: &WalkCost| (cost.near_ns.likely..MOST_NS).contains(&cost.far_ns.likely);
        let one_ns = own.one_price();
        Ok(apart.filter(is_price).unwrap_or(WalkCost { near_ns: one_ns, far_ns: one_ns }))
    }

    fn measured(&self, pattern: Pattern) -> Result<&CalibrationPoint> {
        let usable = |point: &&CalibrationPoint| point.pattern == pattern && point.walks() >= FEWEST;
        self.points.iter().find(usable).ok_or_else(|| Error::Measurement {
            what: "calibration",
            problem: format!("has no {pattern:?} point with walks"),
            remedy: "calibrate with a footprint beyond the reach of the TLBs",
        })
    }
}

impl CalibrationPoint {
    fn walks(&self) -> f64 {
        self.near_walks + self.far_walks
    }

    /// A walk, whichever.
    fn one_price(&self) -> Estimate {
        self.ns.map(|ns| (ns / self.walks()).clamp(0.0, MOST_NS))
    }

    /// A far walk, when a near one costs `near`.
    fn far_price(&self, near: Estimate) -> Estimate {
        self.ns.map(|ns| ((ns - self.near_walks * near.likely) / self.far_walks).clamp(0.0, MOST_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::{Calibration, CalibrationPoint, Estimate, Pattern};

    fn point(pattern: Pattern, near_walks: f64, far_walks: f64, ns: [f64; 3]) -> CalibrationPoint {
        let [low, likely, high] = ns;
        CalibrationPoint { pattern, near_walks, far_walks, ns: Estimate { low, likely, high } }
    }

    fn calibration() -> Calibration {
        let points = vec![
            point(Pattern::Program, 0.5, 0.5, [6.5, 20.0, 61.5]),
            point(Pattern::Sequential, 1.0, 0.0, [2.0, 3.0, 4.0]),
        ];
        Calibration { footprint_bytes: 1 << 30, points }
    }

    #[test]
    fn near_walks_are_taken_off_before_far_ones_are_priced() {
        let cost = calibration().walk_cost().unwrap();
        assert_eq!(cost.near_ns, Estimate { low: 2.0, likely: 3.0, high: 4.0 });
        // (6.5 − 0.5 × 3) / 0.5 and so on.
        assert_eq!(cost.far_ns, Estimate { low: 10.0, likely: 37.0, high: 120.0 });
    }

    #[test]
    fn what_was_measured_comes_out_again() {
        let cost = calibration().walk_cost().unwrap();
        assert!((0.5 * cost.near_ns.likely + 0.5 * cost.far_ns.likely - 20.0).abs() < 1e-9, "{cost:?}");
    }

    #[test]
    fn what_cannot_be_told_apart_has_one_price() {
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
    fn noise_makes_no_price_below_nothing_or_beyond_reason() {
        let mut noisy = calibration();
        noisy.points[0].ns = Estimate { low: -50.0, likely: -5.0, high: 1e9 };
        let cost = noisy.walk_cost().unwrap();
        assert_eq!((cost.far_ns.low, cost.far_ns.likely, cost.far_ns.high), (0.0, 0.0, 1000.0));
    }

    #[test]
    fn far_walks_that_would_cost_beyond_reason_are_not_told_apart() {
        let mut noisy = calibration();
        noisy.points[0] = point(Pattern::Program, 0.85, 0.15, [299.0, 300.0, 301.0]);
        let cost = noisy.walk_cost().unwrap();
        assert_eq!((cost.near_ns, cost.far_ns.likely), (cost.far_ns, 300.0), "(300 - 0.85 x 3) / 0.15 is 1983");
    }

    #[test]
    fn near_walks_are_never_the_dearer() {
        let mut noisy = calibration();
        noisy.points[0] = point(Pattern::Program, 0.5, 0.5, [5.5, 6.5, 7.5]);
        noisy.points[1] = point(Pattern::Sequential, 1.0, 0.0, [7.5, 8.5, 9.5]);
        let cost = noisy.walk_cost().unwrap();
        assert_eq!((cost.near_ns, cost.far_ns.likely), (cost.far_ns, 6.5), "(6.5 - 0.5 x 8.5) / 0.5 is 4.5");
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let mut lacking = calibration();
        (lacking.points[0].near_walks, lacking.points[0].far_walks) = (0.0, 0.0);
        let error = lacking.walk_cost().unwrap_err().to_string();
        assert!(error.contains("Program") && error.contains("beyond the reach"), "{error}");
        let mut no_slower = calibration();
        no_slower.points[0].ns = Estimate { low: -2.0, likely: -1.0, high: 0.0 };
        let error = no_slower.walk_cost().unwrap_err().to_string();
        assert!(error.contains("no load slower"), "{error}");
    }
}
