//! Rules: range boundaries, refusals, numbers of views, and properties of all plans.

use std::ops::Range;

use proptest::prelude::*;

use super::{ByteMove, MOST_VIEWS, PAGE_BYTES, PagePlan, PlanRefusal, RemapPlan, plan};
use crate::fixture::{Use, judged, judged_lines};

fn plan_of(uses: &[Use]) -> RemapPlan {
    plan(&judged(uses), MOST_VIEWS, |_| false)
}

fn ranges(page: &PagePlan) -> Vec<(Range<u64>, u32)> {
    page.moves.iter().map(|one| (one.bytes.clone(), one.view)).collect()
}

#[test]
fn each_counter_goes_to_a_view_of_its_own() {
    let plan = plan_of(&[(1, 0x1040, 8, true), (2, 0x1048, 8, true), (3, 0x1050, 8, true)]);
    assert_eq!((plan.pages.len(), plan.refused.len()), (1, 0));
    let page = &plan.pages[0];
    assert_eq!((page.page, page.views, page.lines.as_slice()), (0x1000, 3, [0x1040].as_slice()));
    assert_eq!(ranges(page), [(0x1040..0x1048, 0), (0x1048..0x1050, 1), (0x1050..0x1058, 2)]);
    assert_eq!(page.moves[1].threads, [2]);
}

#[test]
fn ranges_grow_to_words_and_over_unused_gaps() {
    // 4 bytes grow to 8. The gap between two ranges of thread 1 is filled; that of thread 2
    // contains thread 3.
    let plan = plan_of(&[(1, 0, 4, true), (1, 16, 4, true), (2, 24, 8, true), (3, 33, 2, true), (2, 40, 8, true)]);
    assert_eq!(ranges(&plan.pages[0]), [(0..24, 0), (24..32, 1), (32..40, 2), (40..48, 1)]);
}

#[test]
fn two_halves_of_a_word_are_separated_and_a_zigzag_is_refused() {
    let plan = plan_of(&[(1, 0, 4, true), (2, 4, 4, true)]);
    assert_eq!(ranges(&plan.pages[0]), [(0..4, 0), (4..8, 1)]);
    let plan = plan_of(&[(1, 64, 2, true), (2, 66, 2, true), (1, 68, 2, true)]);
    assert!(plan.pages.is_empty());
    assert_eq!((plan.refused[0].line, plan.refused[0].why), (64, PlanRefusal::Interleaved { word: 64 }));
}

#[test]
fn truly_shared_bytes_stay() {
    let plan = plan_of(&[(1, 0, 4, true), (2, 0, 4, true), (1, 8, 8, true), (2, 16, 8, true)]);
    assert_eq!(ranges(&plan.pages[0]), [(8..16, 0), (16..24, 1)]);
    // Of two truly shared groups, the heaviest stays.
    let plan = plan_of(&[(1, 0, 8, true), (2, 0, 8, true), (3, 8, 8, true), (4, 8, 8, true), (4, 8, 8, true)]);
    assert_eq!(plan.pages[0].moves, [ByteMove { bytes: 0..8, view: 0, threads: vec![1, 2] }]);
}

#[test]
fn sampled_accesses_are_never_split() {
    // A wide access of thread 1 includes a byte of thread 2, too rarely for an owner.
    let mut uses = vec![((1, 0, 8, true), false); 30];
    uses.extend(vec![((2, 8, 8, true), false); 30]);
    for (atomic, why) in
        [(false, PlanRefusal::Splits { border: 8 }), (true, PlanRefusal::AtomicStraddles { border: 8 })]
    {
        let mut uses = uses.clone();
        uses.push(((1, 4, 8, false), atomic));
        let plan = plan(&judged_lines(&uses), MOST_VIEWS, |_| false);
        assert!(plan.pages.is_empty(), "{plan:?}");
        assert_eq!(plan.refused[0].why, why);
    }
}

#[test]
fn an_access_across_lines_keeps_them_together() {
    // Thread 1's word crosses the boundary of two lines; thread 2 is on both.
    let across = (1, 60, 8, true);
    let plan = plan_of(&[across, (2, 40, 8, true), (2, 80, 8, true)]);
    assert_eq!(ranges(&plan.pages[0]), [(40..48, 0), (56..72, 1), (80..88, 0)]);
    // If the second line is refused, its bytes of that access move with the first line.
    let plan = plan_of(&[across, (2, 40, 8, true), (2, 80, 2, true), (3, 82, 2, true), (2, 84, 2, true)]);
    assert_eq!(ranges(&plan.pages[0]), [(40..48, 0), (56..68, 1)]);
    assert_eq!(plan.refused.iter().map(|one| one.why).collect::<Vec<_>>(), [PlanRefusal::Interleaved { word: 80 }]);
}

#[test]
fn an_access_across_pages_is_not_split_from_either_side() {
    let across = (1, PAGE_BYTES - 4, 8, true);
    let plan = plan_of(&[across, (2, PAGE_BYTES - 16, 8, true), (2, PAGE_BYTES + 8, 8, true)]);
    assert!(plan.pages.is_empty(), "{plan:?}");
    assert!(plan.refused.iter().all(|one| one.why == PlanRefusal::Splits { border: PAGE_BYTES }));
    assert_eq!(plan.refused.len(), 2);
}

#[test]
fn too_many_owners_are_refused_and_those_apart_share_views() {
    let uses: Vec<Use> = (0..5).map(|thread| (thread, u64::from(thread) * 8, 8, true)).collect();
    let lines = judged(&uses);
    assert_eq!(plan(&lines, 5, |_| false).pages[0].views, 5);
    let refused = plan(&lines, 4, |_| false);
    assert_eq!(refused.refused[0].why, PlanRefusal::TooManyOwners { needed: 5, views: 4 });
    // 64 threads, two per line.
    let uses: Vec<Use> = (0..64).map(|thread| (thread, u64::from(thread) * 32, 8, true)).collect();
    let plan = plan(&judged(&uses), 2, |_| false);
    assert_eq!((plan.pages[0].views, plan.pages[0].lines.len(), plan.refused.len()), (2, 32, 0));
}

#[test]
fn given_up_lines_are_not_planned() {
    let lines = judged(&[(1, 0, 8, true), (2, 8, 8, true), (1, 64, 8, true), (2, 72, 8, true)]);
    let plan = plan(&lines, MOST_VIEWS, |line| line == 0);
    assert_eq!((plan.refused[0].line, plan.refused[0].why), (0, PlanRefusal::GivenUp));
    assert_eq!(plan.pages[0].lines, [64]);
    assert!(plan.refused[0].why.words().contains("too often"));
}

#[test]
fn a_duplicate_line_is_planned_once() {
    let mut lines = judged(&[(1, 0, 8, true), (2, 8, 8, true)]);
    lines.push(lines[0].clone());
    assert_eq!(plan(&lines, MOST_VIEWS, |_| false).pages[0].moves.len(), 2);
    assert_eq!(plan(&lines, MOST_VIEWS, |_| true).refused.len(), 1);
}

#[test]
fn a_plan_round_trips_through_json() {
    let plan = plan_of(&[(1, 0, 8, true), (2, 8, 8, true), (1, 64, 2, true), (2, 66, 2, true), (1, 68, 2, true)]);
    assert_eq!((plan.pages.len(), plan.refused.len()), (1, 1));
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<RemapPlan>(&text).unwrap(), plan, "{text}");
}

/// The place of a byte under these moves: in a view, or its own address.
fn home(moves: &[ByteMove], byte: u64) -> Option<u32> {
    moves.iter().find(|one| one.bytes.contains(&byte)).map(|one| one.view)
}

proptest! {
    #[test]
    fn every_plan_is_sound(
        uses in prop::collection::vec((1_u32..6, 0_u64..250, prop_oneof![Just(1_u32), Just(2), Just(4), Just(8)], any::<bool>()), 1..50),
        aligned in any::<bool>(),
        most_views in 1_u32..6,
    ) {
        let align = |at: u64, bytes: u32| if aligned { at / u64::from(bytes) * u64::from(bytes) } else { at };
        let uses: Vec<Use> = uses.into_iter().map(|(thread, at, bytes, write)| (thread, align(at, bytes), bytes, write)).collect();
        let lines = judged(&uses);
        let plan = plan(&lines, most_views, |_| false);
        let findings = lines.iter().filter(|one| one.verdict.is_finding()).count();
        prop_assert_eq!(findings, plan.refused.len() + plan.pages.iter().map(|page| page.lines.len()).sum::<usize>());
        for page in &plan.pages {
            let moves = &page.moves;
            prop_assert!(moves.windows(2).all(|pair| pair[0].bytes.end <= pair[1].bytes.start));
            prop_assert!(moves.iter().all(|one| one.view < most_views && !one.bytes.is_empty()));
            for &(_, at, bytes, _) in &uses {
                let first = home(moves, at);
                let range = moves.iter().position(|one| one.bytes.contains(&at));
                let whole = (at..at + u64::from(bytes)).all(|byte| moves.iter().position(|one| one.bytes.contains(&byte)) == range);
                prop_assert!(whole && first == home(moves, at + u64::from(bytes) - 1), "{} bytes at {} are split", bytes, at);
            }
            for line in &page.lines {
                // No two threads share falsely in a view of a repaired line.
                let on_line: Vec<&ByteMove> = moves.iter().filter(|one| one.bytes.start < line + 64 && one.bytes.end > *line).collect();
                for one in &on_line {
                    prop_assert!(on_line.iter().all(|other| other.view != one.view || other.threads == one.threads));
                }
            }
        }
    }
}
