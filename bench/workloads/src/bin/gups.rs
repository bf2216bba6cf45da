//! Random access (HPC Challenge): read, xor, write 8 bytes at a random place of a big table, one thread. A TLB miss an update.

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

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let words = arguments.size / size_of::<u64>();
    if words == 0 {
        return Err(Error::Argument { what: "SIZE is less than one 8-byte word".into() });
    }
    let mut table = timed("init", || fill(words, |i| i as u64))?;
    // The slice, not the vector: its address and length are in registers, and an update is one access to memory.
    let written = timed("kernel", || update(black_box(&mut table[..]), words, arguments.updates, SEED));
    timed("verify", || {
        expect_equal("the xor of the table", &table.iter().fold(0, |xor, v| xor ^ v), &(first_xor(words) ^ written))?;
        Ok(weighted_sum(&table))
    })
}

/// A checksum that sees where a value stands.
fn weighted_sum(table: &[u64]) -> u64 {
    table.iter().zip((1_u64..).step_by(2)).fold(0, |sum, (v, weight)| sum.wrapping_add(v.wrapping_mul(weight)))
}

fn main() -> ExitCode {
    conclude("gups", run(&Arguments::parse()))
}
