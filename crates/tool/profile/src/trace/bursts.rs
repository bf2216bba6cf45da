//! Estimate the sampling error of bursts from their variation, and decide where bursts must be
//! denser.
//!
//! A burst is a series of counted accesses of one thread. The walk rate of the run is a ratio of
//! two weighted sums, walks by accesses. Its standard error is that of a ratio estimate (Cochran,
//! *Sampling Techniques*, 6.4).
//!
//! Limit: the bursts count as a sample without a pattern. The error is wrong for a program with the
//! period of the bursts.

/// Minimum ratio of a burst's walks to the average that counts as more.
const MIN_RATE_RATIO: f64 = 2.0;

/// Weighted sums over the bursts of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct BurstStatistics {
    count: u64,
    accesses: f64,
    walks: f64,
    /// Sums of the squares and of the products.
    squared_accesses: f64,
    products: f64,
    squared_walks: f64,
}

/// The counts of one burst.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BurstCounts {
    pub(super) accesses: u64,
    pub(super) walks: u64,
}

impl BurstStatistics {
    /// Adds a burst with this weight.
    pub(super) fn add(&mut self, BurstCounts { accesses, walks }: BurstCounts, weight: f64) {
        if accesses == 0 {
            return;
        }
        let (accesses, walks) = (accesses as f64 * weight, walks as f64 * weight);
        self.count += 1;
        self.accesses += accesses;
        self.walks += walks;
        self.squared_accesses += accesses * accesses;
        self.products += accesses * walks;
        self.squared_walks += walks * walks;
    }

    /// Weighted sum of the accesses.
    pub(super) fn accesses(&self) -> f64 {
        self.accesses
    }

    /// Weighted sum of the walks.
    pub(super) fn walks(&self) -> f64 {
        self.walks
    }

    /// Number of bursts.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Relative standard error of the walk rate; `None` with fewer than two bursts.
    pub(super) fn relative_error(&self) -> Option<f64> {
        if self.count < 2 {
            return None;
        }
        let mean = self.walks / self.accesses;
        // Without any walk, all bursts agree.
        if mean == 0.0 {
            return Some(0.0);
        }
        let apart = self.squared_walks - 2.0 * mean * self.products + mean * mean * self.squared_accesses;
        let count = self.count as f64;
        Some((apart.max(0.0) * count / (count - 1.0)).sqrt() / self.walks)
    }
}

/// The walk rate of a thread so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct WalkRate {
    accesses: f64,
    walks: f64,
    factor: u64,
}

impl Default for WalkRate {
    fn default() -> Self {
        Self { accesses: 0.0, walks: 0.0, factor: 1 }
    }
}

impl WalkRate {
    /// Adds a burst; each of its accesses represents `weight` accesses.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small ratio, limited to 1e6")]
    pub(super) fn add(&mut self, burst: BurstCounts, weight: f64) {
        let expected = self.walks / self.accesses * burst.accesses as f64;
        let more = burst.walks as f64 / expected;
        self.factor = if expected > 0.0 && more >= MIN_RATE_RATIO { more.min(1e6) as u64 } else { 1 };
        self.accesses += burst.accesses as f64 * weight;
        self.walks += burst.walks as f64 * weight;
    }

    /// The ratio of the last burst's rate to the average, rounded down; 1 if it is below 2. The
    /// density of bursts grows by this factor, so that each burst represents about as many walks as
    /// elsewhere.
    pub(super) fn density_factor(&self) -> u64 {
        self.factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bursts: &[(u64, u64)]) -> Option<f64> {
        let mut all = BurstStatistics::default();
        bursts.iter().for_each(|&(accesses, walks)| all.add(BurstCounts { accesses, walks }, 1.0));
        all.relative_error()
    }

    #[test]
    fn the_density_grows_where_there_are_more_walks() {
        let mut rate = WalkRate::default();
        let mut after = |walks, weight| {
            rate.add(BurstCounts { accesses: 1000, walks }, weight);
            rate.density_factor()
        };
        assert_eq!(after(0, 1.0), 1, "there is no earlier burst");
        assert_eq!(after(8, 1.0), 1, "the earlier burst has no walk");
        // The average is 4, then 5, then 6.
        assert_eq!([after(7, 1.0), after(5, 1.0)], [1, 1]);
        assert_eq!([after(10, 1e-6), after(9, 1e-6), after(52, 1e-6)], [2, 1, 10]);
    }

    #[test]
    fn bursts_that_differ_have_a_larger_error() {
        // Rates 0.1 and 0.3, equal weights: mean 0.2, variance 0.01 * 2 / 1, error 0.1, half of the
        // mean.
        let error_of_two = error(&[(1000, 100), (1000, 300)]).unwrap();
        assert!((error_of_two - 0.5).abs() < 1e-9, "{error_of_two}");
        // Rates 0.1 (of 3000) and 0.5 (of 1000): the mean is 0.2, so each differs by 300 walks;
        // sqrt(2 * 300^2 * 2 / 1) of 800.
        let weighted = error(&[(3000, 300), (1000, 500)]).unwrap();
        assert!((weighted - 600.0 / 800.0).abs() < 1e-9, "{weighted}");
        assert!(error(&[(1000, 100); 10]).unwrap() < 1e-6, "all are equal");
        assert_eq!((error(&[]), error(&[(10, 1)]), error(&[(10, 1), (0, 0)])), (None, None, None));
        assert_eq!(error(&[(10, 0), (10, 0)]), Some(0.0));
    }
}
