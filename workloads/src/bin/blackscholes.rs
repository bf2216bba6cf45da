//! Black-Scholes prices of N European options, in the two layouts that are compared: an array of structs, and the arrays of
//! PARSEC's published program, one a field.
//!
//! The normal distribution is Abramowitz and Stegun's polynomial 26.2.17 (error below 7.5e-8), in single precision, as in
//! PARSEC. Options are synthetic and come in pairs: 2i is a call and 2i + 1 the put of the same contract, so that every
//! price is checked by put-call parity: C - P = S - K exp(-r T). Parity alone would pass any odd-symmetric distribution, so
//! the first pair is a textbook one with known prices.

use clap::{Parser, ValueEnum};
use fieldstone_workloads::{Error, fill::fill, phase::timed, random::SplitMix64, verdict::conclude};
use std::{hint::black_box, process::ExitCode};

/// Prices options.
#[derive(Parser)]
#[command(name = "blackscholes", version)]
struct Arguments {
    /// Number of options; rounded up to an even number.
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// How often all are priced.
    #[arg(default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// How the options lie in memory.
    #[arg(long, value_enum, default_value_t = Layout::Arrays)]
    layout: Layout,
}

#[derive(Clone, Copy, ValueEnum)]
enum Layout {
    /// An array for each field.
    Arrays,
    /// One array of structs.
    Structs,
}

/// One option; money in any currency, times in years, rates a year.
#[derive(Clone, Copy)]
struct Contract {
    spot: f32,
    strike: f32,
    rate: f32,
    volatility: f32,
    time: f32,
    put: bool,
}

/// The published layout.
#[derive(Default)]
struct Arrays {
    spot: Vec<f32>,
    strike: Vec<f32>,
    rate: Vec<f32>,
    volatility: Vec<f32>,
    time: Vec<f32>,
    put: Vec<bool>,
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
fn price(option: Contract) -> f32 {
    let Contract { spot, strike, rate, volatility, time, put } = option;
    let spread = volatility * time.sqrt();
    let d1 = ((spot / strike).ln() + (rate + 0.5 * volatility * volatility) * time) / spread;
    let discounted = strike * (-rate * time).exp();
    let (up, down) = (normal(d1), normal(d1 - spread));
    if put { discounted * (1.0 - down) - spot * (1.0 - up) } else { spot * up - discounted * down }
}

/// Options in pairs of call and put, the textbook's first.
fn contracts(n: usize) -> impl Iterator<Item = Contract> {
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

fn structs(n: usize) -> Result<Vec<Contract>, Error> {
    let mut source = contracts(n);
    fill(n, |_| source.next().unwrap_or(TEXTBOOK))
}

impl Arrays {
    fn new(n: usize) -> Result<Self, Error> {
        let field = |of: fn(Contract) -> f32| {
            let mut source = contracts(n);
            fill(n, |_| source.next().map_or(0.0, of))
        };
        Ok(Self {
            spot: field(|c| c.spot)?,
            strike: field(|c| c.strike)?,
            rate: field(|c| c.rate)?,
            volatility: field(|c| c.volatility)?,
            time: field(|c| c.time)?,
            put: fill(n, |i| i % 2 == 1)?,
        })
    }

    fn get(&self, i: usize) -> Contract {
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

/// Prices all, `passes` times, from either layout.
fn price_all(arguments: &Arguments, n: usize) -> Result<Vec<f32>, Error> {
    let mut prices = fill(n, |_| 0.0_f32)?;
    match arguments.layout {
        Layout::Structs => {
            let options = timed("init", || structs(n))?;
            timed("kernel", || {
                for _ in 0..arguments.passes {
                    black_box(&mut prices).iter_mut().zip(&options).for_each(|(p, option)| *p = price(*option));
                }
            });
        }
        Layout::Arrays => {
            let options = timed("init", || Arrays::new(n))?;
            timed("kernel", || {
                for _ in 0..arguments.passes {
                    black_box(&mut prices).iter_mut().enumerate().for_each(|(i, p)| *p = price(options.get(i)));
                }
            });
        }
    }
    Ok(prices)
}

/// Textbook prices, parity of every pair; returns the sum of all prices in hundredths.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rounded price, below 10,000")]
fn verify(prices: &[f32], n: usize) -> Result<u64, Error> {
    if (prices[0] - 4.76).abs() > 0.005 || (prices[1] - 0.81).abs() > 0.005 {
        return Err(Error::wrong(format!(
            "the textbook's pair costs {} and {}, not 4.76 and 0.81",
            prices[0], prices[1]
        )));
    }
    let mut options = contracts(n);
    let mut sum = 0;
    for pair in prices.chunks_exact(2) {
        let (Some(call), Some(_)) = (options.next(), options.next()) else { break };
        let parity = call.spot - call.strike * (-call.rate * call.time).exp();
        // Single precision: each price carries a few rounding errors of the size of 2^-24 of spot and strike.
        let error = (pair[0] - pair[1] - parity).abs();
        if error.is_nan() || error > 8e-6 * (call.spot + call.strike) {
            return Err(Error::wrong(format!("call {} and put {} break parity, {parity}", pair[0], pair[1])));
        }
        sum += pair.iter().map(|p| (p * 100.0).round().max(0.0) as u64).sum::<u64>();
    }
    Ok(sum)
}

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let n = (arguments.n as usize).next_multiple_of(2);
    let prices = price_all(arguments, n)?;
    timed("verify", || verify(&prices, n))
}

fn main() -> ExitCode {
    conclude("blackscholes", run(&Arguments::parse()))
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
        assert!(verify(&prices, 8).is_ok());
        prices[5] += 0.01;
        assert!(verify(&prices, 8).is_err());
    }
}
