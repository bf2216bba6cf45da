//! New layouts: contended members, advice, and the absence of contention afterwards.

use super::{LayoutAdvice, Member, ObjectLayout, redesigns};
use crate::error::Error;
use crate::fixture::{Use, judged, judged_lines};
use crate::verdict::JudgedLine;

fn judged_by(uses: &[Use], atomic: bool) -> Vec<JudgedLine> {
    judged_lines(&uses.iter().map(|&one| (one, atomic)).collect::<Vec<_>>())
}

fn member(declaration: &str, offset: u64, bytes: u64) -> Member {
    let name = declaration.rsplit([' ', '*']).next().unwrap().to_owned();
    Member { name, declaration: declaration.to_owned(), offset, bytes, alignment: 0 }
}

fn queue() -> ObjectLayout {
    let members = vec![member("long head", 0, 8), member("int size", 8, 4), member("long tail", 16, 8)];
    ObjectLayout { name: "queue".to_owned(), address: 0x1000, elements: 1, stride: 24, members, on_heap: false }
}

#[test]
fn bytes_that_a_thread_only_reads_are_not_written() {
    let uses = [(1, 0x1000, 8, true), (1, 0x1008, 4, false), (2, 0x1010, 8, true)];
    let redesign = queue().redesign(&judged(&uses)).unwrap().unwrap();
    let fights: Vec<(&str, bool)> =
        redesign.fights.iter().map(|fight| (fight.member.as_str(), fight.written)).collect();
    assert_eq!(fights, [("head", true), ("size", false), ("tail", true)]);
    assert!(redesign.text.contains("// 8: read by thread 1\n"), "{}", redesign.text);
}

#[test]
fn members_of_one_element_are_separated() {
    let redesign = queue().redesign(&judged(&[(1, 0x1000, 8, true), (2, 0x1010, 8, true)])).unwrap().unwrap();
    let fights: Vec<(&str, &[u32])> =
        redesign.fights.iter().map(|fight| (fight.member.as_str(), fight.threads.as_slice())).collect();
    assert_eq!(fights, [("head", [1].as_slice()), ("tail", [2].as_slice())]);
    let align = |member: &str| LayoutAdvice::AlignMember { member: member.to_owned(), to: 64 };
    assert_eq!(redesign.advice, [align("head"), align("tail")], "one structure has no other element to pad");
    let expected = "\
struct queue {  // 128 bytes, was 24
    // in C before C23: #include <stdalign.h>
    alignas(64) long head;                    // 0: written by thread 1
    int size;                                 // 8
    alignas(64) long tail;                    // 64: written by thread 2
};
";
    assert_eq!(redesign.text, expected);
    assert_eq!((redesign.bytes_before, redesign.bytes_after), (24, 128));
}

/// `size` and `tail` are on two lines at present, and would share one in the new layout.
#[test]
fn members_that_would_share_a_line_are_separated_too() {
    let object = ObjectLayout { address: 0x1034, ..queue() };
    let uses = [(2, 0x1034, 8, true), (1, 0x103c, 4, true), (2, 0x1044, 8, true), (1, 0x1050, 8, true)];
    let redesign = object.redesign(&judged(&uses)).unwrap().unwrap();
    let aligned: Vec<String> = redesign.advice_words().filter(|words| words.contains("alignas")).collect();
    assert_eq!(aligned, ["head", "size", "tail"].map(|member| format!("declare {member} with alignas(64)")));
    assert!(redesign.separates_all());
}

#[test]
fn no_layout_separates_threads_on_one_member() {
    let redesign = queue().redesign(&judged(&[(1, 0x1000, 4, true), (2, 0x1004, 4, true)])).unwrap().unwrap();
    assert!(!redesign.separates_all());
}

/// A flag of one thread, and a structure whose members two other threads write, on one line: moving
/// the flag leaves the members together.
#[test]
fn the_layout_that_separates_the_most_threads_is_the_best() {
    let flag = ObjectLayout {
        name: "flag".to_owned(),
        address: 0x1020,
        stride: 8,
        members: vec![member("long flag", 0, 8)],
        ..queue()
    };
    let lines = judged(&[(1, 0x1000, 8, true), (2, 0x1010, 8, true), (3, 0x1020, 8, true)]);
    for objects in [[&flag, &queue()], [&queue(), &flag]] {
        let of_all = redesigns(objects, &lines[0].line, &lines);
        assert_eq!(of_all.iter().map(|one| one.object.as_str()).collect::<Vec<_>>(), ["queue", "flag"]);
    }
    let of_one = redesigns([&flag], &lines[0].line, &lines);
    assert_eq!(of_one.into_iter().next(), flag.redesign(&lines).unwrap());
    assert!(redesigns([], &lines[0].line, &lines).is_empty());
}

/// Two threads on one member of the first object: its layout cannot separate them.
#[test]
fn a_layout_that_leaves_threads_together_is_not_the_best() {
    let counter = ObjectLayout {
        name: "counter".to_owned(),
        address: 0x1020,
        stride: 8,
        members: vec![member("long counter", 0, 8)],
        ..queue()
    };
    let lines = judged(&[(1, 0x1020, 4, true), (2, 0x1024, 4, true), (3, 0x1000, 8, true)]);
    let of_all = redesigns([&counter, &queue()], &lines[0].line, &lines);
    assert_eq!(of_all.iter().map(|one| one.object.as_str()).collect::<Vec<_>>(), ["queue", "counter"]);
}

#[test]
fn elements_of_an_array_are_separated_by_their_first_member() {
    let members = vec![member("long sum", 0, 8), member("void *next", 8, 8)];
    let array =
        ObjectLayout { name: "slot".to_owned(), address: 0x1010, elements: 3, stride: 16, members, on_heap: true };
    let uses: Vec<Use> = (0..3).map(|thread| (thread, 0x1010 + u64::from(thread) * 16, 8, true)).collect();
    let redesign = array.redesign(&judged(&uses)).unwrap().unwrap();
    assert_eq!(redesign.fights.iter().map(|fight| fight.element).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(
        redesign.advice,
        [
            LayoutAdvice::AlignMember { member: "sum".to_owned(), to: 64 },
            LayoutAdvice::PadStride { from: 16, to: 64 },
            LayoutAdvice::AlignAllocation { to: 64, off_by: 16 },
        ]
    );
    assert!(redesign.text.contains("alignas(64) long sum;"), "{}", redesign.text);
    assert!(redesign.text.contains("// 0: written by threads 0, 1, 2\n"), "{}", redesign.text);
    let last = redesign.advice_words().last().unwrap();
    assert!(last.starts_with("allocate slot with aligned_alloc(64, …)"), "{last}");
}

#[test]
fn an_allocation_at_a_line_start_needs_no_change() {
    let on_heap = ObjectLayout { on_heap: true, ..queue() };
    let redesign = on_heap.redesign(&judged(&[(1, 0x1000, 8, true), (2, 0x1010, 8, true)])).unwrap().unwrap();
    assert!(!redesign.advice.iter().any(|advice| matches!(advice, LayoutAdvice::AlignAllocation { .. })));
}

#[test]
fn the_new_layout_has_no_contention() {
    let uses = [(1, 0x1000, 8, true), (2, 0x1010, 8, true)];
    let object = queue();
    let redesign = object.redesign(&judged(&uses)).unwrap().unwrap();
    // `head` is at 0 and `tail` at 64 of the new structure.
    let separated = judged(&[(1, 0x1000, 8, true), (2, 0x1000 + 64, 8, true)]);
    assert!(redesign.text.contains("// 64: written by thread 2"));
    assert_eq!(object.redesign(&separated).unwrap(), None);
}

#[test]
fn without_members_offsets_are_used() {
    let bare = ObjectLayout { members: Vec::new(), name: "3.bss".to_owned(), ..queue() };
    let redesign = bare.redesign(&judged(&[(1, 0x1000, 8, true), (2, 0x1010, 4, false)])).unwrap().unwrap();
    let members: Vec<&str> = redesign.fights.iter().map(|fight| fight.member.as_str()).collect();
    assert_eq!(members, ["bytes_0", "bytes_16"]);
    assert_eq!(redesign.advice, [LayoutAdvice::Part { to: 64 }], "names that are ours are none to declare");
    assert!(redesign.text.starts_with("struct _3_bss {"), "{}", redesign.text);
    assert!(redesign.text.contains("alignas(64) unsigned char bytes_0[16];"), "{}", redesign.text);
    assert!(redesign.text.contains("alignas(64) unsigned char bytes_16[8];"), "{}", redesign.text);
}

#[test]
fn other_objects_on_the_line_are_ignored() {
    let uses = [(1, 0x1000, 8, true), (2, 0x1020, 8, true)];
    let redesign = queue().redesign(&judged(&uses)).unwrap().unwrap();
    assert_eq!(redesign.fights.len(), 1, "thread 2's bytes are behind the object");
    let elsewhere = ObjectLayout { address: 0x2000, ..queue() };
    assert_eq!(elsewhere.redesign(&judged(&uses)).unwrap(), None);
}

#[test]
fn inconsistent_descriptions_are_refused() {
    let with = |members| ObjectLayout { members, ..queue() };
    for (object, problem) in [
        (with(vec![member("long a", 0, 8), member("long b", 4, 8)]), "overlaps"),
        (with(vec![member("char a[30]", 0, 30)]), "beyond"),
        (with(vec![member("long a", u64::MAX, 8)]), "beyond"),
        (ObjectLayout { stride: 0, ..queue() }, "no size"),
    ] {
        let error = object.check().unwrap_err();
        assert!(matches!(error, Error::Layout { .. }) && error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn elements_without_members_are_wrapped() {
    let value = member("long value", 0, 8);
    let counts = ObjectLayout { name: "counts".to_owned(), elements: 8, stride: 8, members: vec![value], ..queue() };
    let redesign = counts.redesign(&judged(&[(1, 0x1000, 8, true), (2, 0x1008, 8, true)])).unwrap().unwrap();
    assert_eq!(redesign.advice, [LayoutAdvice::Wrap { to: 64 }, LayoutAdvice::PadStride { from: 8, to: 64 }]);
}

/// A structure without gaps: `first` begins four bytes before the end of a line.
fn packed() -> ObjectLayout {
    let aligned = |declaration, offset, bytes, alignment| Member { alignment, ..member(declaration, offset, bytes) };
    let members = vec![
        aligned("char before[60]", 0, 60, 1),
        aligned("unsigned long first", 60, 8, 8),
        aligned("unsigned long second", 68, 8, 8),
    ];
    ObjectLayout { name: "packed".to_owned(), stride: 76, members, ..queue() }
}

#[test]
fn a_packed_member_on_two_lines_is_named_and_aligned() {
    let redesign = packed().redesign(&judged(&[(1, 0x103c, 8, true), (2, 0x1044, 8, true)])).unwrap().unwrap();
    let fights: Vec<(&str, std::ops::Range<u64>)> =
        redesign.fights.iter().map(|fight| (fight.member.as_str(), fight.bytes.clone())).collect();
    assert_eq!(fights, [("first", 64..68), ("second", 68..76)], "the bytes are those on the line that is shared");
    assert_eq!(redesign.advice[0], LayoutAdvice::Unpack { crossing: Some("first".to_owned()) });
    assert!(redesign.advice_words().next().unwrap().contains("packed: by it first lies across two cache lines"));
    for line in
        ["unsigned long first;                      // 64: ", "alignas(64) unsigned long second;         // 128: "]
    {
        assert!(redesign.text.contains(line), "{line}\n{}", redesign.text);
    }
    assert_eq!(redesign.bytes_after, 192);
}

#[test]
fn a_member_that_would_cross_lines_is_aligned_to_its_size() {
    let members = vec![member("char name[56]", 0, 56), member("struct three at", 56, 12), member("long n", 72, 8)];
    let members =
        members.into_iter().map(|member| Member { alignment: if member.bytes == 12 { 4 } else { 8 }, ..member });
    let object = ObjectLayout { stride: 80, members: members.collect(), ..queue() };
    let redesign = object.redesign(&judged(&[(1, 0x1038, 12, true), (2, 0x1048, 8, true)])).unwrap().unwrap();
    let align = |member: &str, to| LayoutAdvice::AlignMember { member: member.to_owned(), to };
    assert_eq!(redesign.advice[..3], [align("name[56]", 64), align("at", 16), align("n", 64)], "not packed");
    assert!(redesign.text.contains("alignas(16) struct three at;              // 64: "), "{}", redesign.text);
}

#[test]
fn atomics_and_locks_are_named() {
    let members = vec![member("pthread_mutex_t m", 0, 40), member("long value", 40, 8)];
    let object = ObjectLayout { name: "bucket".to_owned(), elements: 2, stride: 48, members, ..queue() };
    let uses = [(1, 0x1000, 4, true), (2, 0x1030, 4, true)];
    let [plain, atomic] = [false, true].map(|atomic| object.redesign(&judged_by(&uses, atomic)).unwrap().unwrap());
    let kinds = |redesign: &super::Redesign| redesign.fights.iter().all(|fight| fight.is_lock && fight.member == "m");
    assert!(kinds(&plain) && kinds(&atomic));
    assert!(plain.text.contains("// 0: a lock, written by threads 1, 2\n"), "{}", plain.text);
    assert!(atomic.text.contains("// 0: a lock, atomic, written by threads 1, 2\n"), "{}", atomic.text);
    let counters = queue().redesign(&judged_by(&[(1, 0x1000, 8, true), (2, 0x1010, 8, true)], true)).unwrap().unwrap();
    assert!(counters.text.contains("// 0: atomic, written by thread 1\n"), "{}", counters.text);
}
