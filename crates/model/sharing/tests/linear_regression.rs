//! The paper's example: linear regression's array of structures of 64 bytes, at each offset in the
//! heap.
//!
//! ```text
//!   offset   0    8       16         20    24  32  40   48   56   64
//!   member   tid  points  num_elems  pad   SX  SY  SXX  SYY  SXY
//!   thread        reads   reads            reads and writes
//! ```
//! Cachekata, section 4.3 and figure 4.1: "an ideally-sized 64-byte structure but ends up
//! misaligned because allocator metadata offsets the structure's beginning word". Unoptimised code
//! reads `points` and `num_elems` and updates five sums in each iteration. Optimised code has the
//! two in registers and accesses the sums only.

#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that is not there")]
#![expect(clippy::single_range_in_vec_init, reason = "runs of bytes are compared with lists of them")]

use fieldstone_sharing::{
    JudgedLine, LayoutAdvice, LineTable, Member, ObjectLayout, SampledAccess, Settings, Verdict,
    rules::{ByteMove, MOST_VIEWS, plan},
};

const THREADS: u32 = 4;
const HEAP: u64 = 0x5555_5555_6000;
const MEMBERS: [(&str, &str, u64, u64); 8] = [
    ("tid", "pthread_t tid", 0, 8),
    ("points", "POINT_T *points", 8, 8),
    ("num_elems", "int num_elems", 16, 4),
    ("SX", "long long SX", 24, 8),
    ("SY", "long long SY", 32, 8),
    ("SXX", "long long SXX", 40, 8),
    ("SYY", "long long SYY", 48, 8),
    ("SXY", "long long SXY", 56, 8),
];

/// Accesses of one iteration: all members except `tid` in unoptimised code, else the sums.
fn touched(optimised: bool) -> impl Iterator<Item = (u64, u64, bool)> {
    let first = if optimised { 3 } else { 1 };
    MEMBERS[first..].iter().map(|&(_, _, offset, bytes)| (offset, bytes, offset >= 24))
}

/// 20 ms with one sample per millisecond and thread, each of which shows the whole loop.
fn run(offset: u64, optimised: bool) -> Vec<JudgedLine> {
    let mut lines = LineTable::new(Settings::default()).unwrap();
    // The main thread writes all members before the threads start.
    for word in 0..u64::from(THREADS) * 8 {
        lines.record(&access(1, HEAP + offset + word * 8, 8, true, 0));
    }
    for at_ms in 1..=20 {
        for thread in 0..THREADS {
            let element = HEAP + offset + u64::from(thread) * 64;
            for (member, bytes, write) in touched(optimised) {
                lines.record(&access(100 + thread, element + member, bytes, write, at_ms));
            }
        }
    }
    let mut lines: Vec<JudgedLine> = lines.heaviest(usize::MAX, 21_000_000).into_iter().map(JudgedLine::new).collect();
    lines.sort_by_key(|judged| judged.line.address);
    lines
}

fn access(thread: u32, address: u64, bytes: u64, write: bool, at_ms: u64) -> SampledAccess {
    let bytes = u32::try_from(bytes).unwrap();
    let at_ns = at_ms * 1_000_000;
    SampledAccess {
        address,
        bytes,
        write,
        thread,
        site: 0x40_1000 + address % 64,
        weight: 1.0 / 7.0,
        at_ns,
        cpu: thread,
        ..SampledAccess::default()
    }
}

/// Indices of the lines with false sharing, from the start of the heap.
fn falsely_shared(lines: &[JudgedLine]) -> Vec<u64> {
    let falsely = lines.iter().filter(|judged| matches!(judged.verdict, Verdict::FalseSharing { .. }));
    falsely.map(|judged| (judged.line.address - HEAP) / 64).collect()
}

#[test]
fn false_sharing_is_found_at_each_offset() {
    for offset in (0..64).step_by(8) {
        // Line n has the end of element n - 1 and the start of element n. At offset 56 that start
        // is `tid`, which no loop accesses.
        let expected: &[u64] = if (8..=48).contains(&offset) { &[1, 2, 3] } else { &[] };
        let lines = run(offset, false);
        assert_eq!(falsely_shared(&lines), expected, "offset {offset}");
        assert!(lines.iter().all(|judged| judged.verdict.is_finding() || judged.verdict == Verdict::Private));
        // The sums begin at offset 24. From 40 on, a line has the sums of one element only.
        let expected: &[u64] = if (8..=32).contains(&offset) { &[1, 2, 3] } else { &[] };
        assert_eq!(falsely_shared(&run(offset, true)), expected, "offset {offset}, optimised");
    }
}

#[test]
fn owners_are_the_two_elements_on_a_line() {
    let lines = run(16, false);
    let Verdict::FalseSharing { owners } = &lines[1].verdict else { panic!("{:?}", lines[1].verdict) };
    let line = HEAP + 64;
    let mut found: Vec<_> = owners.iter().map(|owner| (owner.threads[0], owner.bytes.clone())).collect();
    found.sort_by_key(|owner| owner.0);
    // SYY and SXY of element 0; points and num_elems of element 1, then SX, SY and SXX.
    assert_eq!(found[0], (100, vec![line..line + 16]));
    assert_eq!(found[1], (101, vec![line + 24..line + 36, line + 40..line + 64]));
}

#[test]
fn rules_move_contended_bytes_to_two_views() {
    for offset in (8..=48).step_by(8) {
        let lines = run(offset, false);
        let plan = plan(&lines, MOST_VIEWS, |_| false);
        assert!(plan.refused.is_empty(), "{plan:?}");
        let [page] = plan.pages.as_slice() else { panic!("one page: {plan:?}") };
        assert_eq!(page.views, 2, "offset {offset}: {page:?}");
        for owner in lines.iter().flat_map(|judged| judged.verdict.movable()) {
            for bytes in &owner.bytes {
                let holds = |one: &&ByteMove| one.bytes.start <= bytes.start && bytes.end <= one.bytes.end;
                let own = page.moves.iter().find(holds).unwrap_or_else(|| panic!("offset {offset}: {bytes:x?} stays"));
                assert_eq!((&own.threads, own.view), (&owner.threads, (owner.threads[0] - 100) % 2), "offset {offset}");
            }
        }
    }
}

#[test]
fn the_padded_structure_equals_the_papers_remedy() {
    let members = MEMBERS.map(|(name, declaration, offset, bytes)| Member {
        name: name.to_owned(),
        declaration: declaration.to_owned(),
        offset,
        bytes,
        alignment: 0,
    });
    let object = ObjectLayout {
        name: "lreg_args".to_owned(),
        address: HEAP + 16,
        elements: THREADS.into(),
        stride: 64,
        members: members.to_vec(),
        on_heap: true,
    };
    let redesign = object.redesign(&run(16, false)).unwrap().unwrap();
    assert_eq!(
        redesign.advice,
        [
            LayoutAdvice::AlignMember { member: "tid".to_owned(), to: 64 },
            LayoutAdvice::AlignAllocation { to: 64, off_by: 16 },
        ],
        "the size is right already"
    );
    assert_eq!((redesign.bytes_before, redesign.bytes_after), (64, 64));
    assert!(redesign.text.contains("alignas(64) pthread_t tid;"), "{}", redesign.text);
    assert!(redesign.fights.iter().any(|fight| fight.member == "SXY" && fight.written && fight.element == 0));
    assert!(redesign.fights.iter().all(|fight| fight.member != "tid"));
}
