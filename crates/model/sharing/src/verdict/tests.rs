//! Verdicts: one case for each, negative cases, and a naive oracle on sets of bytes.
#![expect(clippy::single_range_in_vec_init, reason = "runs of bytes are compared with lists of them")]

use proptest::prelude::*;

use super::{JudgedLine, Verdict, judge};
use crate::access::SampledAccess;
use crate::fixture::{Use, WINDOW_NS};
use crate::line_table::LineTable;
use crate::line_use::LineUse;
use crate::settings::Settings;

const NEVER_FADES: Settings =
    Settings { line_bytes: 64, pairs: false, half_life_ns: None, window_ns: WINDOW_NS, most_lines: 64 };

fn access((thread, address, bytes, write): Use, at_ns: u64) -> SampledAccess {
    SampledAccess {
        address,
        bytes,
        write,
        thread,
        site: 0x40_0000 + address,
        weight: 0.5,
        at_ns,
        cpu: thread,
        ..SampledAccess::default()
    }
}

/// All uses in each of these windows.
fn line_of(uses: &[Use], windows: std::ops::Range<u64>) -> LineUse {
    let mut lines = LineTable::new(NEVER_FADES).unwrap();
    for window in windows.clone() {
        uses.iter().for_each(|&one| lines.record(&access(one, window * WINDOW_NS)));
    }
    lines.line(0, windows.end * WINDOW_NS).unwrap()
}

fn verdict_of(uses: &[Use]) -> Verdict {
    judge(&line_of(uses, 0..4))
}

#[test]
fn writers_of_adjacent_bytes_share_falsely() {
    let Verdict::FalseSharing { owners } = verdict_of(&[(1, 0, 8, true), (1, 0, 8, false), (2, 8, 4, true)]) else {
        panic!("two counters")
    };
    assert_eq!(owners.len(), 2);
    assert_eq!((owners[0].threads.as_slice(), owners[0].bytes.as_slice()), ([1].as_slice(), [0..8].as_slice()));
    assert_eq!((owners[1].threads.as_slice(), owners[1].bytes.as_slice()), ([2].as_slice(), [8..12].as_slice()));
    assert!((owners[0].read - 2.0).abs() < 1e-6 && (owners[0].written - 2.0).abs() < 1e-6);
}

#[test]
fn a_reader_beside_a_writer_shares_falsely() {
    let verdict = verdict_of(&[(1, 0, 8, true), (2, 56, 8, false)]);
    assert!(matches!(verdict, Verdict::FalseSharing { .. }), "{verdict:?}");
}

#[test]
fn common_readers_are_one_owner() {
    let verdict =
        verdict_of(&[(1, 0, 8, false), (2, 0, 8, false), (2, 8, 8, false), (3, 8, 8, false), (4, 32, 8, true)]);
    let Verdict::FalseSharing { owners } = verdict else { panic!("{verdict:?}") };
    assert_eq!((owners.len(), owners[0].threads.as_slice()), (2, [1, 2, 3].as_slice()));
    assert_eq!(owners[0].bytes, [0..16]);
}

#[test]
fn other_verdicts_are_no_findings() {
    assert_eq!(verdict_of(&[(1, 0, 8, true), (2, 64, 8, true)]), Verdict::Private, "padded");
    assert_eq!(verdict_of(&[(1, 0, 8, false), (2, 0, 8, false), (3, 8, 8, false)]), Verdict::ReadOnly);
    let verdict = verdict_of(&[(1, 0, 8, true), (2, 0, 8, true)]);
    assert!(matches!(verdict, Verdict::TrueSharing { .. }), "{verdict:?}");
    let verdict = verdict_of(&[(1, 0, 8, true), (2, 0, 8, false), (2, 8, 8, true), (1, 8, 8, false)]);
    assert!(matches!(verdict, Verdict::ProducerConsumer { .. }), "head and tail of a ring: {verdict:?}");
    let verdict = verdict_of(&[(1, 3, 1, true), (2, 3, 1, true)]);
    assert!(matches!(verdict, Verdict::BitsOfOneByte { .. }), "{verdict:?}");
    let verdict = verdict_of(&[(1, 2, 2, true), (2, 2, 2, true)]);
    assert!(matches!(verdict, Verdict::TrueSharing { .. }), "two bytes at once: {verdict:?}");
}

#[test]
fn a_byte_accessed_as_part_of_a_word_is_no_bit_field() {
    for word in [(2, 3, 2, true), (2, 2, 2, true)] {
        let mut uses = [(1, 3, 1, true), (2, 3, 1, true)].repeat(10);
        assert!(matches!(verdict_of(&uses), Verdict::BitsOfOneByte { .. }));
        uses.push(word);
        let verdict = verdict_of(&uses);
        assert!(matches!(verdict, Verdict::TrueSharing { .. }), "{verdict:?}");
    }
}

/// The verdict for two threads that write the same bytes, by atomic or by bit instructions or not.
fn verdict_of_both(offset: u64, bytes: u32, [atomic, bitwise]: [bool; 2]) -> Verdict {
    let mut lines = LineTable::new(NEVER_FADES).unwrap();
    for window in 0..4 {
        for thread in [1, 2] {
            let plain = access((thread, offset, bytes, true), window * WINDOW_NS);
            lines.record(&SampledAccess { atomic, bitwise, ..plain });
        }
    }
    judge(&lines.line(0, 4 * WINDOW_NS).unwrap())
}

#[test]
fn an_atomic_byte_is_no_bit_field() {
    let verdict = verdict_of_both(3, 1, [true, false]);
    assert!(matches!(verdict, Verdict::TrueSharing { .. }), "{verdict:?}");
}

#[test]
fn bytes_changed_by_bit_instructions_are_a_bit_field() {
    for (bytes, words) in [(1, "different bits of one byte"), (8, "different bits of one word")] {
        for atomic in [false, true] {
            let verdict = verdict_of_both(8, bytes, [atomic, true]);
            assert!(verdict.words().ends_with(words) && !verdict.is_finding(), "{bytes} bytes: {verdict:?}");
        }
    }
    // One of them also adds to the word.
    let mut lines = LineTable::new(NEVER_FADES).unwrap();
    for window in 0..4 {
        for (thread, bitwise) in [(1, true), (2, true), (2, false)] {
            lines.record(&SampledAccess { bitwise, ..access((thread, 8, 8, true), window * WINDOW_NS) });
        }
    }
    let verdict = judge(&lines.line(0, 4 * WINDOW_NS).unwrap());
    assert!(matches!(verdict, Verdict::TrueSharing { .. }), "{verdict:?}");
}

#[test]
fn an_ended_thread_shares_nothing() {
    let mut lines = LineTable::new(NEVER_FADES).unwrap();
    for window in 0..10 {
        lines.record(&access((1, 0, 8, true), window * WINDOW_NS));
    }
    lines.forget(1);
    for window in 0..20 {
        lines.record(&access((2, 8, 8, true), window * WINDOW_NS));
    }
    assert_eq!(judge(&lines.line(0, 20 * WINDOW_NS).unwrap()), Verdict::Private);
    // The end of thread 2 is not reported; its windows show it.
    for window in 20..40 {
        lines.record(&access((3, 16, 8, true), window * WINDOW_NS));
    }
    assert_eq!(judge(&lines.line(0, 40 * WINDOW_NS).unwrap()), Verdict::Private);
}

#[test]
fn alternating_threads_share_nothing() {
    let mut lines = LineTable::new(NEVER_FADES).unwrap();
    // Turns of 20 ms that end in the middle of a window; one sample per millisecond.
    for at_ms in 0..600_u64 {
        let turn = (at_ms + 2) / 20 % 2;
        lines.record(&access((1 + u32::try_from(turn).unwrap(), turn * 8, 8, true), at_ms * 1_000_000));
    }
    assert_eq!(judge(&lines.line(0, 600_000_000).unwrap()), Verdict::Private);
}

#[test]
fn two_windows_are_undecided() {
    let uses = [(1, 0, 8, true), (2, 8, 8, true)];
    assert_eq!(judge(&line_of(&uses, 0..2)), Verdict::Undecided);
    assert!(judge(&line_of(&uses, 0..3)).is_finding());
}

#[test]
fn a_lock_beside_counters_is_mixed() {
    let verdict = verdict_of(&[(1, 0, 4, true), (2, 0, 4, true), (1, 8, 8, true), (2, 16, 8, true)]);
    let Verdict::Mixed { shared, movable } = verdict else { panic!("{verdict:?}") };
    assert_eq!((shared.len(), shared[0].bytes.as_slice()), (1, [0..4].as_slice()));
    assert_eq!(movable.iter().map(|owner| owner.threads[0]).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn little_false_sharing_beside_true_sharing_is_no_finding() {
    let mut uses = [(1, 0, 8, true), (2, 0, 8, true)].repeat(10);
    uses.push((1, 8, 8, true));
    let verdict = verdict_of(&uses);
    assert!(matches!(verdict, Verdict::TrueSharing { .. }), "one of 21: {verdict:?}");
    uses.extend([(1, 8, 8, true)].repeat(3));
    assert!(matches!(verdict_of(&uses), Verdict::Mixed { .. }), "4 of 24");
}

#[test]
fn a_monitor_is_a_guest() {
    let mut uses = [(1, 0, 8, true), (2, 8, 8, true)].repeat(50);
    uses.extend([(9, 0, 8, false), (9, 8, 8, false)]);
    let Verdict::Mixed { shared, movable } = verdict_of(&uses) else { panic!("{:?}", verdict_of(&uses)) };
    assert!(shared.is_empty());
    assert_eq!(movable.iter().map(|owner| owner.guests.clone()).collect::<Vec<_>>(), [[9], [9]]);
}

#[test]
fn a_rare_neighbour_costs_nothing() {
    let mut uses = [(1, 0, 8, true)].repeat(100);
    uses.push((2, 8, 8, false));
    assert_eq!(verdict_of(&uses), Verdict::Private, "one of 101");
}

#[test]
fn pairs_contend_by_the_prefetcher_only() {
    let mut lines = LineTable::new(Settings { pairs: true, ..NEVER_FADES }).unwrap();
    for window in 0..4 {
        lines.record(&access((1, 0, 8, true), window * WINDOW_NS));
        lines.record(&access((2, 64, 8, true), window * WINDOW_NS));
        lines.record(&access((1, 128, 8, true), window * WINDOW_NS));
        lines.record(&access((2, 136, 8, true), window * WINDOW_NS));
    }
    let [apart, close] = [0, 128].map(|address| JudgedLine::new(lines.line(address, 0).unwrap()));
    assert!(apart.verdict.is_finding() && apart.only_as_pair());
    assert!(close.verdict.is_finding() && !close.only_as_pair());
}

#[test]
fn a_verdict_round_trips_through_json() {
    for uses in [vec![(1, 0, 8, true)], vec![(1, 0, 8, true), (2, 8, 8, true)], vec![(1, 0, 4, true), (2, 0, 4, true)]]
    {
        let verdict = verdict_of(&uses);
        let text = serde_json::to_string(&verdict).unwrap();
        assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), verdict, "{text}");
    }
}

/// Whether two threads use a common byte and one of them writes; whether there are two threads and
/// one writes.
fn naive(uses: &[Use]) -> (bool, bool) {
    let pairs = || uses.iter().flat_map(|a| uses.iter().map(move |b| (a, b))).filter(|(a, b)| a.0 != b.0 && a.3);
    let overlap = |a: &Use, b: &Use| a.1 < b.1 + u64::from(b.2) && b.1 < a.1 + u64::from(a.2);
    (pairs().any(|(a, b)| overlap(a, b)), pairs().next().is_some())
}

proptest! {
    /// Up to twenty uses of equal weight, so that no threshold applies.
    #[test]
    fn verdicts_equal_the_naive_oracle(
        uses in prop::collection::vec((1_u32..5, (0_u64..15).prop_map(|word| word * 4), prop_oneof![Just(4_u32), Just(8)], any::<bool>()), 1..=20),
    ) {
        let uses: Vec<Use> = uses.into_iter().map(|(thread, at, bytes, write)| (thread, at.min(56), bytes, write)).collect();
        let (overlap, conflict) = naive(&uses);
        let verdict = verdict_of(&uses);
        let threads = uses.iter().map(|one| one.0).collect::<std::collections::BTreeSet<_>>().len();
        match verdict {
            Verdict::FalseSharing { .. } => prop_assert!(conflict && !overlap),
            Verdict::Mixed { .. } => prop_assert!(conflict && overlap),
            Verdict::TrueSharing { .. } | Verdict::ProducerConsumer { .. } => prop_assert!(overlap),
            Verdict::ReadOnly => prop_assert!(threads > 1 && uses.iter().all(|one| !one.3)),
            Verdict::Private => prop_assert!(threads == 1),
            Verdict::Undecided | Verdict::BitsOfOneByte { .. } => prop_assert!(false, "{:?}", verdict),
        }
    }

    /// No movable byte belongs to two owners.
    #[test]
    fn owners_are_disjoint_and_use_their_bytes(
        uses in prop::collection::vec((1_u32..9, 0_u64..57, prop_oneof![Just(1_u32), Just(2), Just(8)], any::<bool>()), 1..60),
    ) {
        let verdict = verdict_of(&uses);
        let mut seen = [false; 64];
        for owner in verdict.movable().iter().chain(verdict.shared()) {
            for byte in owner.bytes.iter().cloned().flatten() {
                prop_assert!(!std::mem::replace(&mut seen[usize::try_from(byte).unwrap()], true), "byte {}", byte);
                let used = |thread: u32| uses.iter().any(|one| one.0 == thread && (one.1..one.1 + u64::from(one.2)).contains(&byte));
                // Common readers are one owner of all bytes they read.
                prop_assert!(owner.threads.iter().any(|&thread| used(thread)));
                let alone = owner.threads.len() == 1 && owner.guests.is_empty();
                prop_assert!(!alone || uses.iter().all(|one| one.0 == owner.threads[0] || !one.3 || !(one.1..one.1 + u64::from(one.2)).contains(&byte)));
            }
        }
    }
}
