//! A bound on losses: an amount at once, and a share of the time that passes.
//!
//! ```text
//!   left  most ┤▔▔╲          ╱▔▔▔▔   rises by `share` of the time, up to `most`
//!              │   ╲__   __╱         falls by each cost
//!            0 ┼──────╲╱──────────   below zero: nothing more may be spent
//! ```
//! In a time t at most `most + share * t` is spent, plus the last cost. This is a token bucket, as
//! networks use it to bound traffic.

/// Nanoseconds that may be lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowance {
    most_ns: f64,
    share: f64,
    left_ns: f64,
    /// Time at which `left_ns` was valid.
    at_ns: u64,
}

impl Allowance {
    /// A full allowance: `most_ns` at once, and `share` of the time from `now_ns` on.
    #[must_use]
    pub const fn new(most_ns: f64, share: f64, now_ns: u64) -> Self {
        Self { most_ns, share, left_ns: most_ns, at_ns: now_ns }
    }

    /// The rest at this time in nanoseconds; negative if more was spent.
    #[must_use]
    pub fn left_ns(&self, now_ns: u64) -> f64 {
        let earned_ns = now_ns.saturating_sub(self.at_ns) as f64 * self.share;
        (self.left_ns + earned_ns).min(self.most_ns)
    }

    /// Subtracts a cost.
    pub fn spend(&mut self, cost_ns: f64, now_ns: u64) {
        *self = Self { left_ns: self.left_ns(now_ns) - cost_ns, at_ns: now_ns.max(self.at_ns), ..*self };
    }

    /// Adds a cost that has turned out to be a gain.
    pub fn refund(&mut self, cost_ns: f64) {
        self.left_ns = (self.left_ns + cost_ns).min(self.most_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::Allowance;

    #[test]
    fn spending_over_time_is_bounded() {
        let mut allowance = Allowance::new(100.0, 0.1, 0);
        let mut spent = 0.0;
        for now_ns in 0..10_000 {
            while allowance.left_ns(now_ns) > 0.0 {
                allowance.spend(7.0, now_ns);
                spent += 7.0;
            }
        }
        assert!((1000.0..=100.0 + 1000.0 + 7.0).contains(&spent), "{spent}");
    }

    #[test]
    fn a_long_pause_earns_no_more_than_the_maximum() {
        let mut allowance = Allowance::new(100.0, 0.1, 0);
        allowance.spend(250.0, 1_000_000);
        assert_eq!(allowance.left_ns(1_000_000), -150.0);
        assert_eq!(allowance.left_ns(1_001_000), -50.0);
        allowance.refund(250.0);
        assert_eq!(allowance.left_ns(1_001_000), 100.0);
        assert_eq!(allowance.left_ns(0), 100.0, "the clock does not go back");
    }
}
