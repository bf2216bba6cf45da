//! Compares stable and unstable sorting in pairs of runs: `cargo run --release -p fieldstone-stats
//! --example paired`.

use std::convert::Infallible;
use std::hint::black_box;
use std::time::Instant;

use fieldstone_stats::random::SplitMix64;
use fieldstone_stats::{Estimate, Rounds};

fn main() {
    let mut random = SplitMix64::new(1);
    let numbers: Vec<u64> = (0..100_000).map(|_| random.draw()).collect();
    let run = |contender: usize| {
        let mut numbers = black_box(numbers.clone());
        let start = Instant::now();
        if contender == 0 {
            numbers.sort()
        } else {
            numbers.sort_unstable()
        }
        black_box(numbers);
        Ok::<_, Infallible>(start.elapsed().as_secs_f64())
    };
    let Ok(rounds) = Rounds::run(2, run, |rounds| rounds.count() == 20);
    if let Some(ratio) = Estimate::of_median(&rounds.ratios(1, 0)) {
        println!("unstable by stable: {:.2} ({:.2} to {:.2}), {} pairs", ratio.median, ratio.low, ratio.high, ratio.n);
    }
}
