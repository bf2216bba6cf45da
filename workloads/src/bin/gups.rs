//! Random access (HPC Challenge): read, xor, write 8 bytes at a random place of a big table, one thread. A TLB miss an update.
//!
//! Where we differ from HPCC: the stream is splitmix64 (HPCC's shift register doubles the last index at each step), the
//! table may have any size, and the check is exact and cheap instead of a second run: xor is its own inverse, so the xor of
//! the whole table must be the xor of its first contents and of all the values that were written in.

use clap::Parser;
use fieldstone_workloads::{
    Error,
    fill::fill,
    phase::timed,
    random::{SplitMix64, scale},
    size,
    verdict::{conclude, expect_equal},
};
use std::{hint::black_box, process::ExitCode};

/// Updates a table at random, read-xor-write.
#[derive(Parser)]
#[command(name = "gups", version)]
struct Arguments {
    /// Bytes of the table, for example 2G.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Number of updates.
    #[arg(default_value_t = 1 << 26, value_parser = clap::value_parser!(u64).range(1..))]
    updates: u64,
}

const SEED: u64 = 0x6775_7073;

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let words = arguments.size / size_of::<u64>();
    if words == 0 {
        return Err(Error::Argument { what: "SIZE is less than one 8-byte word".into() });
    }
    let mut table = timed("init", || fill(words, |i| i as u64))?;
    let written = timed("kernel", || update(black_box(&mut table), arguments.updates));
    timed("verify", || {
        let first = (0..words as u64).fold(0, |xor, i| xor ^ i);
        expect_equal("the xor of the table", &table.iter().fold(0, |xor, v| xor ^ v), &(first ^ written))?;
        Ok(weighted_sum(&table))
    })
}

/// The kernel; returns the xor of all values written in.
#[inline(never)]
fn update(table: &mut [u64], updates: u64) -> u64 {
    let mut random = SplitMix64::new(SEED);
    let mut xor = 0;
    for _ in 0..updates {
        let draw = random.draw();
        let place = scale(draw, table.len());
        table[place] ^= draw;
        xor ^= draw;
    }
    xor
}

/// A checksum that sees where a value stands.
fn weighted_sum(table: &[u64]) -> u64 {
    table.iter().zip((1_u64..).step_by(2)).fold(0, |sum, (v, weight)| sum.wrapping_add(v.wrapping_mul(weight)))
}

fn main() -> ExitCode {
    conclude("gups", run(&Arguments::parse()))
}
