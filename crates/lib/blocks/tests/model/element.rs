//! Elements of every kind: small, large, odd-sized, over-aligned, zero-sized, and ones that own
//! memory and count drops.

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

/// 24 bytes: a leaf has unused bytes, and the reciprocal divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Triple(u64, u64, u64);

impl Element for Triple {
    fn of(seed: u32) -> Self {
        let seed = u64::from(seed);
        Self(seed, !seed, seed * 3)
    }
}

/// Larger than half of the smallest block, and not a power of two: one per leaf.
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
pub(crate) struct LineAligned(u32);

impl Element for LineAligned {
    fn of(seed: u32) -> Self {
        Self(seed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(align(4096))]
pub(crate) struct PageAligned(u32);

impl Element for PageAligned {
    fn of(seed: u32) -> Self {
        Self(seed)
    }
}

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

/// The number of live counted elements on this thread.
pub(crate) fn live() -> isize {
    LIVE.get()
}

/// Counts its live instances, as a field of elements.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LiveCount;

impl LiveCount {
    fn new() -> Self {
        LIVE.set(LIVE.get() + 1);
        Self
    }
}

impl Clone for LiveCount {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for LiveCount {
    fn drop(&mut self) {
        LIVE.set(LIVE.get() - 1);
    }
}

/// Owns memory, so that Miri and sanitizers detect a double drop or a read of a dropped element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Text(Box<str>, LiveCount);

impl Element for Text {
    fn of(seed: u32) -> Self {
        Self(seed.to_string().into(), LiveCount::new())
    }
}

/// Zero-sized, and counts drops.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Nothing(LiveCount);

impl Element for Nothing {
    fn of(_: u32) -> Self {
        Self(LiveCount::new())
    }
}

/// Zero-sized and over-aligned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(align(4096))]
pub(crate) struct AlignedNothing(LiveCount);

impl Element for AlignedNothing {
    fn of(_: u32) -> Self {
        Self(LiveCount::new())
    }
}
