//! How well bursts stand for the run that they are taken from, by how much they differ from one another; and where they are to lie closer.
//!
//! A burst is what one thread counts in a row. The rate of all is their walks by their accesses, each burst as often as it counts: a ratio of
//! two sums, and its standard error that of such a ratio (Cochran, *Sampling Techniques*, 6.4). That takes the bursts for a
//! sample without a pattern: a program whose own rhythm is that of the bursts is beyond it.

/// So many times the walks of an average burst are clearly more.
const CLEARLY: f64 = 2.0;

/// The bursts of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Bursts {
    count: u64,
    accesses: f64,
    walks: f64,
    /// Products of the two, and with themselves.
    squared_accesses: f64,
    products: f64,
    squared_walks: f64,
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
        self.squared_accesses += accesses * accesses;
        self.products += accesses * walks;
        self.squared_walks += walks * walks;
    }

    /// Their accesses, each burst's as often as it counts.
    pub(super) fn accesses(&self) -> f64 {
        self.accesses
    }

    /// Their walks, in the same way.
    pub(super) fn walks(&self) -> f64 {
        self.walks
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
        let apart = self.squared_walks - 2.0 * mean * self.products + mean * mean * self.squared_accesses;
        let count = self.count as f64;
        Some((apart.max(0.0) * count / (count - 1.0)).sqrt() / self.walks)
    }
}

/// Walks an access of a thread's run so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    accesses: f64,
    walks: f64,
    haste: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { accesses: 0.0, walks: 0.0, haste: 1 }
    }
}

impl Rate {
    /// A burst is over that stands for `weight` accesses.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small ratio, cut off above")]
    pub(super) fn add(&mut self, burst: Burst, weight: f64) {
        let expected = self.walks / self.accesses * burst.accesses as f64;
        let more = burst.walks as f64 / expected;
        self.haste = if expected > 0.0 && more >= CLEARLY { more.min(1e6) as u64 } else { 1 };
        self.accesses += burst.accesses as f64 * weight;
        self.walks += burst.walks as f64 * weight;
    }

    /// How many times as close bursts are to lie where they are as the last one: each then stands for about as many walks as one does
    /// elsewhere. 1 where it was not clearly more.
    pub(super) fn haste(&self) -> u64 {
        self.haste
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
    fn haste_is_where_there_are_more_walks() {
        let mut rate = Rate::default();
        let mut after = |walks, weight| {
            rate.add(Burst { accesses: 1000, walks }, weight);
            rate.haste()
        };
        assert_eq!(after(0, 1.0), 1, "nothing to compare with");
        assert_eq!(after(8, 1.0), 1, "nor with no walk at all");
        // 4 on average, then 5, 6, ...
        assert_eq!([after(7, 1.0), after(5, 1.0)], [1, 1]);
        assert_eq!([after(10, 1e-6), after(9, 1e-6), after(52, 1e-6)], [2, 1, 10]);
    }

    #[test]
    fn bursts_that_differ_tell_less() {
        // Rates 0.1 and 0.3, equal weights: mean 0.2, variance 0.01 * 2 / 1, error 0.1, half of the mean.
        let error_of_two = error(&[(1000, 100), (1000, 300)]).unwrap();
        assert!((error_of_two - 0.5).abs() < 1e-9, "{error_of_two}");
        // Rates 0.1 (of 3000) and 0.5 (of 1000): mean 0.2, so each is 300 walks off; sqrt(2 * 300^2 * 2 / 1) of 800.
        let weighted = error(&[(3000, 300), (1000, 500)]).unwrap();
        assert!((weighted - 600.0 / 800.0).abs() < 1e-9, "{weighted}");
        assert!(error(&[(1000, 100); 10]).unwrap() < 1e-6, "all the same");
        assert_eq!((error(&[]), error(&[(10, 1)]), error(&[(10, 1), (0, 0)])), (None, None, None));
        assert_eq!(error(&[(10, 0), (10, 0)]), Some(0.0));
    }
}
