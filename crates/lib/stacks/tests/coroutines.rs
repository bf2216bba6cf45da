//! Coroutines of the crate corosensei on stacks of blocks: many, deep, with panics, dropped half-way, moved between threads.

#![allow(unsafe_code, reason = "sends a coroutine to another thread, which the crate leaves to its users")]
#![cfg(all(feature = "corosensei", target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

use std::cell::Cell;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;

use corosensei::{Coroutine, CoroutineResult, Yielder};
use fieldstone_stacks::{BlockStack, Switch, grow, held_bytes, remaining};

/// The yielder of those that are given a depth each time and yield how deep they came.
type Down = Yielder<u64, u64>;

struct One {
    coroutine: Coroutine<u64, u64, u64, BlockStack>,
    switch: Switch,
}

impl One {
    fn new(body: impl FnOnce(&Down, u64) -> u64 + 'static) -> Self {
        let Ok((stack, switch)) = BlockStack::new() else { panic!("there is no memory") };
        Self { coroutine: Coroutine::with_stack(stack, body), switch }
    }

    fn resume(&mut self, input: u64) -> CoroutineResult<u64, u64> {
        self.switch.enter(|| self.coroutine.resume(input))
    }
}

/// Goes down `depth` calls of some hundred bytes, suspends at the end, and comes back with how deep it was plus what it was resumed with.
fn descend(depth: u64, yielder: &Down) -> u64 {
    let mark = [depth; 40];
    black_box(&mark);
    let below =
        grow(|| if depth == 0 { yielder.suspend(held_bytes() as u64) } else { 1 + descend(depth - 1, yielder) });
    assert_eq!(black_box(&mark)[39], depth);
    below
}

/// As deep, without an end in between.
fn plain(depth: u64) -> u64 {
    let mark = [depth; 40];
    black_box(&mark);
    let below = grow(|| if depth == 0 { 0 } else { 1 + plain(depth - 1) });
    below + u64::from(black_box(&mark)[39] != depth)
}

#[test]
fn many_that_are_suspended_deep_do_not_disturb_each_other() {
    const DEPTHS: [u64; 7] = [0, 3, 50, 170, 700, 3_000, 11_000];
    let body = |yielder: &Down, first: u64| {
        let sum = descend(first, yielder);
        let next = yielder.suspend(sum);
        descend(next, yielder)
    };
    let mut all: Vec<One> = (0..500).map(|_| One::new(body)).collect();
    let depth = |at: usize, round: usize| DEPTHS[(at * 3 + round) % DEPTHS.len()];
    for (at, one) in all.iter_mut().enumerate() {
        let CoroutineResult::Yield(held) = one.resume(depth(at, 0)) else { panic!("{at} returned") };
        assert!(held >= depth(at, 0) * 320, "{at}: {held} bytes");
        assert_eq!(plain(depth(at, 2)), depth(at, 2), "the thread's own stack");
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
fn a_panic_comes_out_of_the_depth_to_who_resumed() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for depth in [0, 100, 5_000] {
        let mut one = One::new(|yielder, depth| {
            descend(depth, yielder);
            panic_any(77_u32)
        });
        assert!(matches!(one.resume(depth), CoroutineResult::Yield(_)));
        let before = remaining();
        let caught = catch_unwind(AssertUnwindSafe(|| one.resume(0)));
        assert_eq!(caught.unwrap_err().downcast_ref::<u32>(), Some(&77));
        assert!(one.coroutine.done());
        assert_eq!(remaining(), before, "the thread is on its own stack again");
        assert_eq!(plain(5_000), 5_000);
    }
    std::panic::set_hook(hook);
}

/// Counts how often it is dropped, and needs some stack for that.
struct Dropped(Rc<Cell<u64>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(self.0.get() + plain(200) - 199);
    }
}

fn descend_with(depth: u64, yielder: &Down, dropped: &Rc<Cell<u64>>) {
    let _dropped = Dropped(Rc::clone(dropped));
    let mark = [depth; 60];
    black_box(&mark);
    grow(|| if depth == 0 { _ = yielder.suspend(0) } else { descend_with(depth - 1, yielder, dropped) });
}

#[test]
fn one_that_is_dropped_half_way_drops_all_that_it_has() {
    for (is_entered, is_warm) in [(true, false), (false, false), (true, true), (false, true)] {
        let dropped = Rc::new(Cell::new(0));
        let held = Rc::clone(&dropped);
        let mut one = One::new(move |yielder, depth| {
            // Segments that are there are entered another way than those that have to be made.
            if is_warm {
                assert_eq!(plain(depth * 2), depth * 2);
            }
            descend_with(depth, yielder, &held);
            0
        });
        assert!(matches!(one.resume(1_000), CoroutineResult::Yield(_)));
        let before = remaining();
        let One { coroutine, switch } = one;
        // Dropping unwinds it, on its own stack; who does not go through the switch has the thread's guard meanwhile.
        if is_entered {
            switch.enter(|| drop(coroutine))
        } else {
            drop(coroutine)
        }
        assert_eq!(dropped.get(), 1_001, "entered: {is_entered}, warm: {is_warm}");
        assert_eq!(remaining(), before, "entered: {is_entered}, warm: {is_warm}");
        drop(switch);
        assert_eq!(plain(5_000), 5_000, "entered: {is_entered}, warm: {is_warm}");
    }
}

/// A coroutine on its way to another thread.
struct Sent(One);

// SAFETY: what the coroutines here have on their stacks is used by one thread at a time.
unsafe impl Send for Sent {}

#[test]
fn one_is_dropped_half_way_in_a_thread_that_never_grew() {
    let dropped = Rc::new(Cell::new(0));
    let held = Rc::clone(&dropped);
    let mut one = One::new(move |yielder, depth| {
        descend_with(depth, yielder, &held);
        0
    });
    assert!(matches!(one.resume(1_000), CoroutineResult::Yield(_)));
    let sent = Sent(one);
    std::thread::spawn(move || {
        let sent = sent;
        drop(sent);
        assert!(remaining() < 8 << 20, "on the thread's own stack");
        assert_eq!(plain(5_000), 5_000);
    })
    .join()
    .unwrap();
    assert_eq!(dropped.get(), 1_001);
}

#[test]
fn one_goes_on_in_another_thread() {
    let mut one = One::new(|yielder, depth| {
        let first = descend(depth, yielder);
        let next = yielder.suspend(first);
        descend(next, yielder)
    });
    assert!(matches!(one.resume(4_000), CoroutineResult::Yield(_)));
    let mut sent = Sent(one);
    for round in 0..3 {
        sent = std::thread::spawn(move || {
            let mut sent = sent;
            match round {
                0 => assert_eq!(sent.0.resume(1), CoroutineResult::Yield(4_001)),
                1 => assert!(matches!(sent.0.resume(9_000), CoroutineResult::Yield(held) if held > 9_000 * 320)),
                _ => assert_eq!(sent.0.resume(2), CoroutineResult::Return(9_002)),
            }
            assert_eq!(plain(3_000), 3_000);
            sent
        })
        .join()
        .unwrap();
    }
}

#[test]
fn what_is_asked_on_the_way_to_a_coroutine_is_not_gone_by_afterwards() {
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
                CoroutineResult::Return(_) => panic!("it goes on for ever"),
            }
        });
        let below = grow(|| if depth == 0 { 0 } else { 1 + down(depth - 1, coroutine, switch) });
        black_box(&mark);
        below
    }
    let deep = std::thread::spawn(|| {
        let One { mut coroutine, switch } = One::new(|yielder, mut input| {
            loop {
                input = yielder.suspend(input);
            }
        });
        assert_eq!(down(20_000, &mut coroutine, &switch), 20_000);
    });
    deep.join().unwrap();
}
