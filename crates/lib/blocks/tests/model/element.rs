//! Elements of every awkward kind: small, large, odd-sized, over-aligned, of no size, and such as own memory and count their drops.

use std::cell::Cell;
use std::fmt::Debug;
use std::hash::Hash;

pub(crate) trait Element: Clone + Ord + Hash + Debug + Send + Sync + 'static {
    fn of(seed: u32) -> Self;
}

impl Element for u8 {
    fn of(seed: u32) -> Self {
        seed.to_le_bytes()[0]
    }
}

impl Element for u64 {
    fn of(seed: u32) -> Self {
        u64::from(seed) << 20 | 5
    }
}

/// 24 bytes: leaves have a rest, and are found by the reciprocal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Triple(u64, u64, u64);

impl Element for Triple {
    fn of(seed: u32) -> Self {
        let seed = u64::from(seed);
        Self(seed, !seed, seed * 3)
    }
}

/// More than half of the smallest block, and no power of two: one a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bulky([u32; 750]);

impl Element for Bulky {
    fn of(seed: u32) -> Self {
        let mut words = [seed; 750];
        words[749] = !seed;
        Self(words)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(align(64))]
pub(crate) struct Line(u32);

impl Element for Line {
    fn of(seed: u32) -> Self {
        Self(seed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(align(4096))]
pub(crate) struct Page(u32);

impl Element for Page {
    fn of(seed: u32) -> Self {
        Self(seed)
    }
}

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

/// How many counted elements live on this thread: made and not yet dropped.
pub(crate) fn live() -> isize {
    LIVE.get()
}

/// Counts itself, in a type that `Element`s contain.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Life;

impl Life {
    fn begin() -> Self {
        LIVE.set(LIVE.get() + 1);
        Self
    }
}

impl Clone for Life {
    fn clone(&self) -> Self {
        Self::begin()
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        LIVE.set(LIVE.get() - 1);
    }
}

/// Owns memory, so that a second drop or a read of what is gone shows under Miri and sanitizers too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Text(Box<str>, Life);

impl Element for Text {
    fn of(seed: u32) -> Self {
        Self(seed.to_string().into(), Life::begin())
    }
}

/// No size, yet drops that count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Nothing(Life);

impl Element for Nothing {
    fn of(_: u32) -> Self {
        Self(Life::begin())
    }
}

/// No size, and an alignment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(align(4096))]
pub(crate) struct NoPage(Life);

impl Element for NoPage {
    fn of(_: u32) -> Self {
        Self(Life::begin())
    }
}
