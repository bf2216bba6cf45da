//! Random access (HPC Challenge): one thread reads, xors and writes 8 bytes at random indices of a
//! large table. Each update costs a TLB miss.

use clap::Parser;
use fieldstone_workloads::{
    Error,
    fill::fill,
    gups::{SEED, first_xor, update},
    phase::timed,
    size,
    verdict::{conclude, expect_equal},
};
use std::{hint::black_box, process::ExitCode};

/// Update a table at random indices: read, xor, write.
#[derive(Parser)]
#[command(name = "gups", version)]
struct Arguments {
    /// Size of the table in bytes, for example 2G.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Number of updates.
    #[arg(default_value_t = 1 << 26, value_parser = clap::value_parser!(u64).range(1..))]
    updates: u64,
}

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let words = arguments.size / size_of::<u64>();
    if words == 0 {
        return Err(Error::Argument { what: "SIZE is less than one 8-byte word".into() });
    }
    let mut table = timed("init", || fill(words, |i| i as u64))?;
    // Pass the slice, not the vector: its address and length stay in registers, so an update is one
    // memory access.
    let written = timed("kernel", || update(black_box(&mut table[..]), words, arguments.updates, SEED));
    timed("verify", || {
        expect_equal("the xor of the table", &table.iter().fold(0, |xor, v| xor ^ v), &(first_xor(words) ^ written))?;
        Ok(weighted_sum(&table))
    })
}

/// A checksum that depends on the position of each value.
fn weighted_sum(table: &[u64]) -> u64 {
    table.iter().zip((1_u64..).step_by(2)).fold(0, |sum, (v, weight)| sum.wrapping_add(v.wrapping_mul(weight)))
}

fn main() -> ExitCode {
    conclude("gups", run(&Arguments::parse()))
}
