//! How well bursts stand for the run that they are taken from: by how much they differ from one another.
//!
//! A burst is what one thread counts in a row. Each has its rate of walks an access; the rate of all is their mean, weighted
//! by accesses, and its standard error is the bursts' standard deviation over the root of their number. That takes the bursts for a
//! sample without a pattern: a program whose own rhythm is that of the bursts is beyond it.

/// The bursts of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Bursts {
    count: u64,
    accesses: f64,
    walks: f64,
    /// Squared rates, weighted by accesses.
    squares: f64,
    /// Weights, and squared ones.
    weights: f64,
    squared_weights: f64,
}

/// A burst that is under way, or all of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Burst {
    pub(super) accesses: u64,
    pub(super) walks: u64,
}

impl Bursts {
    /// A burst is over; it counts so many times.
    pub(super) fn add(&mut self, Burst { accesses, walks }: Burst, weight: f64) {
        if accesses == 0 {
            return;
        }
        let (accesses, walks) = (accesses as f64 * weight, walks as f64 * weight);
        self.count += 1;
        self.accesses += accesses;
        self.walks += walks;
        self.squares += walks * walks / accesses;
        self.weights += weight;
        self.squared_weights += weight * weight;
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The standard error of the rate, as a share of it. None of fewer than two bursts.
    pub(super) fn relative_error(&self) -> Option<f64> {
        if self.count < 2 {
            return None;
        }
        let mean = self.walks / self.accesses;
        // Bursts without a walk all agree.
        if mean == 0.0 {
            return Some(0.0);
        }
        // As many bursts of one weight tell as much as these (Kish).
        let alike = self.weights * self.weights / self.squared_weights;
        let variance = (self.squares / self.accesses - mean * mean).max(0.0) * alike / (alike - 1.0).max(f64::EPSILON);
        Some((variance / alike).sqrt() / mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bursts: &[(u64, u64)]) -> Option<f64> {
        let mut all = Bursts::default();
        bursts.iter().for_each(|&(accesses, walks)| all.add(Burst { accesses, walks }, 1.0));
        all.relative_error()
    }

    #[test]
    fn bursts_that_differ_tell_less() {
        // Rates 0.1 and 0.3, equal weights: mean 0.2, variance 0.01 * 2 / 1, error 0.1, half of the mean.
        let error_of_two = error(&[(1000, 100), (1000, 300)]).unwrap();
        assert!((error_of_two - 0.5).abs() < 1e-9, "{error_of_two}");
        // Rates 0.1 (of 3000) and 0.5 (of 1000): mean 0.2; variance (3 * 0.01 + 0.09) / 4 * 2 = 0.06; error sqrt(0.03) / 0.2.
        let weighted = error(&[(3000, 300), (1000, 500)]).unwrap();
        assert!((weighted - 0.03_f64.sqrt() / 0.2).abs() < 1e-9, "{weighted}");
        assert!(error(&[(1000, 100); 10]).unwrap() < 1e-6, "all the same");
        assert_eq!((error(&[]), error(&[(10, 1)]), error(&[(10, 1), (0, 0)])), (None, None, None));
        assert_eq!(error(&[(10, 0), (10, 0)]), Some(0.0));
    }
}
