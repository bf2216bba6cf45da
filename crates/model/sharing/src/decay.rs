//! Weights that decay: half of a weight is left after each half-life.
//!
//! Algorithm: forward decay. Nothing is updated only to decay. A sum has an epoch, the time from
//! which it counts. Later weights are added multiplied by the growth since the epoch, and a reader
//! divides by the growth until now. The order of samples does not matter.
//!
//! ```text
//!   epoch          at            now
//!   ──┼─────────────┼─────────────┼──→      added: w · 2^((at - epoch) / half-life)
//!     0             1             2         read:  sum / 2^((now - epoch) / half-life)
//! ```
//! After [`MOST_EXPONENT`] half-lives the epoch moves, so that the numbers stay small.
//!
//! Source: Cormode et al., *Forward Decay*, ICDE 2009.

/// Half-lives after which an epoch moves. 2^40 times a million samples is far inside the range of
/// an `f32`.
pub(crate) const MOST_EXPONENT: f64 = 40.0;

/// The rate of decay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HalfLife {
    /// In nanoseconds; infinite for no decay.
    ns: f64,
}

impl HalfLife {
    pub(crate) fn new(half_life_ns: Option<u64>) -> Self {
        Self { ns: half_life_ns.map_or(f64::INFINITY, |ns| ns as f64) }
    }

    /// Half-lives from `epoch_ns` to `at_ns`; negative if `at_ns` is earlier.
    pub(crate) fn exponent(self, epoch_ns: u64, at_ns: u64) -> f64 {
        let apart = at_ns.abs_diff(epoch_ns) as f64 / self.ns;
        if at_ns < epoch_ns { -apart } else { apart }
    }

    /// Factor of a weight at `at_ns` relative to one at `epoch_ns`.
    pub(crate) fn growth(self, epoch_ns: u64, at_ns: u64) -> f64 {
        self.exponent(epoch_ns, at_ns).exp2()
    }

    /// Factor that is left at `now_ns` of a sum with this epoch.
    pub(crate) fn rest(self, epoch_ns: u64, now_ns: u64) -> f64 {
        (-self.exponent(epoch_ns, now_ns)).exp2()
    }
}

/// One decaying sum.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DecayedSum {
    value: f64,
    epoch_ns: u64,
}

impl DecayedSum {
    pub(crate) fn add(&mut self, weight: f64, at_ns: u64, half_life: HalfLife) {
        if self.value == 0.0 {
            self.epoch_ns = at_ns;
        }
        if half_life.exponent(self.epoch_ns, at_ns) > MOST_EXPONENT {
            self.value *= half_life.rest(self.epoch_ns, at_ns);
            self.epoch_ns = at_ns;
        }
        self.value += weight * half_life.growth(self.epoch_ns, at_ns);
    }

    pub(crate) fn at(&self, now_ns: u64, half_life: HalfLife) -> f64 {
        self.value * half_life.rest(self.epoch_ns, now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::{DecayedSum, HalfLife};

    #[test]
    fn half_is_left_after_a_half_life() {
        let (half_life, mut sum) = (HalfLife::new(Some(100)), DecayedSum::default());
        sum.add(8.0, 1000, half_life);
        sum.add(4.0, 1100, half_life);
        assert!((sum.at(1100, half_life) - 8.0).abs() < 1e-12);
        assert!((sum.at(1300, half_life) - 2.0).abs() < 1e-12);
        // A late weight counts as if it had arrived in time.
        sum.add(4.0, 1000, half_life);
        assert!((sum.at(1100, half_life) - 10.0).abs() < 1e-12);
    }

    #[test]
    fn long_times_do_not_overflow() {
        let (half_life, mut sum) = (HalfLife::new(Some(1)), DecayedSum::default());
        for at_ns in [0, 39, 79, 5000, u64::MAX / 2] {
            sum.add(1.0, at_ns, half_life);
            assert!((sum.at(at_ns, half_life) - 1.0).abs() < 1e-9, "{at_ns}");
        }
        assert!(sum.at(u64::MAX, half_life).abs() < 1e-12);
    }

    #[test]
    fn without_a_half_life_nothing_decays() {
        let (never, mut sum) = (HalfLife::new(None), DecayedSum::default());
        sum.add(1.0, 7, never);
        sum.add(1.0, u64::MAX, never);
        assert!((sum.at(0, never) - 2.0).abs() < 1e-12);
    }
}
