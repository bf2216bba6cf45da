//! Black-Scholes prices of European options over any array type: the kernel, the options, the
//! check.
//!
//! The normal distribution is Abramowitz and Stegun's polynomial 26.2.17 (error below 7.5e-8), in
//! single precision, as in PARSEC. Options are synthetic and come in pairs: 2i is a call and 2i + 1
//! the put of the same contract. The check is put-call parity for every pair: C - P = S - K exp(-r
//! T). Parity alone holds for any odd-symmetric distribution, so the first pair is a textbook one
//! with known prices.

use std::ops::Index;

use crate::{Error, random::SplitMix64};

/// An option. Money is in any currency, times in years, rates per year.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contract {
    /// The price of the share today.
    pub spot: f32,
    /// The price at which the option buys or sells the share.
    pub strike: f32,
    /// The risk-free interest rate.
    pub rate: f32,
    /// The standard deviation of the share's yearly return.
    pub volatility: f32,
    /// The time to expiry in years.
    pub time: f32,
    /// Whether the option sells (put) or buys (call) the share.
    pub put: bool,
}

/// The published layout: an array for each field, of any indexable type.
#[derive(Debug)]
pub struct Arrays<F, B> {
    /// See [`Contract::spot`].
    pub spot: F,
    /// See [`Contract::strike`].
    pub strike: F,
    /// See [`Contract::rate`].
    pub rate: F,
    /// See [`Contract::volatility`].
    pub volatility: F,
    /// See [`Contract::time`].
    pub time: F,
    /// See [`Contract::put`].
    pub put: B,
}

const SEED: u64 = 0x0062_7363_686f;
/// Hull, Options, Futures, and Other Derivatives: call 4.76, put 0.81.
const TEXTBOOK: Contract = Contract { spot: 42.0, strike: 40.0, rate: 0.10, volatility: 0.20, time: 0.5, put: false };

/// The cumulative normal distribution.
fn normal(x: f32) -> f32 {
    let k = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let polynomial =
        k * (0.319_381_53 + k * (-0.356_563_78 + k * (1.781_477_9 + k * (-1.821_255_9 + k * 1.330_274_5))));
    let tail = (-0.5 * x * x).exp() * 0.398_942_3 * polynomial;
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// The price of `option` today.
#[must_use]
#[inline(always)]
pub fn price(option: Contract) -> f32 {
    let Contract { spot, strike, rate, volatility, time, put } = option;
    price_of(spot, strike, rate, volatility, time, put)
}

/// One function for all array types, with arguments in registers, as in PARSEC: only the loads
/// differ.
#[inline(never)]
fn price_of(spot: f32, strike: f32, rate: f32, volatility: f32, time: f32, put: bool) -> f32 {
    let spread = volatility * time.sqrt();
    let d1 = ((spot / strike).ln() + (rate + 0.5 * volatility * volatility) * time) / spread;
    let discounted = strike * (-rate * time).exp();
    let (up, down) = (normal(d1), normal(d1 - spread));
    if put { discounted * (1.0 - down) - spot * (1.0 - up) } else { spot * up - discounted * down }
}

/// Pairs of call and put, the textbook pair first.
pub fn contracts(n: usize) -> impl Iterator<Item = Contract> {
    let mut random = SplitMix64::new(SEED);
    let drawn = move || Contract {
        spot: 10.0 + 90.0 * random.unit(),
        strike: 10.0 + 90.0 * random.unit(),
        rate: 0.01 + 0.09 * random.unit(),
        volatility: 0.05 + 0.60 * random.unit(),
        time: 0.05 + random.unit(),
        put: false,
    };
    std::iter::once(TEXTBOOK)
        .chain(std::iter::repeat_with(drawn))
        .flat_map(|call| [call, Contract { put: true, ..call }])
        .take(n)
}

impl<F, B> Arrays<F, B> {
    /// Creates the arrays: `numbers` and `flags` create one from the function that selects a field.
    ///
    /// # Errors
    /// The first error of `numbers` or `flags`.
    pub fn try_new<E>(
        mut numbers: impl FnMut(fn(Contract) -> f32) -> Result<F, E>,
        flags: impl FnOnce(fn(Contract) -> bool) -> Result<B, E>,
    ) -> Result<Self, E> {
        Ok(Self {
            spot: numbers(|c| c.spot)?,
            strike: numbers(|c| c.strike)?,
            rate: numbers(|c| c.rate)?,
            volatility: numbers(|c| c.volatility)?,
            time: numbers(|c| c.time)?,
            put: flags(|c| c.put)?,
        })
    }
}

impl<F: Index<usize, Output = f32>, B: Index<usize, Output = bool>> Arrays<F, B> {
    /// Option `i`, gathered from all arrays.
    #[inline(always)]
    pub fn get(&self, i: usize) -> Contract {
        Contract {
            spot: self.spot[i],
            strike: self.strike[i],
            rate: self.rate[i],
            volatility: self.volatility[i],
            time: self.time[i],
            put: self.put[i],
        }
    }
}

/// Checks the textbook prices, and the parity of each pair of [`contracts`]. Returns the sum of all
/// prices in hundredths.
///
/// # Errors
/// [`Error::Wrong`] for the first wrong pair.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rounded price, below 10,000")]
pub fn verify(prices: &[f32]) -> Result<u64, Error> {
    let &[call, put, ..] = prices else { return Err(Error::wrong("there are fewer than two prices")) };
    if (call - 4.76).abs() > 0.005 || (put - 0.81).abs() > 0.005 {
        return Err(Error::wrong(format!("the textbook pair costs {call} and {put}, not 4.76 and 0.81")));
    }
    let mut options = contracts(prices.len());
    let mut sum = 0;
    for pair in prices.chunks_exact(2) {
        let (Some(call), Some(_)) = (options.next(), options.next()) else { break };
        let parity = call.spot - call.strike * (-call.rate * call.time).exp();
        // Single precision: each price carries a few rounding errors of the size of 2^-24 of spot
        // and strike.
        let error = (pair[0] - pair[1] - parity).abs();
        if error.is_nan() || error > 8e-6 * (call.spot + call.strike) {
            return Err(Error::wrong(format!("call {} and put {} violate parity {parity}", pair[0], pair[1])));
        }
        sum += pair.iter().map(|p| (p * 100.0).round().max(0.0) as u64).sum::<u64>();
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_matches_its_table() {
        for (x, expected) in
            [(0.0, 0.5), (1.0, 0.841_344_7), (-1.0, 0.158_655_3), (1.96, 0.975_002_1), (-3.0, 0.001_349_9)]
        {
            assert!((normal(x) - expected).abs() < 3e-7, "{x}: {}", normal(x));
        }
    }

    #[test]
    fn a_wrong_price_is_found() {
        let mut prices: Vec<f32> = contracts(8).map(price).collect();
        assert!(verify(&prices).is_ok());
        prices[5] += 0.01;
        assert!(verify(&prices).is_err());
    }
}
