//! Sums 64-bit words in order: all of them, or one every `--stride` bytes. In order, 512 words
//! share a page walk; with a stride of a page, each word needs its own.
//!
//! Word i holds i, so the sum of a pass is known in closed form.

use clap::Parser;
use fieldstone_workloads::{
    Error,
    fill::fill,
    phase::timed,
    size,
    verdict::{conclude, expect_equal},
};
use std::{hint::black_box, process::ExitCode};

/// Sum an array, in order or with a stride.
#[derive(Parser)]
#[command(name = "scan", version)]
struct Arguments {
    /// Size of the array in bytes, for example 1G.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Number of passes over the array; by default, enough to read 128 Mi cache lines.
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    passes: Option<u64>,
    /// Read one word every BYTES, a multiple of 8.
    #[arg(long, value_name = "BYTES", default_value = "8", value_parser = size::parse)]
    stride: usize,
}

const LINE: usize = 64;
const DEFAULT_LINES: u64 = 1 << 27;

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let words = arguments.size / size_of::<u64>();
    if arguments.stride == 0 || !arguments.stride.is_multiple_of(size_of::<u64>()) {
        return Err(Error::Argument { what: "--stride is not a multiple of 8 bytes, or is 0".into() });
    }
    if words == 0 {
        return Err(Error::Argument { what: "SIZE is less than one 8-byte word".into() });
    }
    let step = arguments.stride / size_of::<u64>();
    let lines = arguments.size.div_ceil(arguments.stride.max(LINE)) as u64;
    let passes = arguments.passes.unwrap_or_else(|| (DEFAULT_LINES / lines).max(1));
    let array = timed("init", || fill(words, |i| i as u64))?;
    let total =
        timed("kernel", || (0..passes).fold(0_u64, |total, _| total.wrapping_add(sum(black_box(&array), step))));
    expect_equal("the sum", &total, &series(words, step).wrapping_mul(passes))?;
    Ok(total)
}

/// One pass. The sequential loop is separate, so that it is compiled to vector code.
#[inline(never)]
fn sum(array: &[u64], step: usize) -> u64 {
    if step == 1 {
        array.iter().fold(0, |sum, v| sum.wrapping_add(*v))
    } else {
        array.iter().step_by(step).fold(0, |sum, v| sum.wrapping_add(*v))
    }
}

/// 0 + step + 2 step + …, below `words`, modulo 2^64.
#[expect(clippy::cast_possible_truncation, reason = "the sum is modulo 2^64")]
fn series(words: usize, step: usize) -> u64 {
    let count = words.div_ceil(step) as u128;
    (count * (count - 1) / 2 * step as u128) as u64
}

fn main() -> ExitCode {
    conclude("scan", run(&Arguments::parse()))
}
