//! Coroutines of the crate corosensei on stacks of blocks: many, deep, with panics, dropped while
//! suspended, moved between threads.

#![allow(unsafe_code, reason = "sends a coroutine to another thread, which corosensei leaves to its users")]
#![cfg(all(feature = "corosensei", target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

use std::cell::Cell;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;

use corosensei::{Coroutine, CoroutineResult, Yielder};
use fieldstone_stacks::{BlockStack, Switch, grow, held_bytes, remaining};

/// The yielder of coroutines that take a depth and yield a number.
type DepthYielder = Yielder<u64, u64>;

struct TestCoroutine {
    coroutine: Coroutine<u64, u64, u64, BlockStack>,
    switch: Switch,
}

impl TestCoroutine {
    fn new(body: impl FnOnce(&DepthYielder, u64) -> u64 + 'static) -> Self {
        let Ok((stack, switch)) = BlockStack::new() else { panic!("no memory for a stack") };
        Self { coroutine: Coroutine::with_stack(stack, body), switch }
    }

    fn resume(&mut self, input: u64) -> CoroutineResult<u64, u64> {
        self.switch.enter(|| self.coroutine.resume(input))
    }
}

/// Makes `depth` nested calls of some hundred bytes, suspends in the last, and returns the depth
/// plus the value it was resumed with.
fn descend(depth: u64, yielder: &DepthYielder) -> u64 {
    let mark = [depth; 40];
    black_box(&mark);
    let below =
        grow(|| if depth == 0 { yielder.suspend(held_bytes() as u64) } else { 1 + descend(depth - 1, yielder) });
    assert_eq!(black_box(&mark)[39], depth);
    below
}

/// Makes `depth` nested calls without suspending.
fn descend_plain(depth: u64) -> u64 {
    let mark = [depth; 40];
    black_box(&mark);
    let below = grow(|| if depth == 0 { 0 } else { 1 + descend_plain(depth - 1) });
    below + u64::from(black_box(&mark)[39] != depth)
}

#[test]
fn many_deeply_suspended_coroutines_are_independent() {
    const DEPTHS: [u64; 7] = [0, 3, 50, 170, 700, 3_000, 11_000];
    let body = |yielder: &DepthYielder, first: u64| {
        let sum = descend(first, yielder);
        let next = yielder.suspend(sum);
        descend(next, yielder)
    };
    let mut all: Vec<TestCoroutine> = (0..500).map(|_| TestCoroutine::new(body)).collect();
    let depth = |at: usize, round: usize| DEPTHS[(at * 3 + round) % DEPTHS.len()];
    for (at, one) in all.iter_mut().enumerate() {
        let CoroutineResult::Yield(held) = one.resume(depth(at, 0)) else { panic!("{at} returned") };
        assert!(held >= depth(at, 0) * 320, "{at}: {held} bytes");
        assert_eq!(descend_plain(depth(at, 2)), depth(at, 2), "the thread's own stack");
    }
    for (at, one) in all.iter_mut().enumerate().rev() {
        assert_eq!(one.resume(7), CoroutineResult::Yield(depth(at, 0) + 7), "{at}");
    }
    for (at, one) in all.iter_mut().enumerate() {
        assert!(matches!(one.resume(depth(at, 1)), CoroutineResult::Yield(_)), "{at}");
    }
    for (at, one) in all.iter_mut().enumerate().rev() {
        assert_eq!(one.resume(9), CoroutineResult::Return(depth(at, 1) + 9), "{at}");
    }
}

#[test]
fn a_panic_in_a_deep_coroutine_reaches_the_resumer() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for depth in [0, 100, 5_000] {
        let mut one = TestCoroutine::new(|yielder, depth| {
            descend(depth, yielder);
            panic_any(77_u32)
        });
        assert!(matches!(one.resume(depth), CoroutineResult::Yield(_)));
        let before = remaining();
        let caught = catch_unwind(AssertUnwindSafe(|| one.resume(0)));
        assert_eq!(caught.unwrap_err().downcast_ref::<u32>(), Some(&77));
        assert!(one.coroutine.done());
        assert_eq!(remaining(), before, "the thread is back on its own stack");
        assert_eq!(descend_plain(5_000), 5_000);
    }
    std::panic::set_hook(hook);
}

/// Counts its drops. A drop needs some stack.
struct DropCounter(Rc<Cell<u64>>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.set(self.0.get() + descend_plain(200) - 199);
    }
}

fn descend_with(depth: u64, yielder: &DepthYielder, dropped: &Rc<Cell<u64>>) {
    let _dropped = DropCounter(Rc::clone(dropped));
    let mark = [depth; 60];
    black_box(&mark);
    grow(|| if depth == 0 { _ = yielder.suspend(0) } else { descend_with(depth - 1, yielder, dropped) });
}

#[test]
fn a_suspended_coroutine_drops_its_values_when_dropped() {
    for (is_entered, is_warm) in [(true, false), (false, false), (true, true), (false, true)] {
        let dropped = Rc::new(Cell::new(0));
        let held = Rc::clone(&dropped);
        let mut one = TestCoroutine::new(move |yielder, depth| {
            // Segments that exist are entered by another path than new ones.
            if is_warm {
                assert_eq!(descend_plain(depth * 2), depth * 2);
            }
            descend_with(depth, yielder, &held);
            0
        });
        assert!(matches!(one.resume(1_000), CoroutineResult::Yield(_)));
        let before = remaining();
        let TestCoroutine { coroutine, switch } = one;
        // Dropping unwinds the coroutine on its own stack. Without the switch the thread's guard
        // stays set meanwhile.
        if is_entered {
            switch.enter(|| drop(coroutine))
        } else {
            drop(coroutine)
        }
        assert_eq!(dropped.get(), 1_001, "entered: {is_entered}, warm: {is_warm}");
        assert_eq!(remaining(), before, "entered: {is_entered}, warm: {is_warm}");
        drop(switch);
        assert_eq!(descend_plain(5_000), 5_000, "entered: {is_entered}, warm: {is_warm}");
    }
}

/// A coroutine that moves to another thread.
struct SentCoroutine(TestCoroutine);

// SAFETY: one thread at a time uses the values on the coroutines' stacks.
unsafe impl Send for SentCoroutine {}

#[test]
fn a_suspended_coroutine_can_be_dropped_in_an_uninitialised_thread() {
    let dropped = Rc::new(Cell::new(0));
    let held = Rc::clone(&dropped);
    let mut one = TestCoroutine::new(move |yielder, depth| {
        descend_with(depth, yielder, &held);
        0
    });
    assert!(matches!(one.resume(1_000), CoroutineResult::Yield(_)));
    let sent = SentCoroutine(one);
    std::thread::spawn(move || {
        let sent = sent;
        drop(sent);
        assert!(remaining() < 8 << 20, "on the thread's own stack");
        assert_eq!(descend_plain(5_000), 5_000);
    })
    .join()
    .unwrap();
    assert_eq!(dropped.get(), 1_001);
}

#[test]
fn a_coroutine_can_be_resumed_in_another_thread() {
    let mut one = TestCoroutine::new(|yielder, depth| {
        let first = descend(depth, yielder);
        let next = yielder.suspend(first);
        descend(next, yielder)
    });
    assert!(matches!(one.resume(4_000), CoroutineResult::Yield(_)));
    let mut sent = SentCoroutine(one);
    for round in 0..3 {
        sent = std::thread::spawn(move || {
            let mut sent = sent;
            match round {
                0 => assert_eq!(sent.0.resume(1), CoroutineResult::Yield(4_001)),
                1 => assert!(matches!(sent.0.resume(9_000), CoroutineResult::Yield(held) if held > 9_000 * 320)),
                _ => assert_eq!(sent.0.resume(2), CoroutineResult::Return(9_002)),
            }
            assert_eq!(descend_plain(3_000), 3_000);
            sent
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_guard_read_before_a_switch_is_not_reused_after_it() {
    #[inline(never)]
    fn next(number: u64) -> u64 {
        black_box(number) + 1
    }
    #[inline(never)]
    fn down(depth: u64, coroutine: &mut Coroutine<u64, u64, u64, BlockStack>, switch: &Switch) -> u64 {
        let mark = [depth; 40];
        black_box(&mark);
        switch.enter(|| {
            let input = grow(|| next(depth));
            match coroutine.resume(input) {
                CoroutineResult::Yield(_) => (),
                CoroutineResult::Return(_) => panic!("the coroutine never returns"),
            }
        });
        let below = grow(|| if depth == 0 { 0 } else { 1 + down(depth - 1, coroutine, switch) });
        black_box(&mark);
        below
    }
    let deep = std::thread::spawn(|| {
        let TestCoroutine { mut coroutine, switch } = TestCoroutine::new(|yielder, mut input| {
            loop {
                input = yielder.suspend(input);
            }
        });
        assert_eq!(down(20_000, &mut coroutine, &switch), 20_000);
    });
    deep.join().unwrap();
}
