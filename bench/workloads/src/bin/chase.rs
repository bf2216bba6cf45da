//! Pointer chase over one cycle through all cache lines in random order: each read's address is the
//! value of the previous read. Reads never overlap, so a step costs a cache miss plus, on small
//! pages, a page walk.
//!
//! Sattolo's shuffle makes a permutation with a single cycle, so a lap visits each line once. After
//! a lap the chase is back at its start, and the sum of the visited indices is known.

use clap::Parser;
use fieldstone_workloads::{
    Error,
    fill::fill,
    phase::timed,
    random::SplitMix64,
    size,
    verdict::{conclude, expect_equal},
};
use std::{hint::black_box, process::ExitCode};

/// Follow a random cycle of pointers, one per cache line.
#[derive(Parser)]
#[command(name = "chase", version)]
struct Arguments {
    /// Size of the array in bytes, for example 1G.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Number of steps.
    #[arg(default_value_t = 1 << 24, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
}

/// A cache line; its first word is the index of the next line.
type CacheLine = [usize; 8];

const SEED: u64 = 0x0063_6861_7365;

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let lines = arguments.size / size_of::<CacheLine>();
    if lines < 2 {
        return Err(Error::Argument { what: "SIZE is less than two lines of 64 bytes".into() });
    }
    let array = timed("init", || cycle(lines))?;
    timed("kernel", || laps(black_box(&array), arguments.steps))
}

/// Sattolo's shuffle of the identity.
fn cycle(lines: usize) -> Result<Vec<CacheLine>, Error> {
    let mut array = fill(lines, |i| [i; 8])?;
    let mut random = SplitMix64::new(SEED);
    for i in (1..lines).rev() {
        let j = random.below(i);
        let (low, high) = array.split_at_mut(i);
        std::mem::swap(&mut low[j][0], &mut high[0][0]);
    }
    Ok(array)
}

/// Walks `steps`, lap by lap from line 0, and checks each lap. Returns the sum of the visited
/// indices.
fn laps(array: &[CacheLine], steps: u64) -> Result<u64, Error> {
    let lap = array.len() as u64;
    let lap_sum = lap * (lap - 1) / 2;
    let mut total = 0_u64;
    for _ in 0..steps / lap {
        expect_equal("index and sum after a lap", &walk(array, lap), &(0, lap_sum))?;
        total = total.wrapping_add(lap_sum);
    }
    let (end, sum) = walk(array, steps % lap);
    if end == 0 && !steps.is_multiple_of(lap) {
        return Err(Error::wrong("the walk returned to its start before the end of the lap"));
    }
    Ok(total.wrapping_add(sum).wrapping_add(end as u64))
}

/// The kernel: returns the last index, and the sum of the visited indices.
#[inline(never)]
fn walk(array: &[CacheLine], steps: u64) -> (usize, u64) {
    let (mut at, mut sum) = (0, 0_u64);
    for _ in 0..steps {
        at = array[at][0];
        sum = sum.wrapping_add(at as u64);
    }
    (at, sum)
}

fn main() -> ExitCode {
    conclude("chase", run(&Arguments::parse()))
}
