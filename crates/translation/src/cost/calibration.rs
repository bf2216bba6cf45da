//! What walks cost on a machine: measured by programs that access memory in known ways, on 4 KiB and on 2 MiB pages.
//!
//! Each point is one such program at one footprint: how much longer an access took on 4 KiB, and how many more walks it
//! had. Their ratio is the cost of a walk. It grows with the footprint (more of the page table is out of the caches),
//! about linearly in its logarithm, so between two footprints it is taken from that line; outside, from the nearest.

use serde::{Deserialize, Serialize};

use super::{Estimate, WalkCost};
use crate::error::{Error, Result};

/// How a calibrating program accesses its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Random, each address read from memory by the access before: every walk is waited for.
    Dependent,
    /// Random, addresses known ahead: walks overlap.
    Independent,
    /// Page after page: the lines of page table entries are near.
    Sequential,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CalibrationPoint {
    /// Memory that the program accessed.
    pub footprint_bytes: u64,
    /// How.
    pub pattern: Pattern,
    /// Walks an access on 4 KiB pages minus those on 2 MiB pages, counted or simulated.
    pub walks_an_access: f64,
    /// Time of an access on 4 KiB pages minus that on 2 MiB pages.
    pub ns_an_access: f64,
}

/// Measurements of one machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Calibration {
    /// Which machine.
    pub machine: String,
    /// In any order.
    pub points: Vec<CalibrationPoint>,
}

impl Calibration {
    /// What a walk costs a program with this footprint that waits for `dependent_share` (0 to 1) of its walks.
    ///
    /// # Errors
    /// [`Error::Measurement`] where a pattern was not measured, or a share is none.
    pub fn walk_cost(&self, footprint_bytes: u64, dependent_share: f64) -> Result<WalkCost> {
        if !(0.0..=1.0).contains(&dependent_share) {
            return Err(Error::Measurement {
                what: "dependent share",
                problem: format!("is {dependent_share}"),
                remedy: "give 0 to 1",
            });
        }
        let near_ns = self.walk_ns(Pattern::Sequential, footprint_bytes)?;
        let one = self.walk_ns(Pattern::Independent, footprint_bytes)?;
        let other = self.walk_ns(Pattern::Dependent, footprint_bytes)?;
        // Noise may turn them round where walks cost next to nothing.
        let (low, high) = (one.min(other), one.max(other));
        let likely = low + (high - low) * dependent_share;
        Ok(WalkCost { near_ns, far_ns: Estimate { low, likely, high }, dependent_share })
    }

    /// Nanoseconds of a walk in a pattern, by the logarithm of the footprint; not below 0.
    ///
    /// # Errors
    /// [`Error::Measurement`] where there is no point of the pattern with walks.
    pub fn walk_ns(&self, pattern: Pattern, footprint_bytes: u64) -> Result<f64> {
        let mut line: Vec<(f64, f64)> = self
            .points
            .iter()
            .filter(|point| point.pattern == pattern && point.walks_an_access > 0.0 && point.ns_an_access.is_finite())
            .map(|point| (log(point.footprint_bytes), (point.ns_an_access / point.walks_an_access).max(0.0)))
            .collect();
        line.sort_by(|one, other| one.0.total_cmp(&other.0));
        interpolate(&line, log(footprint_bytes)).ok_or_else(|| Error::Measurement {
            what: "calibration",
            problem: format!("has no {pattern:?} point with walks"),
            remedy: "calibrate again with footprints beyond the reach of the TLBs",
        })
    }
}

fn log(bytes: u64) -> f64 {
    (bytes.max(1) as f64).ln()
}

/// The value at `at` on the line through sorted points; beyond its ends that of the nearest.
fn interpolate(line: &[(f64, f64)], at: f64) -> Option<f64> {
    let behind = line.partition_point(|point| point.0 < at);
    let (before, after) = (line.get(behind.wrapping_sub(1)), line.get(behind));
    match (before, after) {
        (Some(&(x0, y0)), Some(&(x1, y1))) => Some(y0 + (y1 - y0) * (at - x0) / (x1 - x0)),
        (Some(&(_, y)), None) | (None, Some(&(_, y))) => Some(y),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Calibration, CalibrationPoint, Pattern};

    fn point(footprint_mib: u64, pattern: Pattern, walks_an_access: f64, ns_an_access: f64) -> CalibrationPoint {
        CalibrationPoint { footprint_bytes: footprint_mib << 20, pattern, walks_an_access, ns_an_access }
    }

    fn calibration() -> Calibration {
        let points = vec![
            point(1024, Pattern::Dependent, 1.0, 120.0),
            point(256, Pattern::Dependent, 0.5, 40.0),
            point(256, Pattern::Independent, 1.0, 8.0),
            point(1024, Pattern::Sequential, 0.001, 0.003),
            point(64, Pattern::Independent, 0.0, 5.0),
        ];
        Calibration { machine: "made up".to_owned(), points }
    }

    #[test]
    fn costs_lie_on_the_line_of_the_logarithm() {
        let at = |mib: u64| calibration().walk_ns(Pattern::Dependent, mib << 20).unwrap();
        assert!((at(256) - 80.0).abs() < 1e-9 && (at(1024) - 120.0).abs() < 1e-9);
        // 512 is half way between 256 and 1024.
        assert!((at(512) - 100.0).abs() < 1e-9, "{}", at(512));
        assert!((at(1) - 80.0).abs() < 1e-9 && (at(1 << 20) - 120.0).abs() < 1e-9, "beyond the ends: the nearest");
    }

    #[test]
    fn the_share_that_waits_lies_between() {
        let cost = calibration().walk_cost(1 << 30, 0.25).unwrap();
        assert!((cost.near_ns - 3.0).abs() < 1e-9);
        assert!((cost.far_ns.low - 8.0).abs() < 1e-9 && (cost.far_ns.high - 120.0).abs() < 1e-9);
        assert!((cost.far_ns.likely - 36.0).abs() < 1e-9, "8 and a quarter of 112");
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let mut lacking = calibration();
        lacking.points.retain(|point| point.pattern != Pattern::Independent || point.walks_an_access == 0.0);
        let error = lacking.walk_cost(1 << 30, 0.5).unwrap_err().to_string();
        assert!(error.contains("Independent") && error.contains("calibrate again"), "{error}");
        assert!(calibration().walk_cost(1 << 30, 1.5).is_err());
    }
}
