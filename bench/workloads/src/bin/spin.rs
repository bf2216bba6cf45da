//! CPU-bound, next to no memory: what gains nothing from any page kind, and shows what a mend costs those who need none.
//!
//! N steps of Lehmer's generator, x becomes a x modulo the prime 2^61 - 1, each waiting for the last. (An affine step modulo
//! 2^64 would not do: LLVM composes several into one.) The result is checked by a^N, which takes log2 N multiplications.

use clap::Parser;
use fieldstone_workloads::{
    Error,
    phase::timed,
    verdict::{conclude, expect_equal},
};
use std::{hint::black_box, process::ExitCode};

/// Multiplies, N times.
#[derive(Parser)]
#[command(name = "spin", version)]
struct Arguments {
    /// Number of steps; a billion take a few seconds.
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    n: u64,
}

/// A Mersenne prime.
const MODULUS: u64 = (1 << 61) - 1;
/// Any number that is not of small order does.
const MULTIPLIER: u64 = 437_799_614_237_992_725;

/// The product modulo 2^61 - 1: 2^61 is 1 there, so the upper bits are added to the lower ones. Both below the modulus.
#[expect(clippy::cast_possible_truncation, reason = "the product is below 2^122, both parts fit")]
const fn multiply(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    let sum = (product as u64 & MODULUS) + (product >> 61) as u64;
    if sum >= MODULUS { sum - MODULUS } else { sum }
}

/// a^n: square and multiply.
fn power(mut a: u64, mut n: u64) -> u64 {
    let mut result = 1;
    while n > 0 {
        if n & 1 == 1 {
            result = multiply(result, a);
        }
        a = multiply(a, a);
        n >>= 1;
    }
    result
}

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let n = black_box(arguments.n);
    let end = timed("kernel", || (0..n).fold(1, |x, _| multiply(x, MULTIPLIER)));
    expect_equal("the last value", &end, &power(MULTIPLIER, n))?;
    Ok(end)
}

fn main() -> ExitCode {
    conclude("spin", run(&Arguments::parse()))
}
