//! The heap: objects, the guard as its limit, and what the handler does.

#![cfg(feature = "std")]
#![allow(unsafe_code, reason = "resets heaps, allocates raw memory")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes in tests are small"
)]

mod common;

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use common::in_child;
use fieldstone_guard::{Bump, Error, Result};
use proptest::prelude::*;

/// A heap with a handler that counts its calls.
fn counted(bytes: usize, handler: fn(&mut fieldstone_guard::Heap<'_>) -> Result<()>) -> (Bump, Rc<Cell<u32>>) {
    let calls = Rc::new(Cell::new(0));
    let counter = calls.clone();
    let on_full = move |heap: &mut fieldstone_guard::Heap<'_>| {
        counter.set(counter.get() + 1);
        handler(heap)
    };
    (Bump::builder(bytes).on_full(on_full).build().unwrap(), calls)
}

#[test]
fn a_full_heap_calls_its_handler_exactly_at_its_end() {
    let (heap, calls) = counted(4096, |heap| {
        assert_eq!(
            (heap.used().len(), heap.bytes(), heap.request()),
            (heap.bytes(), heap.bytes(), Layout::new::<[u64; 2]>())
        );
        heap.grow(4096)
    });
    let mut objects = Vec::new();
    for number in 0..10_000_u64 {
        assert_eq!(calls.get() as u64, (number * 16).div_ceil(4096).saturating_sub(1), "object {number}");
        objects.push(heap.alloc([number, !number]).unwrap());
    }
    assert!(objects.iter().zip(0..).all(|(object, number)| **object == [number, !number]));
    assert_eq!(heap.used().len(), 160_000);
    assert_eq!(heap.bytes(), 160_000_usize.next_multiple_of(4096));
}

fn refused<T: Default>() -> (usize, Error) {
    let heap = Bump::builder(4096).build().unwrap();
    let count = (0..).take_while(|_| heap.alloc(T::default()).is_ok()).count();
    (count, heap.alloc(T::default()).err().unwrap())
}

#[test]
fn each_size_and_alignment_ends_with_the_heap() {
    #[derive(Default)]
    #[repr(align(64))]
    struct Line([u8; 3]);
    assert_eq!(refused::<u8>().0, 512);
    assert_eq!(refused::<[u8; 3]>().0, 512);
    assert_eq!(refused::<u32>().0, 512);
    assert_eq!(refused::<u64>().0, 512);
    assert_eq!(refused::<[u8; 12]>().0, 256);
    assert_eq!(refused::<[u64; 3]>().0, 170);
    assert_eq!(refused::<[u64; 32]>().0, 16);
    assert_eq!(refused::<Line>().0, 64);
    assert_eq!(refused::<u16>().1, Error::Full { bytes: 2 });
    assert_eq!(Line::default().0, [0; 3]);
}

#[test]
fn objects_larger_than_the_heap_or_the_guard_are_checked_too() {
    let (heap, calls) = counted(4096, |heap| heap.grow(4096));
    assert!(heap.alloc([7_u8; 60_000]).unwrap().iter().all(|&byte| byte == 7));
    assert!(calls.get() > 10);
    assert!(heap.alloc([8_u8; 70_000]).unwrap().iter().all(|&byte| byte == 8));
    let small = Bump::builder(4096).build().unwrap();
    assert_eq!(small.alloc([0_u8; 60_000]).err(), Some(Error::Full { bytes: 60_000 }));
    assert_eq!(small.alloc([0_u8; 70_000]).err(), Some(Error::Full { bytes: 70_000 }));
    assert!(small.alloc(1_u64).is_ok());
}

#[test]
fn an_object_without_bytes_needs_no_room() {
    let heap = Bump::builder(4096).build().unwrap();
    while heap.alloc(0_u64).is_ok() {}
    assert!(heap.alloc(()).is_ok());
}

#[test]
fn a_value_that_finds_no_room_is_dropped_and_others_are_not() {
    struct Counted(Rc<Cell<u32>>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let drops = Rc::new(Cell::new(0));
    let heap = Bump::builder(4096).build().unwrap();
    let count = (0..).take_while(|_| heap.alloc(Counted(drops.clone())).is_ok()).count();
    assert_eq!((count, drops.get()), (512, 1));
    drop(heap);
    assert_eq!(drops.get(), 1);
}

#[test]
fn the_handler_may_reset_fail_and_panic() {
    // SAFETY: the test uses no object after the next allocation.
    let (heap, calls) = counted(8192, |heap| unsafe {
        heap.reset();
        Ok(())
    });
    (0..10_000_u64).for_each(|number| assert_eq!(*heap.alloc(number).unwrap(), number));
    assert_eq!(calls.get(), 9);
    let (idle, calls) = counted(4096, |_| Ok(()));
    while idle.alloc(0_u64).is_ok() {}
    assert_eq!(calls.get(), 1, "a handler that changes nothing is called once");
    let heap = Bump::builder(4096).on_full(|_| panic!("no room")).build().unwrap();
    let fill = || while heap.alloc(0_u64).is_ok() {};
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fill)).is_err());
    assert_eq!(heap.used().len(), 4096);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fill)).is_err(), "the handler is still there");
}

#[test]
fn growth_ends_at_the_limit() {
    let heap = Bump::builder(4096).limit(16_384).on_full(|heap| heap.grow(4096)).build().unwrap();
    let count = (0..).take_while(|_| heap.alloc(0_u64).is_ok()).count();
    assert_eq!(count, 2048);
    assert!(matches!(heap.alloc(0_u64), Err(Error::Limit { bytes: 4096, limit: 16_384 })));
}

#[test]
fn a_reset_heap_starts_empty_and_raw_memory_is_aligned() {
    let mut heap = Bump::builder(1 << 16).build().unwrap();
    let first = std::ptr::from_mut(heap.alloc(1_u64).unwrap());
    heap.reset();
    assert_eq!(std::ptr::from_mut(heap.alloc(2_u64).unwrap()), first);
    let raw = heap.alloc_layout(Layout::from_size_align(100, 256).unwrap()).unwrap();
    assert!(raw.addr().get().is_multiple_of(256));
    // SAFETY: the memory belongs to the test.
    unsafe { raw.as_ptr().write_bytes(1, 100) };
    assert_eq!(*heap.alloc(3_u8).unwrap(), 3);
}

#[test]
fn threads_and_children_have_guards_too() {
    let count = || {
        let (heap, calls) = counted(4096, |heap| heap.grow(4096));
        (0..5000_u64).for_each(|number| _ = heap.alloc(number).unwrap());
        calls.get()
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(count)).collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 9));
    let heap = Bump::builder(4096).on_full(|heap| heap.grow(4096)).build().unwrap();
    _ = heap.alloc(0_u64).unwrap();
    let status = in_child(|| {
        (0..5000_u64).for_each(|number| assert_eq!(*heap.alloc(number).unwrap(), number));
        assert_eq!(count(), 9);
    });
    assert_eq!(status, 0);
}

/// A semispace collector: the use that Appel and Li describe.
#[test]
fn a_copying_collector_keeps_what_its_roots_reach() {
    struct Cell {
        value: u64,
        next: *const Cell,
    }
    let root = Rc::new(RefCell::new(std::ptr::null::<Cell>()));
    let (collector_root, collections) = (root.clone(), Rc::new(std::cell::Cell::new(0)));
    let counter = collections.clone();
    let on_full = move |heap: &mut fieldstone_guard::Heap<'_>| {
        counter.set(counter.get() + 1);
        // Keep the first 10 cells of the list.
        let mut kept = Vec::new();
        let mut at = *collector_root.borrow();
        while !at.is_null() && kept.len() < 10 {
            assert!(heap.used().contains(&at.addr()));
            // SAFETY: the list has live cells of this heap.
            kept.push(unsafe { (*at).value });
            // SAFETY: the list has live cells of this heap.
            at = unsafe { (*at).next };
        }
        let survivors = Bump::builder(4096).build().unwrap();
        let mut list = std::ptr::null();
        for &value in kept.iter().rev() {
            list = std::ptr::from_ref(survivors.alloc(Cell { value, next: list }).unwrap());
        }
        // The survivors live until the test ends.
        std::mem::forget(survivors);
        *collector_root.borrow_mut() = list;
        // SAFETY: all reachable cells were copied.
        unsafe { heap.reset() };
        Ok(())
    };
    let young = Bump::builder(1 << 14).on_full(on_full).build().unwrap();
    for value in 0..10_000 {
        let cell = young.alloc(Cell { value, next: std::ptr::null() }).unwrap();
        cell.next = *root.borrow();
        // A list that is longer than the heap after the survivors were cut.
        *root.borrow_mut() = cell;
        if collections.get() > 0 {
            break;
        }
    }
    assert!(collections.get() > 0);
    // SAFETY: the list has new cells, in the young heap, and survivors, which were not freed.
    let cell = |at: *const Cell| unsafe { at.as_ref() };
    let list = std::iter::successors(cell(*root.borrow()), |found| cell(found.next));
    let values: Vec<_> = list.map(|cell| cell.value).collect();
    assert!(values.windows(2).all(|pair| pair[0] == pair[1] + 1), "{values:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn objects_do_not_overlap_and_keep_their_contents(sizes in prop::collection::vec(0..6_u8, 1..2000)) {
        let heap = Bump::builder(4096).on_full(|heap| heap.grow(8192)).build().unwrap();
        let mut live: Vec<(&[u8], u8)> = Vec::new();
        for (number, size) in sizes.into_iter().enumerate() {
            let fill = number as u8;
            let object: &[u8] = match size {
                0 => heap.alloc([fill; 1]).unwrap(),
                1 => heap.alloc([fill; 7]).unwrap(),
                2 => heap.alloc([fill; 9]).unwrap(),
                3 => heap.alloc([fill; 33]).unwrap(),
                4 => heap.alloc([fill; 1000]).unwrap(),
                _ => heap.alloc([fill; 5000]).unwrap(),
            };
            live.push((object, fill));
        }
        prop_assert!(live.iter().all(|(object, fill)| object.iter().all(|byte| byte == fill)));
        let mut ranges: Vec<_> = live.iter().map(|(object, _)| object.as_ptr_range()).collect();
        ranges.sort_by_key(|range| range.start);
        prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
        prop_assert!(ranges.iter().all(|range| heap.used().contains(&range.start.addr())));
    }
}
