//! Pointer chase: each read's address is the last read's value, over one cycle through all cache lines in random order.
//! Nothing overlaps: a step costs a cache miss and, on small pages, the walk before it.
//!
//! Sattolo's shuffle makes a permutation that is one single cycle, so that a lap visits each line once: after a lap the walk
//! must be back where it began, and the sum of the indices it saw is known.

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

/// Follows a random cycle of pointers, a cache line each.
#[derive(Parser)]
#[command(name = "chase", version)]
struct Arguments {
    /// Bytes of the array, for example 1G.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Number of steps.
    #[arg(default_value_t = 1 << 24, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
}

/// A cache line; the first word is the index of the next one.
type Line = [usize; 8];

const SEED: u64 = 0x0063_6861_7365;

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let lines = arguments.size / size_of::<Line>();
    if lines < 2 {
        return Err(Error::Argument { what: "SIZE is less than two lines of 64 bytes".into() });
    }
    let array = timed("init", || cycle(lines))?;
    timed("kernel", || laps(black_box(&array), arguments.steps))
}

/// Sattolo's shuffle of the identity.
fn cycle(lines: usize) -> Result<Vec<Line>, Error> {
    let mut array = fill(lines, |i| [i; 8])?;
    let mut random = SplitMix64::new(SEED);
    for i in (1..lines).rev() {
        let j = random.below(i);
        let (low, high) = array.split_at_mut(i);
        std::mem::swap(&mut low[j][0], &mut high[0][0]);
    }
    Ok(array)
}

/// Walks `steps`, lap by lap from line 0, and checks each lap. Returns the sum of the indices seen.
fn laps(array: &[Line], steps: u64) -> Result<u64, Error> {
    let lap = array.len() as u64;
    let lap_sum = lap * (lap - 1) / 2;
    let mut total = 0_u64;
    for _ in 0..steps / lap {
        expect_equal("place and sum after a lap", &walk(array, lap), &(0, lap_sum))?;
        total = total.wrapping_add(lap_sum);
    }
    let (end, sum) = walk(array, steps % lap);
    if end == 0 && !steps.is_multiple_of(lap) {
        return Err(Error::wrong("the walk came back before the lap was over"));
    }
    Ok(total.wrapping_add(sum).wrapping_add(end as u64))
}

/// The kernel: where the walk ends, and the sum of the indices on the way.
#[inline(never)]
fn walk(array: &[Line], steps: u64) -> (usize, u64) {
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
