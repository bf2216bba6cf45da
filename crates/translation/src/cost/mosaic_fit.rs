//! What walks cost one program: real runs of it on mosaics, time against walks, a polynomial through them.
//!
//! Two runs make a line, and a line through two runs is known to mislead (Agbarya et al.: up to 192 % off); runs
//! with many different shares of larger pages show how the time bends. Polynomials of degree 1 to 3 are tried. The one that
//! is best at foretelling each run from the others is taken, and its worst such error is the error of what it foretells.
//! Beyond the runs the curve goes on straight.

use serde::{Deserialize, Serialize};

use super::Estimate;
use crate::error::{Error, Result};

/// One real run: walks are simulated or counted on the same mosaic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MosaicRun {
    /// Page walks of the run.
    pub walks: f64,
    /// Time of the run.
    pub ns: f64,
}

/// Time as a function of walks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MosaicFit {
    /// Factors of the powers of walks, brought to 0 to 1 between `fewest` and `most`; the constant first.
    coefficients: Vec<f64>,
    fewest: f64,
    most: f64,
    error: f64,
}

const MOST_DEGREE: usize = 3;

impl MosaicFit {
    /// Fits runs, four at least, with different walks.
    ///
    /// # Errors
    /// [`Error::Measurement`] where no curve can be drawn.
    pub fn fit(runs: &[MosaicRun]) -> Result<Self> {
        let refuse = |problem: String| Error::Measurement {
            what: "mosaics",
            problem,
            remedy: "run at least four, with shares of larger pages from 0 to 1",
        };
        if runs.len() < 4 {
            return Err(refuse(format!("{} runs", runs.len())));
        }
        let timed = |run: &MosaicRun| run.ns > 0.0 && run.ns.is_finite() && run.walks.is_finite();
        if !runs.iter().all(timed) {
            return Err(refuse("a run without a time".to_owned()));
        }
        let fewest = runs.iter().map(|run| run.walks).fold(f64::INFINITY, f64::min);
        let most = runs.iter().map(|run| run.walks).fold(f64::NEG_INFINITY, f64::max);
        if most <= fewest {
            return Err(refuse(format!("all runs have {most} walks")));
        }
        let points: Vec<(f64, f64)> = runs.iter().map(|run| ((run.walks - fewest) / (most - fewest), run.ns)).collect();
        let degrees = 1..=MOST_DEGREE.min(runs.len() - 2);
        let best = degrees
            .filter_map(|degree| Some((worst_error(&points, degree)?, least_squares(&points, degree)?)))
            .min_by(|one, other| one.0.total_cmp(&other.0));
        let (error, coefficients) = best.ok_or_else(|| refuse("too few different numbers of walks".to_owned()))?;
        Ok(Self { coefficients, fewest, most, error })
    }

    /// Time of a run with so many walks.
    #[must_use]
    pub fn ns(&self, walks: f64) -> Estimate {
        let at = (walks - self.fewest) / (self.most - self.fewest);
        let inside = at.clamp(0.0, 1.0);
        let likely = value(&self.coefficients, inside) + slope(&self.coefficients, inside) * (at - inside);
        Estimate { low: likely * (1.0 - self.error), likely, high: likely * (1.0 + self.error) }
    }

    /// The worst relative error at foretelling one run from the others.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.error
    }

    /// Degree of the polynomial.
    #[must_use]
    pub fn degree(&self) -> usize {
        self.coefficients.len() - 1
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

/// Leaves each point out in turn and foretells it from the others.
fn worst_error(points: &[(f64, f64)], degree: usize) -> Option<f64> {
    let mut worst = 0.0_f64;
    for (left_out, &(at, ns)) in points.iter().enumerate() {
        let mut others = points.to_vec();
        others.remove(left_out);
        let foretold = value(&least_squares(&others, degree)?, at);
        worst = worst.max(((foretold - ns) / ns).abs());
    }
    Some(worst)
}

/// The polynomial with the least squared distance to the points, if they determine one.
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

/// Solves linear equations by elimination, the largest pivot first; the last column is the right side.
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
    fn a_line_is_found_and_goes_on() {
        let fit = MosaicFit::fit(&runs(&[1e6, 2e6, 5e6, 9e6], |walks| 1e9 + 40.0 * walks)).unwrap();
        assert!(fit.error() < 1e-9, "{}", fit.error());
        for walks in [0.0, 3e6, 2e7] {
            assert!((fit.ns(walks).likely / (1e9 + 40.0 * walks) - 1.0).abs() < 1e-9, "{walks}");
        }
    }

    #[test]
    fn a_bend_is_followed_within_the_error_that_is_told() {
        // Walks that overlap cost less: the time bends; a line through the ends is a third off in the middle.
        let time = |walks: f64| 1e9 + 2e9 * (walks / 1e7).powi(2);
        let shares: Vec<f64> = (0..=8).map(|step| f64::from(step) * 1.25e6).collect();
        let fit = MosaicFit::fit(&runs(&shares, time)).unwrap();
        assert!(fit.degree() >= 2 && fit.error() < 1e-6, "degree {}, error {}", fit.degree(), fit.error());
        let foretold = fit.ns(4.4e6);
        assert!((foretold.likely / time(4.4e6) - 1.0).abs() < 1e-6);
        assert!(foretold.low <= foretold.likely && foretold.likely <= foretold.high);
    }

    #[test]
    fn noise_is_told_as_error() {
        let noisy = [1.02, 0.98, 1.02, 0.98, 1.02, 0.98];
        let mut all = runs(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], |walks| 100.0 + walks);
        all.iter_mut().zip(noisy).for_each(|(run, factor)| run.ns *= factor);
        let fit = MosaicFit::fit(&all).unwrap();
        assert!(fit.error() > 0.02 && fit.error() < 0.2, "{}", fit.error());
        for walks in [0.0, 2.5, 5.0] {
            let foretold = fit.ns(walks);
            assert!(foretold.low < 100.0 + walks && 100.0 + walks < foretold.high, "{walks}: {foretold:?}");
        }
    }

    #[test]
    fn what_makes_no_curve_is_refused() {
        let same = runs(&[5.0; 6], |_| 100.0);
        assert!(MosaicFit::fit(&same).unwrap_err().to_string().contains("shares of larger pages"));
        assert!(MosaicFit::fit(&runs(&[1.0, 2.0, 3.0], |walks| walks)).is_err());
        assert!(MosaicFit::fit(&runs(&[1.0, 2.0, 3.0, 4.0], |_| 0.0)).is_err());
    }
}
