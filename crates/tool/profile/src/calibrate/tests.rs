//! Small measurements from end to end; no absolute times.

use fieldstone_stats::random::SplitMix64;

use super::array::alone;
use super::*;
use crate::error::{Error, Result};
use fieldstone_launch::Error as Stopped;

const EFFORT: Effort = Effort { pairs: 6, ns: 0 };

/// What was measured, or nothing where the machine has no such pages or no memory.
fn unless_skipped<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(found) => Some(found),
        Err(why @ Error::Launch(Stopped::PageKind { .. })) => {
            println!("SKIP the kernel gave no transparent huge page: {why}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// As many as may be.
const ANY: [Waiting; 1] = [Waiting { loads: usize::MAX, fewest: 0.0, likely: 0.5, most: 1.0 }];

fn is_interval(found: &Difference) -> bool {
    found.low <= found.median && found.median <= found.high && found.ns_4k > 0.0 && found.ns_2m > 0.0
}

/// Those of a heap, a stack and a table far from each other.
fn addresses() -> Vec<u64> {
    let bases = [0x5581_0000_0000_u64, 0x7ffd_1234_5000, 0x7f20_0020_0000];
    (0..30_000).map(|i| bases[i % 3] + i as u64 * 40).collect()
}

#[test]
fn a_program_s_addresses_are_replayed_in_every_order() {
    let _alone = alone();
    let mut asked = 0;
    let ask = || {
        asked += 1;
        Ok(())
    };
    let Some(found) = unless_skipped(replay(&addresses(), 20.0, &ANY, EFFORT, ask)) else { return };
    assert_eq!((found.loads, found.others), (30_000, 16));
    // The stack's range lies across two chunks.
    assert_eq!(found.footprint_bytes, 4 * (2 << 20));
    assert!([found.fewest, found.likely, found.most, found.sequential].iter().all(is_interval), "{found:?}");
    assert_eq!(asked, replay::PLACEMENTS * 4 * 3, "before each pair, and one that is not counted");
}

#[test]
fn an_interrupt_ends_the_measurement() {
    let _alone = alone();
    let mut asked = 0;
    let interrupted = || {
        asked += 1;
        if asked == 10 { Err(Stopped::Interrupted { signal: "SIGINT", number: 2 }.into()) } else { Ok(()) }
    };
    match replay(&addresses(), 20.0, &ANY, EFFORT, interrupted) {
        Err(Error::Launch(Stopped::PageKind { .. })) => println!("SKIP the kernel gave no transparent huge page"),
        other => assert!(matches!(other, Err(Error::Launch(Stopped::Interrupted { number: 2, .. }))), "{other:?}"),
    }
}

/// Far beyond what TLBs for 4 KiB pages reach, and within what those for 2 MiB pages do.
#[test]
fn scattered_loads_that_wait_for_each_other_cost_the_most_and_more_on_small_pages() {
    let _alone = alone();
    let mut random = SplitMix64::new(1);
    let addresses: Vec<u64> = (0..200_000).map(|_| 0x7f20_0000_0000 + random.draw() % (128 << 20) / 8 * 8).collect();
    // Other tests run beside it: the middle is measured again where one came between.
    for attempts_left in (0..4).rev() {
        let Some(found) = unless_skipped(replay(&addresses, 0.0, &ANY, EFFORT, || Ok(()))) else { return };
        let [fewest, likely, most] = [found.fewest, found.likely, found.most].map(|found| found.ns_2m);
        assert!(most > 1.5 * fewest && most > 1.5 * found.sequential.ns_2m, "{found:?}");
        assert!(found.most.median > 0.0, "{found:?}");
        let in_order = fewest < likely && likely < most;
        assert!(in_order || attempts_left > 0, "{found:?}");
        if in_order {
            break;
        }
    }
}
