//! End-to-end measurements on small inputs, without absolute times.

use fieldstone_launch::Error as LaunchError;
use fieldstone_stats::Interval;
use fieldstone_stats::random::SplitMix64;

use super::array::lock_arrays;
use super::*;
use crate::error::{Error, Result};

const EFFORT: Effort = Effort { pairs: 6, ns: 0 };

/// The measurement; `None` if the machine has no such pages.
fn unless_skipped<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(found) => Some(found),
        Err(why @ Error::Launch(LaunchError::PageKind { .. })) => {
            println!("SKIP the kernel gave no transparent huge page: {why}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// The full range of dependent shares.
const ANY: [PhaseDependence; 1] =
    [PhaseDependence { loads: usize::MAX, share: Interval { low: 0.0, likely: 0.5, high: 1.0 } }];

fn is_interval(found: &LoadDifference) -> bool {
    let Interval { low, likely, high } = found.difference;
    low <= likely && likely <= high && found.ns_4k > 0.0 && found.ns_2m > 0.0
}

/// Addresses of a heap, a stack and a table, far apart.
fn addresses() -> Vec<u64> {
    let bases = [0x5581_0000_0000_u64, 0x7ffd_1234_5000, 0x7f20_0020_0000];
    (0..30_000).map(|i| bases[i % 3] + i as u64 * 40).collect()
}

#[test]
fn addresses_of_a_program_are_replayed_in_each_variant() {
    let _lock = lock_arrays();
    let mut calls = 0;
    let before_pair = || {
        calls += 1;
        Ok(())
    };
    let Some(found) = unless_skipped(replay(&addresses(), 20.0, &ANY, EFFORT, before_pair)) else { return };
    assert_eq!((found.loads, found.filler_instructions), (30_000, 16));
    // The stack's range spans two chunks.
    assert_eq!(found.footprint_bytes, 4 * (2 << 20));
    assert!([found.fewest, found.likely, found.most, found.sequential].iter().all(is_interval), "{found:?}");
    assert_eq!(calls, replay::PLACEMENTS * 4 * 3, "before each pair, including the dropped one");
}

#[test]
fn an_interrupt_ends_the_measurement() {
    let _lock = lock_arrays();
    let mut calls = 0;
    let interrupted = || {
        calls += 1;
        if calls == 10 { Err(LaunchError::Interrupted { signal: "SIGINT", number: 2 }.into()) } else { Ok(()) }
    };
    match replay(&addresses(), 20.0, &ANY, EFFORT, interrupted) {
        Err(Error::Launch(LaunchError::PageKind { .. })) => println!("SKIP the kernel gave no transparent huge page"),
        other => assert!(matches!(other, Err(Error::Launch(LaunchError::Interrupted { number: 2, .. }))), "{other:?}"),
    }
}

/// The footprint exceeds the reach of the TLBs for 4 KiB pages, but not of those for 2 MiB pages.
#[test]
fn dependent_scattered_loads_cost_the_most_and_more_on_small_pages() {
    let _lock = lock_arrays();
    let mut random = SplitMix64::new(1);
    let addresses: Vec<u64> = (0..200_000).map(|_| 0x7f20_0000_0000 + random.draw() % (128 << 20) / 8 * 8).collect();
    // Retries, because other tests run in parallel.
    for attempts_left in (0..4).rev() {
        let Some(found) = unless_skipped(replay(&addresses, 0.0, &ANY, EFFORT, || Ok(()))) else { return };
        let [fewest, likely, most] = [found.fewest, found.likely, found.most].map(|found| found.ns_2m);
        assert!(most > 1.5 * fewest && most > 1.5 * found.sequential.ns_2m, "{found:?}");
        let in_order = fewest < likely && likely < most;
        if in_order && found.most.difference.likely > 0.0 {
            break;
        }
        assert!(attempts_left > 0, "{found:?}");
    }
}
