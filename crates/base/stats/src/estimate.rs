//! Medians and what is known about them, without assuming any distribution: run times are skewed,
//! have outliers, and drift.
//!
//! - The interval of a median is a pair of order statistics: of n values in order, the k-th
//!   smallest and the k-th largest hold the true median between them unless fewer than k values
//!   fall on one side of it, which happens with probability 2·P(Binomial(n, 1/2) < k). The largest
//!   k that keeps this at or below 5 % is taken, so the interval errs on the wide side; below n = 6
//!   there is none (David and Nagaraja, *Order Statistics*, 7.1).
//! - A ratio is taken between two runs of the same round, so slow drift of the machine cancels.
//! - The shift between two sets that were *not* measured together is the Hodges-Lehmann estimate:
//!   the median of all ratios b/a, with the interval that inverts the Mann-Whitney test (Hollander,
//!   Wolfe and Chicken, *Nonparametric Statistical Methods*, 4.2 and 4.3).

use serde::Serialize;

use crate::Interval;
use crate::interval::MISS;

/// Fewest values that have a 95 % interval of their median.
pub const FEWEST_FOR_INTERVAL: usize = 6;

/// A median, and how well it is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Number of values.
    pub n: usize,
    /// Their median (for a shift: the Hodges-Lehmann estimate).
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Probability that `low` to `high` holds the true median, at least 0.95. None: there were too
    /// few values, and `low` to `high` is only their range.
    pub confidence: Option<f64>,
}

impl Estimate {
    /// The median of `values` and its interval, or their range if there are fewer than
    /// [`FEWEST_FOR_INTERVAL`]. None if there are no values.
    pub fn of_median(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let n = sorted.len();
        let median = middle(&sorted)?;
        Some(match interval_rank(n) {
            Some((rank, confidence)) => {
                Self { n, median, low: sorted[rank - 1], high: sorted[n - rank], confidence: Some(confidence) }
            }
            None => Self { n, median, low: first, high: last, confidence: None },
        })
    }

    /// How many times `a` the values of `b` are: the Hodges-Lehmann estimate over all ratios b/a,
    /// for two sets that were measured apart. Values that are not positive are left out; `n` is the
    /// smaller set's size. None if a set is empty.
    pub fn of_ratio_apart(a: &[f64], b: &[f64]) -> Option<Self> {
        let (a, b) = (positive(a), positive(b));
        let ratios: Vec<f64> = b.iter().flat_map(|b| a.iter().map(move |a| b / a)).collect();
        let sorted = sorted(&ratios);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let n = a.len().min(b.len());
        let median = middle(&sorted)?;
        Some(match shift_rank(a.len(), b.len()) {
            Some((rank, confidence)) => {
                let high = sorted[sorted.len() - rank];
                Self { n, median, low: sorted[rank - 1], high, confidence: Some(confidence) }
            }
            None => Self { n, median, low: first, high: last, confidence: None },
        })
    }

    /// The median with its bounds, without the number of values and the confidence.
    #[must_use]
    pub const fn interval(&self) -> Interval {
        Interval { low: self.low, likely: self.median, high: self.high }
    }

    /// Whether `low` to `high` is a 95 % interval, and not only the range of a few values.
    pub fn is_interval(&self) -> bool {
        self.confidence.is_some()
    }
}

/// The median of `values`: the mean of the middle two where their number is even. None if there are
/// none.
pub fn median(values: &[f64]) -> Option<f64> {
    middle(&sorted(values))
}

/// How far two runs of the same thing, one after the other, usually are apart: the median of their
/// ratios, the larger over the smaller, less 1. `values` are in the order of the runs. None below
/// three positive values: one pair has nothing usual.
pub fn noise(values: &[f64]) -> Option<f64> {
    let values = positive(values);
    if values.len() < 3 {
        return None;
    }
    let apart: Vec<f64> = values.windows(2).map(|pair| (pair[1] / pair[0]).ln().abs()).collect();
    median(&apart).map(f64::exp_m1)
}

/// How many pairs it would take for the interval of `estimate` to be no wider than `half_width` to
/// each side, given that an interval narrows with the square root of their number. Even, and at
/// least what there is.
pub fn pairs_for(estimate: &Estimate, half_width: f64) -> usize {
    let widening = (estimate.high - estimate.low) / 2.0 / half_width;
    let wanted = (estimate.n as f64 * widening * widening).ceil().clamp(0.0, 1e6);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0 to a million above")]
    let wanted = (wanted as usize).max(estimate.n).max(FEWEST_FOR_INTERVAL);
    wanted.next_multiple_of(2)
}

/// Which order statistics bound the median of `n` values, counted from 1 at each end, and with what
/// probability.
fn interval_rank(n: usize) -> Option<(usize, f64)> {
    // Each term is the chance that exactly `below` of n values fall under the true median, kept as
    // a logarithm: 2^-n itself is zero from n = 1075 on.
    let mut term_ln = -(n as f64) * std::f64::consts::LN_2;
    let mut missed = 0.0;
    let mut best = None;
    for below in 0..n / 2 {
        missed += 2.0 * term_ln.exp();
        if missed > MISS {
            break;
        }
        best = Some((below + 1, 1.0 - missed));
        term_ln += ((n - below) as f64 / (below + 1) as f64).ln();
    }
    best
}

/// The same for the m·n ratios between two sets: from the null distribution of the Mann-Whitney
/// statistic.
fn shift_rank(m: usize, n: usize) -> Option<(usize, f64)> {
    let counts = mann_whitney_counts(m, n);
    let all = choose(m + n, m);
    let mut missed = 0.0;
    let mut best = None;
    for (below, count) in counts.iter().enumerate() {
        missed += 2.0 * count / all;
        if missed > MISS {
            break;
        }
        best = Some((below + 1, 1.0 - missed));
    }
    // Beyond a thousand values the counts overflow; the caller then has only the range.
    best.filter(|(_, confidence)| confidence.is_finite() && all.is_finite())
}

/// In how many orders of m + n values the Mann-Whitney statistic is 0, 1, 2, ... up to m·n/2: the
/// coefficients of the Gaussian binomial, the product over i = 1 … m of (1 - x^(n+i)) / (1 - x^i).
fn mann_whitney_counts(m: usize, n: usize) -> Vec<f64> {
    let length = m * n / 2 + usize::from(m * n > 0);
    let mut counts = vec![0.0; length];
    if let Some(first) = counts.first_mut() {
        *first = 1.0;
    }
    for i in 1..=m {
        for at in (n + i..length).rev() {
            counts[at] -= counts[at - n - i];
        }
        for at in i..length {
            counts[at] += counts[at - i];
        }
    }
    counts
}

fn choose(n: usize, k: usize) -> f64 {
    // Multiplying first keeps every step a whole number.
    (1..=k).fold(1.0, |chosen, i| chosen * (n - k + i) as f64 / i as f64)
}

fn positive(values: &[f64]) -> Vec<f64> {
    values.iter().copied().filter(|value| *value > 0.0 && value.is_finite()).collect()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[half]),
        _ => Some(f64::midpoint(sorted[half - 1], sorted[half])),
    }
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
