//! Random record numbers as YCSB draws them.
//!
//! ```text
//! Zipfian     rank 0 most often, rank r with a probability near 1 / (r + 1)^0.99
//! Scrambled   hash of a rank modulo the number of records: often drawn records are far apart
//! Latest      newest record minus a rank: new records most often
//! ```
//! Source: Gray et al., *Quickly Generating Billion-Record Synthetic Databases*, SIGMOD 1994; and the
//! generators of brianfrankcooper/YCSB.

use fieldstone_stats::random::SplitMix64;

const THETA: f64 = 0.99;
/// Ranks of [`Scrambled`], and the sum of 1 / r^0.99 over them as YCSB states it.
const SCRAMBLED_RANKS: u64 = 10_000_000_000;
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Ranks with a Zipf distribution.
#[derive(Clone, Debug)]
pub(super) struct Zipfian {
    ranks: u64,
    /// Sum of 1 / r^0.99 over the ranks, from 1.
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    /// Ranks from 0 to `ranks - 1`. The time is proportional to their number.
    fn new(ranks: u64) -> Self {
        let mut zipfian = Self { ranks: 0, zeta: 0.0, eta: 0.0 };
        zipfian.grow(ranks);
        zipfian
    }

    fn with_zeta(ranks: u64, zeta: f64) -> Self {
        let shares = (2.0 / ranks as f64).powf(1.0 - THETA);
        Self { ranks, zeta, eta: (1.0 - shares) / (1.0 - (1.0 + second_weight()) / zeta) }
    }

    /// Adds ranks, so that there are `ranks`.
    fn grow(&mut self, ranks: u64) {
        let added: f64 = (self.ranks..ranks).map(|rank| ((rank + 1) as f64).powf(-THETA)).sum();
        *self = Self::with_zeta(ranks.max(self.ranks), self.zeta + added);
    }

    fn draw(&self, random: &mut SplitMix64) -> u64 {
        let uniform = unit(random);
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + second_weight() {
            return 1;
        }
        let share = (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to the number of ranks")]
        let rank = (self.ranks as f64 * share) as u64;
        rank.min(self.ranks - 1)
    }
}

/// The weight of the second rank; the first one has 1.
fn second_weight() -> f64 {
    0.5_f64.powf(THETA)
}

/// From 0 inclusive to 1 exclusive, 53 bits of it random.
fn unit(random: &mut SplitMix64) -> f64 {
    (random.draw() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Record numbers below a limit, most of them drawn seldom, some often.
#[derive(Clone, Debug)]
pub(super) struct Scrambled {
    ranks: Zipfian,
    limit: u64,
}

impl Scrambled {
    pub(super) fn new(limit: u64) -> Self {
        Self { ranks: Zipfian::with_zeta(SCRAMBLED_RANKS, SCRAMBLED_ZETA), limit }
    }

    /// A record number below `records`, which may be less than the limit: numbers from there on are
    /// drawn again.
    pub(super) fn draw(&self, records: u64, random: &mut SplitMix64) -> u64 {
        loop {
            let number = hash(self.ranks.draw(random)) % self.limit;
            if number < records {
                return number;
            }
        }
    }
}

/// Record numbers, the last ones most often.
#[derive(Clone, Debug)]
pub(super) struct Latest(Zipfian);

impl Latest {
    pub(super) fn new(records: u64) -> Self {
        Self(Zipfian::new(records - 1))
    }

    /// A record number below `records`, which never becomes less.
    pub(super) fn draw(&mut self, records: u64, random: &mut SplitMix64) -> u64 {
        let last = records - 1;
        self.0.grow(last);
        last - self.0.draw(random)
    }
}

/// The absolute value of the FNV-1a hash of the 8 bytes of a number, the lowest byte first.
pub(super) fn hash(number: u64) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    number.to_le_bytes().into_iter().fold(0xCBF2_9CE4_8422_2325, mix).cast_signed().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 200_000;
    const RECORDS: u64 = 1000;

    /// How often each record number was drawn, as a share of all draws.
    fn shares(mut draw: impl FnMut(&mut SplitMix64) -> u64) -> Vec<f64> {
        let (mut random, mut counts) = (SplitMix64::new(1), vec![0_u32; usize::try_from(RECORDS).unwrap()]);
        for _ in 0..DRAWS {
            counts[usize::try_from(draw(&mut random)).unwrap()] += 1;
        }
        counts.into_iter().map(|count| f64::from(count) / f64::from(DRAWS)).collect()
    }

    fn assert_near(measured: f64, expected: f64) {
        assert!((measured / expected - 1.0).abs() < 0.05, "{measured} is not near {expected}");
    }

    #[test]
    fn ranks_have_the_shares_of_the_zipf_distribution() {
        let weights: Vec<f64> = (1..=RECORDS).map(|rank| (rank as f64).powf(-THETA)).collect();
        let zeta: f64 = weights.iter().sum();
        let zipfian = Zipfian::new(RECORDS);
        assert_near(zipfian.zeta, zeta);
        let shares = shares(|random| zipfian.draw(random));
        assert_near(shares[0], 1.0 / zeta);
        assert_near(shares[1], weights[1] / zeta);
        for ranks in [10, 100, 500] {
            let expected: f64 = weights[..ranks].iter().sum::<f64>() / zeta;
            assert_near(shares[..ranks].iter().sum(), expected);
        }
    }

    #[test]
    fn ranks_that_are_added_have_the_same_distribution_as_those_from_the_start() {
        let mut grown = Zipfian::new(10);
        grown.grow(RECORDS);
        let all = Zipfian::new(RECORDS);
        assert!((grown.zeta - all.zeta).abs() < 1e-9 && (grown.eta - all.eta).abs() < 1e-9, "{grown:?} {all:?}");
    }

    #[test]
    fn scrambled_numbers_are_spread_and_the_most_frequent_one_is_that_of_rank_0() {
        let scrambled = Scrambled::new(RECORDS);
        let shares = shares(|random| scrambled.draw(RECORDS, random));
        let most = (0..shares.len()).max_by(|&one, &other| shares[one].total_cmp(&shares[other])).unwrap();
        assert_eq!(most as u64, hash(0) % RECORDS);
        // Other ranks have this number too.
        assert!((0.95 / SCRAMBLED_ZETA..0.042).contains(&shares[most]), "{}", shares[most]);
        assert!(shares.iter().all(|&share| share > 0.0), "each record is drawn");
    }

    #[test]
    fn scrambled_numbers_are_below_the_number_of_records() {
        let scrambled = Scrambled::new(RECORDS);
        let mut random = SplitMix64::new(2);
        assert!((0..10_000).all(|_| scrambled.draw(RECORDS / 2, &mut random) < RECORDS / 2));
    }

    #[test]
    fn the_newest_record_is_drawn_most_often() {
        let mut latest = Latest::new(RECORDS / 2);
        let shares = shares(|random| latest.draw(RECORDS, random));
        let zeta: f64 = (1..RECORDS).map(|rank| (rank as f64).powf(-THETA)).sum();
        let newest = shares.len() - 1;
        assert_near(shares[newest], 1.0 / zeta);
        assert!(shares[newest] > shares[newest - 1] && shares[newest - 1] > shares[newest - 10]);
    }

    #[test]
    fn the_hash_is_that_of_ycsb() {
        assert_eq!(hash(0), 6_284_781_860_667_377_211);
    }
}
