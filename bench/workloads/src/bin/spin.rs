//! A CPU-bound program with almost no memory. It gains nothing from any page size, and shows the
//! overhead of a remedy for programs that do not need one.
//!
//! N steps of Lehmer's generator (x becomes a x modulo the prime 2^61 - 1), each dependent on the
//! previous one. LLVM would combine several affine steps modulo 2^64 into one. The result is
//! checked by a^N, which takes log2 N multiplications.

use clap::Parser;
use fieldstone_workloads::{
    Error,
    phase::timed,
    verdict::{conclude, expect_equal},
};
use std::{hint::black_box, process::ExitCode};

/// Multiply N times.
#[derive(Parser)]
#[command(name = "spin", version)]
struct Arguments {
    /// Number of steps; a billion take a few seconds.
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    n: u64,
}

/// A Mersenne prime.
const MODULUS: u64 = (1 << 61) - 1;
/// Any number of large order would do.
const MULTIPLIER: u64 = 437_799_614_237_992_725;

/// The product modulo 2^61 - 1. There 2^61 equals 1, so the upper bits are added to the lower ones.
/// Both factors are below the modulus.
#[expect(clippy::cast_possible_truncation, reason = "the product is below 2^122, both parts fit")]
const fn multiply(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    let sum = (product as u64 & MODULUS) + (product >> 61) as u64;
    if sum >= MODULUS { sum - MODULUS } else { sum }
}

/// a^n by squaring and multiplying.
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
