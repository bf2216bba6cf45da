//! The time of an ADD: "a loop that iterates 20 times with each loop having 18 ADD instructions".
//!
//! Each ADD depends on the result of the one before, as on machines without parallel execution. A
//! compiler would fold them into one, so they are assembly.

#![allow(unsafe_code, reason = "additions that no compiler folds")]

use std::hint::black_box;
use std::time::Instant;

use fieldstone_stats::median;

const ITERATIONS: u32 = 20;
const ADDS: u32 = 18;
/// Loops that are timed together, because one is too short for the clock.
const LOOPS: u32 = 1000;

/// Nanoseconds of one ADD; `None` on an architecture without assembly here.
pub(super) fn add_ns(rounds: usize) -> Option<f64> {
    let mut times = Vec::new();
    for _ in 0..rounds.max(3) {
        let since = Instant::now();
        for _ in 0..LOOPS {
            let mut sum = black_box(0_u64);
            for _ in 0..ITERATIONS {
                sum = add_18(sum)?;
            }
            black_box(sum);
        }
        times.push(since.elapsed().as_secs_f64() * 1e9 / f64::from(LOOPS * ITERATIONS * ADDS));
    }
    median(&times)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn add_18(mut sum: u64) -> Option<u64> {
    // SAFETY: the instructions only use two registers, which the compiler chooses.
    unsafe {
        std::arch::asm!(".rept 18", "add {0}, {1}", ".endr", inout(reg) sum, in(reg) 3_u64, options(nomem, nostack));
    }
    Some(sum)
}

#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
#[inline(always)]
fn add_18(mut sum: u64) -> Option<u64> {
    // SAFETY: the instructions only use two registers, which the compiler chooses.
    unsafe {
        std::arch::asm!(".rept 18", "add {0}, {0}, {1}", ".endr", inout(reg) sum, in(reg) 3_u64, options(nomem, nostack));
    }
    Some(sum)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
fn add_18(_sum: u64) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighteen_are_added() {
        if let Some(sum) = add_18(5) {
            assert_eq!(sum, 5 + 18 * 3);
        }
    }
}
