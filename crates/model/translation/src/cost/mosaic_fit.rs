//! The cost of a program's page walks, from real runs on mosaics: a polynomial of time over walks.
//!
//! Two runs determine a line, which is known to mislead (Agbarya et al.: errors up to 192 %). Runs
//! with several shares of larger pages show the curvature. Each run is predicted from the others
//! alone; the worst error is the error of the fit. [`MosaicFit::line`] is the linear model, whose
//! slope is the price of a walk. If walks overlap more the more there are, the curve bends:
//! [`MosaicFit::fit`] tries polynomials of degree 1 to 3 and takes the best predictor. Outside the
//! runs' range the curve is extrapolated linearly.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use fieldstone_stats::Interval;

/// One real run, with walks simulated or counted on the same mosaic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MosaicRun {
    /// Page walks.
    pub walks: f64,
    /// Time in ns.
    pub ns: f64,
}

/// Time as a polynomial of walks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MosaicFit {
    /// Coefficients over walks scaled to 0 to 1 between `fewest` and `most`; the constant first.
    coefficients: Vec<f64>,
    fewest: f64,
    most: f64,
    /// The time of each run predicted by the others, in ns and in their order.
    left_out_ns: Vec<f64>,
    error: f64,
}

const MAX_DEGREE: usize = 3;

impl MosaicFit {
    /// Fits the best-predicting polynomial to at least four runs with different walks.
    ///
    /// # Errors
    /// [`Error::Measurement`] if the runs determine no curve.
    pub fn fit(runs: &[MosaicRun]) -> Result<Self> {
        let most = MAX_DEGREE.min(runs.len().saturating_sub(2)).max(1);
        let all = (1..=most).map(|degree| Self::of_degree(runs, degree));
        let best = all.reduce(|one, other| match (one, other) {
            (Ok(one), Ok(other)) => Ok(if other.error < one.error { other } else { one }),
            // A higher degree may have more coefficients than the runs determine.
            (one, _) => one,
        });
        best.unwrap_or_else(|| Self::of_degree(runs, 1))
    }

    /// Fits a line to at least four runs with different walks.
    ///
    /// # Errors
    /// [`Error::Measurement`] if the runs determine no line.
    pub fn line(runs: &[MosaicRun]) -> Result<Self> {
        Self::of_degree(runs, 1)
    }

    fn of_degree(runs: &[MosaicRun], degree: usize) -> Result<Self> {
        if runs.len() < 4 {
            return Err(refused(format!("there are {} runs", runs.len())));
        }
        let timed = |run: &MosaicRun| run.ns > 0.0 && run.ns.is_finite() && run.walks.is_finite();
        if !runs.iter().all(timed) {
            return Err(refused("a run has no time".to_owned()));
        }
        let fewest = runs.iter().map(|run| run.walks).fold(f64::INFINITY, f64::min);
        let most = runs.iter().map(|run| run.walks).fold(f64::NEG_INFINITY, f64::max);
        if most <= fewest {
            return Err(refused(format!("all runs have {most} walks")));
        }
        let points: Vec<(f64, f64)> = runs.iter().map(|run| ((run.walks - fewest) / (most - fewest), run.ns)).collect();
        let fitted = least_squares(&points, degree).zip(left_out(&points, degree));
        let (coefficients, left_out_ns) =
            fitted.ok_or_else(|| refused("there are too few different numbers of walks".to_owned()))?;
        let errors = left_out_ns.iter().zip(runs).map(|(predicted, run)| ((predicted - run.ns) / run.ns).abs());
        Ok(Self { coefficients, fewest, most, error: errors.fold(0.0, f64::max), left_out_ns })
    }

    /// Predicts the time of a run with `walks` walks, in ns.
    #[must_use]
    pub fn ns(&self, walks: f64) -> Interval {
        let at = (walks - self.fewest) / (self.most - self.fewest);
        let inside = at.clamp(0.0, 1.0);
        let likely = value(&self.coefficients, inside) + slope(&self.coefficients, inside) * (at - inside);
        Interval { low: likely * (1.0 - self.error), likely, high: likely * (1.0 + self.error) }
    }

    /// Nanoseconds per walk: the slope from the fewest walks to the most. Negative if the time
    /// falls.
    #[must_use]
    pub fn walk_ns(&self) -> f64 {
        (value(&self.coefficients, 1.0) - value(&self.coefficients, 0.0)) / (self.most - self.fewest)
    }

    /// The time of each run predicted from the others alone, in ns and in their order.
    #[must_use]
    pub fn left_out_ns(&self) -> &[f64] {
        &self.left_out_ns
    }

    /// The worst relative error of predicting one run from the others.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.error
    }

    /// The degree of the polynomial.
    #[must_use]
    pub fn degree(&self) -> usize {
        self.coefficients.len() - 1
    }
}

fn refused(problem: String) -> Error {
    Error::Measurement {
        what: "mosaics",
        problem,
        remedy: "use at least four runs, with shares of larger pages from 0 to 1",
    }
}

fn value(coefficients: &[f64], at: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, factor| sum * at + factor)
}

fn slope(coefficients: &[f64], at: f64) -> f64 {
    let derived: Vec<f64> =
        (1_u32..).zip(&coefficients[1..]).map(|(power, factor)| f64::from(power) * factor).collect();
    value(&derived, at)
}

/// Predicts each point from the others.
fn left_out(points: &[(f64, f64)], degree: usize) -> Option<Vec<f64>> {
    let predict = |left_out: usize| {
        let mut others = points.to_vec();
        let (at, _) = others.remove(left_out);
        Some(value(&least_squares(&others, degree)?, at))
    };
    (0..points.len()).map(predict).collect()
}

/// The least-squares polynomial; `None` if the points do not determine one.
fn least_squares(points: &[(f64, f64)], degree: usize) -> Option<Vec<f64>> {
    let terms = degree + 1;
    let mut rows = vec![vec![0.0; terms + 1]; terms];
    for &(at, ns) in points {
        let powers: Vec<f64> = std::iter::successors(Some(1.0), |power| Some(power * at)).take(terms).collect();
        for (row, factor) in rows.iter_mut().zip(&powers) {
            for (cell, power) in row.iter_mut().zip(powers.iter().chain([&ns])) {
                *cell += factor * power;
            }
        }
    }
    solve(rows)
}

/// Solves linear equations by elimination with partial pivoting. The last column is the right side.
/// `None` if singular.
fn solve(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let unknowns = rows.len();
    for column in 0..unknowns {
        let pivot =
            (column..unknowns).max_by(|&one, &other| rows[one][column].abs().total_cmp(&rows[other][column].abs()))?;
        rows.swap(column, pivot);
        let head = rows[column].clone();
        if head[column].abs() < 1e-9 {
            return None;
        }
        for (number, row) in rows.iter_mut().enumerate() {
            if number != column {
                let factor = row[column] / head[column];
                row.iter_mut().zip(&head).for_each(|(cell, above)| *cell -= factor * above);
            }
        }
    }
    Some(rows.iter().enumerate().map(|(number, row)| row[unknowns] / row[number]).collect())
}

#[cfg(test)]
mod tests {
    use super::{MosaicFit, MosaicRun};

    fn runs(walks: &[f64], time: impl Fn(f64) -> f64) -> Vec<MosaicRun> {
        walks.iter().map(|&walks| MosaicRun { walks, ns: time(walks) }).collect()
    }

    #[test]
    fn a_line_is_fitted_and_extrapolated() {
        let fit = MosaicFit::fit(&runs(&[1e6, 2e6, 5e6, 9e6], |walks| 1e9 + 40.0 * walks)).unwrap();
        assert!(fit.error() < 1e-9, "{}", fit.error());
        for walks in [0.0, 3e6, 2e7] {
            assert!((fit.ns(walks).likely / (1e9 + 40.0 * walks) - 1.0).abs() < 1e-9, "{walks}");
        }
    }

    #[test]
    fn each_run_is_predicted_from_the_others() {
        let mut all = runs(&[0.0, 1.0, 2.0, 3.0, 4.0], |walks| 100.0 + 10.0 * walks);
        all[2].ns = 150.0;
        let line = MosaicFit::line(&all).unwrap();
        // The four others are on a line through 120 at this point.
        assert!((line.left_out_ns()[2] - 120.0).abs() < 1e-9, "{:?}", line.left_out_ns());
        assert!((line.error() - 0.2).abs() < 1e-9 && line.degree() == 1, "{}", line.error());
        assert!(
            (line.walk_ns() - 10.0).abs() < 1e-9,
            "an outlier in the middle does not change the slope: {}",
            line.walk_ns()
        );
    }

    #[test]
    fn a_curve_gives_the_line_a_large_error() {
        let bent = runs(&[0.0, 1.0, 2.0, 3.0, 4.0], |walks| 100.0 + walks * walks);
        let (line, curve) = (MosaicFit::line(&bent).unwrap(), MosaicFit::fit(&bent).unwrap());
        assert!(line.error() > 0.02 && curve.error() < 1e-9 && curve.degree() == 2, "{line:?} {curve:?}");
        assert!((curve.walk_ns() - 4.0).abs() < 1e-9, "from end to end");
    }

    #[test]
    fn a_curve_is_fitted_within_the_reported_error() {
        // Walks that overlap cost less. A line through the ends is a third off in the middle.
        let time = |walks: f64| 1e9 + 2e9 * (walks / 1e7).powi(2);
        let shares: Vec<f64> = (0..=8).map(|step| f64::from(step) * 1.25e6).collect();
        let fit = MosaicFit::fit(&runs(&shares, time)).unwrap();
        assert!(fit.degree() >= 2 && fit.error() < 1e-6, "degree {}, error {}", fit.degree(), fit.error());
        let predicted = fit.ns(4.4e6);
        assert!((predicted.likely / time(4.4e6) - 1.0).abs() < 1e-6);
        assert!(predicted.low <= predicted.likely && predicted.likely <= predicted.high);
    }

    #[test]
    fn noise_is_reported_as_error() {
        let noisy = [1.02, 0.98, 1.02, 0.98, 1.02, 0.98];
        let mut all = runs(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], |walks| 100.0 + walks);
        all.iter_mut().zip(noisy).for_each(|(run, factor)| run.ns *= factor);
        let fit = MosaicFit::fit(&all).unwrap();
        assert!(fit.error() > 0.02 && fit.error() < 0.2, "{}", fit.error());
        for walks in [0.0, 2.5, 5.0] {
            let predicted = fit.ns(walks);
            assert!(predicted.low < 100.0 + walks && 100.0 + walks < predicted.high, "{walks}: {predicted:?}");
        }
    }

    #[test]
    fn runs_that_determine_no_curve_are_refused() {
        let same = runs(&[5.0; 6], |_| 100.0);
        assert!(MosaicFit::fit(&same).unwrap_err().to_string().contains("shares of larger pages"));
        assert!(MosaicFit::fit(&runs(&[1.0, 2.0, 3.0], |walks| walks)).is_err());
        assert!(MosaicFit::fit(&runs(&[1.0, 2.0, 3.0, 4.0], |_| 0.0)).is_err());
    }
}
