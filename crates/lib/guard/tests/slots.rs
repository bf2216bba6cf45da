//! One object at a time: where it lies, what faults, and how an address is explained.

#![allow(unsafe_code, reason = "frees objects wrongly, on purpose")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes in tests are small"
)]

mod common;

use std::ptr::NonNull;

use common::*;
use fieldstone_guard::{Error, Finding, Kind, Side, Slots, StackId, Trace};

fn slots(side: Side) -> Slots {
    Slots::builder().side(side).quarantine(0).build().unwrap()
}

fn address(object: NonNull<u8>) -> usize {
    object.as_ptr().expose_provenance()
}

#[test]
fn a_right_object_ends_at_a_guard_and_its_memory_is_zero() {
    let slots = slots(Side::Right);
    for bytes in [1, 16, 24, 4096, 4097, 12_288, 100_000] {
        let object = alloc(&slots, bytes);
        let end = address(object) + bytes.next_multiple_of(16);
        assert!(address(object).is_multiple_of(16) && end.is_multiple_of(PAGE), "{bytes}");
        assert!(is_accessible(end - 1) && !is_accessible(end), "{bytes}");
        assert!(!is_accessible((address(object) & !(PAGE - 1)) - 1), "{bytes}: the page before is a guard");
        assert!(is_filled(object, bytes, 0), "{bytes}");
        assert_eq!(slots.bytes_of(object), Some(bytes));
        fill(object, bytes, 0xff);
        free(&slots, object);
        assert!(!is_accessible(address(object)), "{bytes}: freed");
        assert_eq!(slots.bytes_of(object), None);
    }
}

#[test]
fn a_left_object_starts_behind_a_guard() {
    let slots = slots(Side::Left);
    for bytes in [1, 24, 4096, 9000] {
        let object = alloc(&slots, bytes);
        let (start, end) = (address(object), address(object) + bytes.next_multiple_of(PAGE));
        assert!(start.is_multiple_of(PAGE) && !is_accessible(start - 1) && is_accessible(start), "{bytes}");
        assert!(is_accessible(end - 1) && !is_accessible(end), "{bytes}");
        free(&slots, object);
    }
}

#[test]
fn both_sides_are_used_also_by_the_allocations_of_a_loop() {
    let slots = slots(Side::Both);
    for group in 2..6 {
        let is_left = |_| address(alloc(&slots, 32)).is_multiple_of(PAGE);
        let sides: Vec<bool> = (0..64 * group).map(is_left).collect();
        for site in 0..group {
            let left = sides.iter().skip(site).step_by(group).filter(|&&left| left).count();
            assert!((8..=56).contains(&left), "site {site} of {group}: {left} of 64 are left");
        }
    }
}

#[test]
fn objects_have_their_alignment() {
    for side in [Side::Right, Side::Left] {
        let slots = slots(side);
        for alignment in (0..17).map(|shift| 1 << shift) {
            for bytes in [0, 1, 100, 5000] {
                let object = slots.alloc(layout(bytes, alignment)).unwrap();
                assert!(address(object).is_multiple_of(alignment), "{bytes} bytes aligned to {alignment}");
                let last = (address(object) + bytes.max(1) - 1) & !(PAGE - 1);
                assert!(!is_accessible(last + PAGE) && !is_accessible((address(object) & !(PAGE - 1)) - 1));
                free(&slots, object);
            }
        }
    }
}

#[test]
fn an_access_far_from_all_objects_is_explained_by_the_nearest() {
    let slots = slots(Side::Right);
    let object = alloc(&slots, 64);
    // The guard between two slots that were never used.
    let far = address(object) + 64 + 20 * PAGE;
    assert_eq!((slots.explain(far), slots.explain_far(address(object) + 64)), (None, None));
    let finding = slots.explain_far(far).unwrap();
    assert_eq!((finding.kind, finding.offset), (Kind::HeapBufferOverflow, 20 * PAGE as isize));
    assert_eq!(finding.object.start, address(object));
    assert_eq!(slots.explain_far(slots.base() + slots.span() - 1), None, "no object of this size");
    free(&slots, object);
    assert!(slots.explain_far(far).unwrap().freed.is_some());
    assert!(slots.open_page(far + PAGE) && is_accessible(far + PAGE), "a program may go on");
    for _ in 0..100 {
        assert_ne!(address(alloc(&slots, 64)) & !(PAGE - 1), far + PAGE);
    }
}

#[test]
fn each_access_beside_an_object_is_explained() {
    let slots = slots(Side::Right);
    let object = alloc(&slots, 24);
    let explain = |offset: isize| slots.explain(address(object).wrapping_add_signed(offset));
    assert_eq!(explain(0), None);
    assert_eq!(explain(23), None);
    let kind = |offset| explain(offset).map(|finding| (finding.kind, finding.offset));
    assert_eq!(kind(24), Some((Kind::HeapBufferOverflow, 0)));
    assert_eq!(kind(32), Some((Kind::HeapBufferOverflow, 8)), "in the guard");
    assert_eq!(kind(-1), Some((Kind::HeapBufferUnderflow, -1)));
    let finding = explain(-5000).unwrap();
    assert_eq!((finding.kind, finding.object.bytes), (Kind::HeapBufferUnderflow, 24), "before its page");
    free(&slots, object);
    let finding = explain(8).unwrap();
    assert_eq!((finding.kind, finding.offset, finding.object.bytes), (Kind::UseAfterFree, 8, 24));
    assert_eq!(finding.object.start, address(object));
    assert!(finding.freed.is_some());
    assert_eq!(slots.explain(0), None);
    assert_eq!(slots.explain(usize::MAX), None);
}

#[test]
fn a_guard_belongs_to_the_nearer_object() {
    let (right, left) = (slots(Side::Right), slots(Side::Left));
    let pair = |slots: &Slots| {
        let (a, b) = (alloc(slots, 16), alloc(slots, 16));
        if a < b { (a, b) } else { (b, a) }
    };
    let (first, _) = pair(&right);
    assert_eq!(right.explain(address(first) + 16).unwrap().object.start, address(first));
    let (_, second) = pair(&left);
    let finding = left.explain(address(second) - 1).unwrap();
    assert_eq!((finding.object.start, finding.kind), (address(second), Kind::HeapBufferUnderflow));
}

#[test]
fn room_ends_with_the_object() {
    let slots = slots(Side::Right);
    let object = alloc(&slots, 24);
    let room = |offset: isize| slots.room(address(object).wrapping_add_signed(offset));
    assert_eq!([room(0), room(20), room(24), room(40), room(-1)], [Some(24), Some(4), Some(0), Some(0), Some(0)]);
    free(&slots, object);
    assert_eq!(room(0), Some(0));
    assert_eq!(slots.room(slots.base() + slots.span()), None);
    assert_eq!(slots.room(slots.base() + slots.span() - 1), Some(0));
    assert!(slots.owns(slots.base()) && !slots.owns(slots.base() - 1));
}

fn wrong_free(slots: &Slots, address: usize) -> Finding {
    let object = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap();
    // SAFETY: the address is no live object, so nothing changes.
    unsafe { slots.free(object) }.unwrap_err()
}

#[test]
fn wrong_frees_are_refused() {
    let slots = slots(Side::Right);
    let object = alloc(&slots, 64);
    let inner = wrong_free(&slots, address(object) + 8);
    assert_eq!((inner.kind, inner.offset, inner.object.bytes), (Kind::InvalidFree, 8, 64));
    let wild = wrong_free(&slots, 0x1000);
    assert_eq!((wild.kind, wild.object.bytes), (Kind::InvalidFree, 0));
    write(object, 0, 1);
    free(&slots, object);
    let again = wrong_free(&slots, address(object));
    assert_eq!((again.kind, again.offset, again.freed.is_some()), (Kind::DoubleFree, 0, true));
    assert_eq!(wrong_free(&slots, address(object) + 1).kind, Kind::InvalidFree);
    assert_eq!(slots.stats().live, 0);
}

#[test]
fn a_write_to_the_padding_is_found_at_the_free() {
    for (side, offset, kind) in [
        (Side::Right, 24, Kind::HeapBufferOverflow),
        (Side::Right, 31, Kind::HeapBufferOverflow),
        (Side::Right, -1, Kind::HeapBufferUnderflow),
        (Side::Left, 24, Kind::HeapBufferOverflow),
        (Side::Left, 4095, Kind::HeapBufferOverflow),
    ] {
        let slots = slots(side);
        let object = alloc(&slots, 24);
        write(object, offset, 0);
        // SAFETY: the object is not used afterwards.
        let finding = unsafe { slots.free(object) }.unwrap_err();
        let expected = if offset < 0 { offset } else { offset - 24 };
        assert_eq!((finding.kind, finding.offset, finding.padding), (kind, expected, true), "{side:?} {offset}");
        assert_eq!(finding.address, address(object).wrapping_add_signed(offset));
        assert_eq!(slots.stats().live, 0, "it is freed");
    }
}

#[test]
fn stacks_and_threads_are_recorded() {
    let slots = slots(Side::Right);
    let new = Trace { thread: 7, frames: &[1, 2, 3] };
    let old = Trace { thread: 8, frames: &[9; 100] };
    let object = slots.alloc_traced(layout(8, 8), new).unwrap();
    let other = slots.alloc_traced(layout(8, 8), new).unwrap();
    // SAFETY: the object is not used afterwards.
    unsafe { slots.free_traced(object, old) }.unwrap();
    let finding = slots.explain(address(object)).unwrap();
    let mut frames = [0; 80];
    assert_eq!(slots.frames(finding.allocated.stack, &mut frames), 3);
    assert_eq!((&frames[..3], finding.allocated.thread), (&[1, 2, 3][..], 7));
    let freed = finding.freed.unwrap();
    assert_eq!((slots.frames(freed.stack, &mut frames), freed.thread, frames[63]), (64, 8, 9), "64 are kept");
    assert_eq!(slots.explain(address(other) + 8).unwrap().allocated, finding.allocated, "stored once");
    assert_eq!(slots.stats().stacks, 2);
    let mut short = [0; 2];
    assert_eq!(slots.frames(finding.allocated.stack, &mut short), 2);
    assert_eq!(slots.frames(StackId::NONE, &mut short), 0);
    // Without a trace, the thread is known and there is no stack.
    let untraced = slots.explain(address(alloc(&slots, 8)) + 8).unwrap().allocated;
    assert_eq!(untraced.stack, StackId::NONE);
    assert!(untraced.thread > 0);
}

#[test]
fn the_oldest_freed_object_is_reused_first_and_only_after_the_quarantine() {
    let slots = Slots::builder().side(Side::Right).quarantine(1000).build().unwrap();
    let mut freed = Vec::new();
    for round in 0..3000 {
        let object = alloc(&slots, 100);
        let reuse = freed.iter().position(|&old| old == object);
        if let Some(at) = reuse {
            assert!(round - at >= 1000, "reused after {} frees", round - at);
            freed[at] = NonNull::dangling();
        }
        free(&slots, object);
        freed.push(object);
    }
    let reused = freed.iter().filter(|&&object| object == NonNull::dangling()).count();
    assert!((1500..2000).contains(&reused), "{reused} of 3000 slots were reused");
}

#[test]
fn an_opened_page_stays_open_and_its_slot_is_not_reused() {
    let slots = slots(Side::Right);
    let object = alloc(&slots, 64);
    assert!(!slots.open_page(address(object)), "a live object needs nothing");
    free(&slots, object);
    assert!(slots.open_page(address(object)) && slots.open_page(address(object) + 64));
    write(object, 3, 1);
    assert!(is_accessible(address(object) + 64));
    for _ in 0..1000 {
        let other = alloc(&slots, 64);
        assert_ne!(other, object);
        free(&slots, other);
    }
    assert_eq!(read(object, 3), 1);
    assert!(!slots.open_page(8));
}

#[test]
fn a_new_object_has_its_guards_again_and_a_live_neighbour_keeps_what_it_wrote() {
    let slots = slots(Side::Right);
    let [first, second, third] = [(); 3].map(|()| alloc(&slots, 100));
    let end = |object: NonNull<u8>| address(object) + 112;
    assert!(slots.open_page(end(first)) && slots.open_page(end(second)));
    write(first, 112, 1);
    free(&slots, second);
    free(&slots, third);
    let is_again = |object: &NonNull<u8>| {
        let is_again = *object == second;
        if !is_again {
            free(&slots, *object);
        }
        is_again
    };
    let again = (0..1000).map(|_| alloc(&slots, 100)).find(is_again).unwrap();
    assert!(is_accessible(end(first)) && read(first, 112) == 1 && !is_accessible(end(again)));
}

#[test]
fn findings_print_as_one_line() {
    let slots = slots(Side::Right);
    let object = alloc(&slots, 24);
    let at = address(object);
    let text = |address: usize| slots.explain(address).unwrap().to_string();
    assert_eq!(text(at + 32), format!("heap-buffer-overflow: 8 bytes after an object of 24 bytes at {at:#x}"));
    assert_eq!(text(at - 1), format!("heap-buffer-underflow: 1 byte before an object of 24 bytes at {at:#x}"));
    assert_eq!(wrong_free(&slots, 0x1000).to_string(), "invalid-free: no object at 0x1000");
    free(&slots, object);
    assert_eq!(text(at + 3), format!("use-after-free: 3 bytes inside a freed object of 24 bytes at {at:#x}"));
}

#[test]
fn options_are_checked() {
    let error = Slots::builder().memory(4096).build().unwrap_err();
    assert!(matches!(error, Error::Option { option: "memory", value: 4096, .. }), "{error}");
}

#[test]
fn statistics_print_one_line_a_field() {
    let slots = slots(Side::Right);
    let object = alloc(&slots, 5000);
    let text = slots.stats().to_string();
    assert!(text.contains("live: 1 objects\n") && text.lines().count() == 11, "{text}");
    let before = slots.stats().memory;
    free(&slots, object);
    assert_eq!(before - slots.stats().memory, 2 * PAGE);
}
