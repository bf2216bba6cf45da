//! Redesigns: what fights, what is advised, and that the structure that comes out would not fight.

use super::{Advice, Member, Object};
use crate::access::Access;
use crate::error::Error;
use crate::lines::Lines;
use crate::settings::Settings;
use crate::verdict::Judged;

/// Thread, first byte, bytes, write.
type Use = (u32, u64, u32, bool);

fn judged(uses: &[Use]) -> Vec<Judged> {
    let mut lines = Lines::new(Settings { half_life_ns: None, most_lines: 64, ..Settings::default() }).unwrap();
    for window in 0..4_u64 {
        for &(thread, address, bytes, write) in uses {
            let at_ns = window * 4_000_000;
            lines.record(&Access {
                address,
                bytes,
                write,
                atomic: false,
                thread,
                site: 0,
                weight: 0.5,
                at_ns,
                cpu: thread,
            });
        }
    }
    lines.heaviest(usize::MAX, 16_000_000).into_iter().map(Judged::new).collect()
}

fn member(declaration: &str, offset: u64, bytes: u64) -> Member {
    let name = declaration.rsplit([' ', '*']).next().unwrap().to_owned();
    Member { name, declaration: declaration.to_owned(), offset, bytes }
}

fn queue() -> Object {
    let members = vec![member("long head", 0, 8), member("int size", 8, 4), member("long tail", 16, 8)];
    Object { name: "queue".to_owned(), address: 0x1000, elements: 1, stride: 24, members, on_heap: false }
}

#[test]
fn what_a_thread_only_reads_is_not_called_written() {
    let uses = [(1, 0x1000, 8, true), (1, 0x1008, 4, false), (2, 0x1010, 8, true)];
    let redesign = queue().redesign(&judged(&uses)).unwrap().unwrap();
    let fights: Vec<(&str, bool)> =
        redesign.fights.iter().map(|fight| (fight.member.as_str(), fight.written)).collect();
    assert_eq!(fights, [("head", true), ("size", false), ("tail", true)]);
    assert!(redesign.text.contains("// 8: read by thread 1\n"), "{}", redesign.text);
}

#[test]
fn members_of_one_element_are_parted() {
    let redesign = queue().redesign(&judged(&[(1, 0x1000, 8, true), (2, 0x1010, 8, true)])).unwrap().unwrap();
    let fights: Vec<(&str, &[u32])> =
        redesign.fights.iter().map(|fight| (fight.member.as_str(), fight.threads.as_slice())).collect();
    assert_eq!(fights, [("head", [1].as_slice()), ("tail", [2].as_slice())]);
    let align = |member: &str| Advice::AlignMember { member: member.to_owned(), to: 64 };
    assert_eq!(redesign.advice, [align("head"), align("tail"), Advice::PadStride { from: 24, to: 128 }]);
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

/// `size` and `tail` are on two lines as it lies now, and would come together on one.
#[test]
fn members_that_would_come_together_are_parted_too() {
    let object = Object { address: 0x1034, ..queue() };
    let uses = [(2, 0x1034, 8, true), (1, 0x103c, 4, true), (2, 0x1044, 8, true), (1, 0x1050, 8, true)];
    let redesign = object.redesign(&judged(&uses)).unwrap().unwrap();
    let aligned: Vec<String> =
        redesign.advice.iter().map(Advice::words).filter(|words| words.contains("alignas")).collect();
    assert_eq!(aligned, ["head", "size", "tail"].map(|member| format!("declare {member} with alignas(64)")));
    assert!(redesign.parts_all());
}

#[test]
fn what_threads_do_to_one_member_no_layout_parts() {
    let redesign = queue().redesign(&judged(&[(1, 0x1000, 4, true), (2, 0x1004, 4, true)])).unwrap().unwrap();
    assert!(!redesign.parts_all());
}

#[test]
fn elements_of_an_array_are_parted_by_their_first_member() {
    let members = vec![member("long sum", 0, 8), member("void *next", 8, 8)];
    let array = Object { name: "slot".to_owned(), address: 0x1010, elements: 3, stride: 16, members, on_heap: true };
    let uses: Vec<Use> = (0..3).map(|thread| (thread, 0x1010 + u64::from(thread) * 16, 8, true)).collect();
    let redesign = array.redesign(&judged(&uses)).unwrap().unwrap();
    assert_eq!(redesign.fights.iter().map(|fight| fight.element).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(
        redesign.advice,
        [
            Advice::AlignMember { member: "sum".to_owned(), to: 64 },
            Advice::PadStride { from: 16, to: 64 },
            Advice::AlignAllocation { to: 64, off_by: 16 },
        ]
    );
    assert!(redesign.text.contains("alignas(64) long sum;"), "{}", redesign.text);
    assert!(redesign.text.contains("// 0: written by threads 0, 1, 2\n"), "{}", redesign.text);
    assert!(redesign.advice[2].words().contains("aligned_alloc(64"));
}

#[test]
fn an_allocation_that_begins_a_line_is_fine() {
    let on_heap = Object { on_heap: true, ..queue() };
    let redesign = on_heap.redesign(&judged(&[(1, 0x1000, 8, true), (2, 0x1010, 8, true)])).unwrap().unwrap();
    assert!(!redesign.advice.iter().any(|advice| matches!(advice, Advice::AlignAllocation { .. })));
}

#[test]
fn what_is_advised_would_not_fight() {
    let uses = [(1, 0x1000, 8, true), (2, 0x1010, 8, true)];
    let object = queue();
    let redesign = object.redesign(&judged(&uses)).unwrap().unwrap();
    // Head at 0 and tail at 64 of the new structure.
    let parted = judged(&[(1, 0x1000, 8, true), (2, 0x1000 + 64, 8, true)]);
    assert!(redesign.text.contains("// 64: written by thread 2"));
    assert_eq!(object.redesign(&parted).unwrap(), None);
}

#[test]
fn without_members_offsets_must_do() {
    let bare = Object { members: Vec::new(), name: "3.bss".to_owned(), ..queue() };
    let redesign = bare.redesign(&judged(&[(1, 0x1000, 8, true), (2, 0x1010, 4, false)])).unwrap().unwrap();
    let members: Vec<&str> = redesign.fights.iter().map(|fight| fight.member.as_str()).collect();
    assert_eq!(members, ["bytes_0", "bytes_16"]);
    assert_eq!(redesign.advice, [Advice::Part { to: 64 }], "names that are ours are none to declare");
    assert!(redesign.text.starts_with("struct _3_bss {"), "{}", redesign.text);
    assert!(redesign.text.contains("alignas(64) unsigned char bytes_0[16];"), "{}", redesign.text);
    assert!(redesign.text.contains("alignas(64) unsigned char bytes_16[8];"), "{}", redesign.text);
}

#[test]
fn other_objects_on_the_line_are_left_out() {
    let uses = [(1, 0x1000, 8, true), (2, 0x1020, 8, true)];
    let redesign = queue().redesign(&judged(&uses)).unwrap().unwrap();
    assert_eq!(redesign.fights.len(), 1, "thread 2's bytes are behind the object");
    let elsewhere = Object { address: 0x2000, ..queue() };
    assert_eq!(elsewhere.redesign(&judged(&uses)).unwrap(), None);
}

#[test]
fn descriptions_that_contradict_themselves_are_refused() {
    let with = |members| Object { members, ..queue() };
    for (object, problem) in [
        (with(vec![member("long a", 0, 8), member("long b", 4, 8)]), "overlaps"),
        (with(vec![member("char a[30]", 0, 30)]), "beyond"),
        (with(vec![member("long a", u64::MAX, 8)]), "beyond"),
        (Object { stride: 0, ..queue() }, "no size"),
    ] {
        let error = object.check().unwrap_err();
        assert!(matches!(error, Error::Layout { .. }) && error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn elements_without_members_become_structures() {
    let value = Member { name: "value".to_owned(), declaration: "long value".to_owned(), offset: 0, bytes: 8 };
    let counts = Object { name: "counts".to_owned(), elements: 8, stride: 8, members: vec![value], ..queue() };
    let redesign = counts.redesign(&judged(&[(1, 0x1000, 8, true), (2, 0x1008, 8, true)])).unwrap().unwrap();
    assert_eq!(redesign.advice, [Advice::Wrap { to: 64 }, Advice::PadStride { from: 8, to: 64 }]);
}
