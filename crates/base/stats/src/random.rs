//! splitmix64 (Steele, Lea, Flood 2014): a counter through a mixing bijection. A draw takes one
//! addition and two multiplications. Any seed works, the n-th draw can be computed directly, and
//! 2^64 draws are all different.

/// The generator. Not cryptographically secure.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

/// The counter's increment: 2^64 divided by the golden ratio, odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The bijection from a counter to a draw. `mix(seed + (n + 1) * gamma)` is draw n of `seed`.
#[must_use]
#[inline]
pub const fn mix(counter: u64) -> u64 {
    let z = (counter ^ (counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl SplitMix64 {
    /// Creates the stream of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    #[inline]
    pub const fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state)
    }

    /// An index below `n`, or 0 when `n` is 0. Biased by less than n / 2^64.
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        scale(self.draw(), n)
    }

    /// A float from 0 inclusive to 1 exclusive, 24 bits of it random.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "24 bits are what an f32 holds exactly")]
    pub fn unit(&mut self) -> f32 {
        (self.draw() >> 40) as f32 / (1_u64 << 24) as f32
    }
}

/// `draw` as a fraction of 2^64, times `n`: an index below `n`.
#[must_use]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the product's upper half is below n, which is a usize")]
pub const fn scale(draw: u64, n: usize) -> usize {
    ((draw as u128 * n as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_draws_are_the_published_ones() {
        // From the reference program splitmix64.c (Vigna), seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.draw(), 6_457_827_717_110_365_317);
        assert_eq!(random.draw(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn bounded_draws_stay_below_and_reach_both_ends() {
        let mut random = SplitMix64::new(1);
        let mut seen = [0_u32; 7];
        for _ in 0..7000 {
            seen[random.below(7)] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
