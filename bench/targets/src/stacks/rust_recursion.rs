//! Recursion in Rust with a check of its stack: the cost of a check, and of a switch to another
//! segment.

use std::hint::black_box;
use std::time::Duration;

use fieldstone_stacks::{grow as grow_stack, remaining};

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::kernel_comparison::{compare, compare_with_min_pairs, cpu_seconds};

const N: u32 = 32;

/// Fibonacci numbers plus `K` in the leaves, so that each `K` is a separate function.
#[inline(never)]
fn fib_plain<const K: u64>(n: u32) -> u64 {
    if n < 2 { u64::from(n) + K } else { fib_plain::<K>(n - 1) + fib_plain::<K>(n - 2) }
}

#[inline(never)]
fn fib_grown<const K: u64>(n: u32) -> u64 {
    grow_stack(|| if n < 2 { u64::from(n) + K } else { fib_grown::<K>(n - 1) + fib_grown::<K>(n - 2) })
}

type Fib = fn(u32) -> u64;

/// Twenty copies, without and with a check, because the position of a function changes its time by
/// some percent.
macro_rules! layouts {
    ($($k:literal)*) => { [$((fib_grown::<$k> as Fib, fib_plain::<$k> as Fib)),*] };
}
const LAYOUTS: [(Fib, Fib); 20] = layouts!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20);

/// Fibonacci numbers with a check at each call.
pub(crate) fn fib(goal: Goal, time_limit: Duration) -> GoalCell {
    assert!(LAYOUTS.iter().all(|(grown, plain)| grown(20) == plain(20)));
    let case = format!("fib({N}), a check at each call");
    let (mut own, mut other) = (LAYOUTS.iter().cycle(), LAYOUTS.iter().cycle());
    let time = |fib: Option<Fib>| cpu_seconds(|| assert!(fib.map(|fib| black_box(fib(black_box(N)))) > Some(0)));
    compare_with_min_pairs(
        LAYOUTS.len(),
        goal,
        &case,
        "20 copies each, at places of their own",
        time_limit,
        || time(own.next().map(|(grown, _)| *grown)),
        || time(other.next().map(|(_, plain)| *plain)),
    )
}

/// Number of calls that switch segments.
const CALLS: u64 = 20_000;

/// Calls `grow` `calls` times from a frame with too little stack: each call switches to the next
/// segment and back.
#[inline(never)]
fn calls_at_segment_end(calls: u64) -> u64 {
    let left = remaining();
    if left > 11 << 10 {
        // Recurses until less stack is left than `grow` ensures.
        let frame = [0_u8; 512];
        black_box(&frame);
        return calls_at_segment_end(calls) + u64::from(black_box(&frame)[0]);
    }
    (0..calls).map(|at| grow_stack(|| black_box(at) & 1)).sum()
}

/// The same with the stacker crate.
fn calls_with_stacker(calls: u64) -> u64 {
    (0..calls).map(|at| stacker::grow(64 << 10, || black_box(at) & 1)).sum()
}

/// The cost of a call on another segment.
pub(crate) fn grow(goal: Goal, time_limit: Duration) -> GoalCell {
    compare(
        goal,
        "a call on another segment",
        "stacker::grow makes and unmakes a stack each time",
        time_limit,
        || cpu_seconds(|| assert_eq!(black_box(calls_at_segment_end(CALLS)), CALLS / 2)),
        || cpu_seconds(|| assert_eq!(black_box(calls_with_stacker(CALLS)), CALLS / 2)),
    )
}
