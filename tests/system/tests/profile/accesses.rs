//! Counts of `fieldstone profile --trace` for special kinds of accesses, against counts derived
//! from `programs/accesses.c`.

use fieldstone_report::translation::Translation;

use crate::fixture::Fixture;
use crate::trace::{compile, has_tracer, trace};

/// Pages of a round times rounds: each misses in a TLB of 64 entries.
const MISSES: u64 = 400 * 100;
/// Further misses at the start and the end of the program.
const REST: u64 = 2000;

/// Traces all accesses of a kind; `None` if that is not possible.
fn traced(kind: &str) -> Option<Translation> {
    let fixture = Fixture::new().filter(|_| has_tracer())?;
    let program = compile(&fixture, "accesses", &["-g"])?;
    let (profile, translation) = trace(&fixture, "--full", &[&program, kind]);
    assert_eq!(profile.samples[0].outcome, "exit 0");
    Some(translation)
}

/// Page walks of the program on 4 KiB pages: all, and those in the primary region.
fn walks(translation: &Translation) -> (u64, u64) {
    let data = &translation.configurations[0].data;
    (data.walks, data.region_walks)
}

#[test]
fn private_memory_counts_for_the_region_and_shared_memory_does_not() {
    let Some(plain) = traced("plain") else { return };
    let (all, region) = walks(&plain);
    assert!((MISSES..MISSES + REST).contains(&all) && region >= MISSES, "{all}, {region}");
    let shared = traced("shared").unwrap();
    let (all, region) = walks(&shared);
    assert!((MISSES..MISSES + REST).contains(&all) && region < REST, "{all}, {region}");
    let segment = &shared.configuration("direct segment").unwrap().data;
    assert!(segment.walks >= MISSES, "a direct segment does not take them away: {}", segment.walks);
}

#[test]
fn an_access_over_a_boundary_touches_two_pages() {
    let Some(translation) = traced("straddling") else { return };
    let (all, _) = walks(&translation);
    assert!((2 * MISSES..2 * MISSES + REST).contains(&all), "{all}");
}

#[test]
fn filtered_accesses_are_counted() {
    let Some(translation) = traced("again") else { return };
    const ACCESSES: u64 = 3 * 2_000_000;
    assert!((ACCESSES..ACCESSES + ACCESSES / 10).contains(&translation.accesses), "{}", translation.accesses);
    assert!(walks(&translation).0 < REST);
}

#[test]
fn a_bit_test_may_access_memory_beyond_its_operand() {
    let Some(translation) = traced("bits") else { return };
    let (all, _) = walks(&translation);
    assert!((MISSES..MISSES + REST).contains(&all), "{all}");
}

/// The allocating thread may sleep while another uses the memory: its announcement must not be
/// delayed.
#[test]
fn memory_handed_to_another_thread_has_its_site() {
    let Some(translation) = traced("handed") else { return };
    let first = &translation.sites[0];
    assert_eq!((first.function.as_str(), first.allocations), ("hand_over", 1), "{:?}", translation.sites);
    assert!(first.walks >= MISSES, "{first:?}");
}
