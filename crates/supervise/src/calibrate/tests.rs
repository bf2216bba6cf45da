//! Small measurements from end to end; no absolute times.

use super::array::alone;
use super::*;
use crate::error::Error;

const QUICK: Effort = Effort { footprint_bytes: SMALLEST_BYTES, loads: 1 << 14, pairs: 6 };

/// What was measured, or nothing where the machine has no such pages or no memory.
fn unless_skipped<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(found) => Some(found),
        Err(why @ Error::PageKind { .. }) => {
            println!("SKIP the kernel gave no transparent huge page: {why}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

fn is_interval(found: &Difference) -> bool {
    found.low <= found.median && found.median <= found.high && found.ns_4k > 0.0 && found.ns_2m > 0.0
}

#[test]
fn footprints_grow_up_to_what_is_allowed() {
    assert_eq!(footprints(0), [64 << 20]);
    assert_eq!(footprints((4 << 30) - 1), [64 << 20, 256 << 20, 1 << 30]);
    assert_eq!(footprints(4 << 30), [64 << 20, 256 << 20, 1 << 30, 4 << 30]);
}

#[test]
fn walks_follow_from_the_patterns() {
    let walks = by_construction(8 << 20);
    assert_eq!(walks(Pattern::Dependent, 64 << 20), 0.875);
    assert_eq!(walks(Pattern::Independent, 8 << 20), 0.0);
    assert_eq!(walks(Pattern::Independent, 4 << 20), 0.0);
    assert_eq!(walks(Pattern::Sequential, (8 << 20) + 1), 1.0);
    assert_eq!(walks(Pattern::Sequential, 8 << 20), 0.0);
}

#[test]
fn a_walk_costs_the_difference_over_the_walks() {
    let found = Difference { ns_4k: 100.0, ns_2m: 60.0, low: 30.0, median: 40.0, high: 50.0 };
    let point = point(Pattern::Dependent, 64, 0.5, &found);
    assert_eq!((point.low, point.likely, point.high), (60.0, 80.0, 100.0));
    assert_eq!((point.ns_4k, point.ns_2m, point.walks), (100.0, 60.0, 0.5));
}

#[test]
fn each_pattern_is_measured_and_saved() {
    let _alone = alone();
    let mut told = Vec::new();
    let note = |done, all| {
        told.push((done, all));
        Ok(())
    };
    let Some(found) = unless_skipped(calibrate(&QUICK, by_construction(8 << 20), note)) else { return };
    let patterns: Vec<Pattern> = found.points.iter().map(|point| point.pattern).collect();
    assert_eq!(patterns, Pattern::ALL);
    for point in &found.points {
        assert!(point.low <= point.likely && point.likely <= point.high && point.ns_2m > 0.0, "{point:?}");
    }
    assert_eq!(told, (0..21).map(|done| (done, 21)).collect::<Vec<_>>());
    assert!(!found.cpu.is_empty() && found.taken_at > 0);
    let text = serde_json::to_string(&found).unwrap();
    let read: Calibration = serde_json::from_str(&text).unwrap();
    assert_eq!((read.cpu, read.points.len()), (found.cpu, 3));
    assert!(text.contains("\"pattern\":\"dependent\""), "{text}");
}

#[test]
fn a_pattern_without_walks_has_no_point() {
    let _alone = alone();
    let walks = |pattern, _| if pattern == Pattern::Sequential { 1.0 } else { 0.0 };
    let Some(found) = unless_skipped(calibrate(&QUICK, walks, |_, _| Ok(()))) else { return };
    assert_eq!(found.points.iter().map(|point| point.pattern).collect::<Vec<_>>(), [Pattern::Sequential]);
}

#[test]
fn an_interrupt_ends_the_measurement() {
    let _alone = alone();
    let interrupted = |done, _| match done {
        3 => Err(Error::Interrupted { signal: "SIGINT", number: 2 }),
        _ => Ok(()),
    };
    match calibrate(&QUICK, by_construction(8 << 20), interrupted) {
        Err(Error::PageKind { .. }) => println!("SKIP the kernel gave no transparent huge page"),
        other => assert!(matches!(other, Err(Error::Interrupted { number: 2, .. })), "{other:?}"),
    }
}

#[test]
fn a_program_s_addresses_are_replayed_in_both_orders() {
    let _alone = alone();
    // A heap, a stack and a table far from each other.
    let bases = [0x5581_0000_0000_u64, 0x7ffd_1234_5000, 0x7f20_0020_0000];
    let addresses: Vec<u64> = (0..30_000).map(|i| bases[i % 3] + i as u64 * 40).collect();
    let Some(found) = unless_skipped(replay(&addresses, 6, |_, _| Ok(()))) else { return };
    assert_eq!(found.loads, 30_000);
    // The stack's range lies across two chunks.
    assert_eq!(found.footprint_bytes, 4 * (2 << 20));
    assert!(is_interval(&found.independent) && is_interval(&found.dependent), "{found:?}");
}

/// The machine's numbers, which say something on a quiet one: `cargo test --release -- --ignored --nocapture calibration`.
#[test]
#[ignore = "takes a minute, and a quiet machine"]
fn calibration_of_this_machine() {
    let _alone = alone();
    let reach_bytes = fieldstone_sys::cpuid::cpu().reach_bytes(4096).unwrap_or(8 << 20);
    let Some(found) = unless_skipped(calibrate(&Effort::default(), by_construction(reach_bytes), |_, _| Ok(()))) else {
        return;
    };
    for point in &found.points {
        let Point { pattern, footprint_bytes, walks, ns_4k, ns_2m, low, likely, high } = point;
        let footprint_mib = footprint_bytes >> 20;
        println!(
            "{pattern:11?} {footprint_mib:5} MiB  {walks:.3} walks  4K {ns_4k:6.1}  2M {ns_2m:6.1}  a walk {likely:6.1} ({low:.1} to {high:.1}) ns"
        );
    }
    let at = |pattern| found.points.iter().filter(move |point| point.pattern == pattern);
    for (dependent, independent) in at(Pattern::Dependent).zip(at(Pattern::Independent)) {
        assert!(dependent.ns_4k > independent.ns_4k, "waiting costs time: {dependent:?} {independent:?}");
    }
    let largest = at(Pattern::Dependent).next_back().unwrap();
    assert!(largest.low > 0.0, "scattered loads pay for their walks: {largest:?}");
}
