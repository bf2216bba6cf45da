//! The time of an ADD: "a loop that iterates 20 times with each loop having 18 ADD instructions".
//!
//! Each ADD depends on the result of the one before, as on machines without parallel execution. A
//! compiler would fold them into one, so they are assembly.

#![allow(unsafe_code, reason = "additions that no compiler folds")]

#[cfg_attr(target_arch = "x86_64", path = "add/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "add/aarch64.rs")]
mod arch;

use std::hint::black_box;
use std::time::Instant;

use fieldstone_stats::median;

use arch::add_18;

const ITERATIONS: u32 = 20;
const ADDS: u32 = 18;
/// Loops that are timed together, because one is too short for the clock.
const LOOPS: u32 = 1000;

/// Nanoseconds of one ADD.
pub(crate) fn add_ns(rounds: usize) -> Option<f64> {
    let mut times = Vec::new();
    for _ in 0..rounds.max(3) {
        let since = Instant::now();
        for _ in 0..LOOPS {
            let mut sum = black_box(0_u64);
            for _ in 0..ITERATIONS {
                sum = add_18(sum);
            }
            black_box(sum);
        }
        times.push(since.elapsed().as_secs_f64() * 1e9 / f64::from(LOOPS * ITERATIONS * ADDS));
    }
    median(&times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighteen_are_added() {
        assert_eq!(add_18(5), 5 + 18 * 3);
    }
}
