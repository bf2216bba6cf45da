//! Recursion in Rust that asks for its stack: what asking costs, and what it costs to go on elsewhere.

use std::hint::black_box;
use std::time::Duration;

use fieldstone_stacks::{grow as grow_stack, remaining};

use crate::cell::Cell;
use crate::duel::{cpu_seconds, duel};
use crate::goals::Goal;

const N: u32 = 32;

#[inline(never)]
fn fib_plain(n: u32) -> u64 {
    if n < 2 { n.into() } else { fib_plain(n - 1) + fib_plain(n - 2) }
}

#[inline(never)]
fn fib_grown(n: u32) -> u64 {
    grow_stack(|| if n < 2 { n.into() } else { fib_grown(n - 1) + fib_grown(n - 2) })
}

/// Fibonacci's numbers with a check at each call.
pub(crate) fn fib(goal: Goal, most: Duration) -> Cell {
    assert_eq!(fib_plain(20), fib_grown(20));
    let part = format!("fib({N}), a check at each call");
    duel(
        goal,
        &part,
        "",
        most,
        || cpu_seconds(|| assert!(black_box(fib_grown(black_box(N))) > 0)),
        || cpu_seconds(|| assert!(black_box(fib_plain(black_box(N))) > 0)),
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
