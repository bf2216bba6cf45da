//! Recursion in Rust that asks for its stack: what asking costs, and what it costs to go on elsewhere.

use std::hint::black_box;
use std::time::Duration;

use fieldstone_stacks::{grow as grow_stack, remaining};

use crate::cell::Cell;
use crate::duel::{cpu_seconds, duel, duel_of_at_least};
use crate::goals::Goal;

const N: u32 = 32;

/// Fibonacci's numbers plus `K` in its leaves: each `K` is a function of its own, at a place of its own.
#[inline(never)]
fn fib_plain<const K: u64>(n: u32) -> u64 {
    if n < 2 { u64::from(n) + K } else { fib_plain::<K>(n - 1) + fib_plain::<K>(n - 2) }
}

#[inline(never)]
fn fib_grown<const K: u64>(n: u32) -> u64 {
    grow_stack(|| if n < 2 { u64::from(n) + K } else { fib_grown::<K>(n - 1) + fib_grown::<K>(n - 2) })
}

type Fib = fn(u32) -> u64;

/// The same twenty times, plain and with a check, since where a function lies decides some percent and more.
macro_rules! layouts {
    ($($k:literal)*) => { [$((fib_grown::<$k> as Fib, fib_plain::<$k> as Fib)),*] };
}
const LAYOUTS: [(Fib, Fib); 20] = layouts!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20);

/// Fibonacci's numbers with a check at each call.
pub(crate) fn fib(goal: Goal, most: Duration) -> Cell {
    assert!(LAYOUTS.iter().all(|(grown, plain)| grown(20) == plain(20)));
    let part = format!("fib({N}), a check at each call");
    let (mut own, mut other) = (LAYOUTS.iter().cycle(), LAYOUTS.iter().cycle());
    let time = |fib: Option<Fib>| cpu_seconds(|| assert!(fib.map(|fib| black_box(fib(black_box(N)))) > Some(0)));
    duel_of_at_least(
        LAYOUTS.len(),
        goal,
        &part,
        "20 copies each, at places of their own",
        most,
        || time(own.next().map(|(grown, _)| *grown)),
        || time(other.next().map(|(_, plain)| *plain)),
    )
}

/// Calls that go on elsewhere each time.
const CALLS: u64 = 20_000;

/// Runs `calls` calls of `grow` from a frame that has too little: each goes to the next segment and comes back.
#[inline(never)]
fn at_the_border(calls: u64) -> u64 {
    let left = remaining();
    if left > 11 << 10 {
        // Down to where less is left than `grow` makes sure of.
        let frame = [0_u8; 512];
        black_box(&frame);
        return at_the_border(calls) + u64::from(black_box(&frame)[0]);
    }
    (0..calls).map(|at| grow_stack(|| black_box(at) & 1)).sum()
}

/// The same by stacker.
fn by_stacker(calls: u64) -> u64 {
    (0..calls).map(|at| stacker::grow(64 << 10, || black_box(at) & 1)).sum()
}

/// What it costs to go on elsewhere.
pub(crate) fn grow(goal: Goal, most: Duration) -> Cell {
    duel(
        goal,
        "a call on another segment",
        "stacker::grow makes and unmakes a stack each time",
        most,
        || cpu_seconds(|| assert_eq!(black_box(at_the_border(CALLS)), CALLS / 2)),
        || cpu_seconds(|| assert_eq!(black_box(by_stacker(CALLS)), CALLS / 2)),
    )
}
