//! Who has which address of the region: a lock-free table of granules and pages.
//!
//! The region is an address *range*, not a mapping: what lies in it is mapped piece by piece, so that limits,
//! overcommit and faults on what was unmapped keep their meaning. This table only decides where the next piece goes.
//!
//! ```text
//! granule (2 MiB)   Free | Whole | Split | Huge | Giant | Reserved...      one byte each
//! page (4 KiB)      used: given, in Split                                   512 bits a granule, in chunks of 1 GiB
//!                   spare: in Split mapped read-write and never given; in Huge and Giant not the program's
//! ```
//!
//! Invariants
//! - Only the thread that moved a granule out of `Free` (by compare-exchange) may map in it.
//! - The used bits of a granule that is not Split are all ones once they were ever written, so a claim of pages that
//!   races with a change of state fails on the bits.
//! - Only the thread that moved a hugetlb granule to `Busy` may change what it is.
//! - No operation waits for another thread without a bound. A thread that dies between two steps (the other threads
//!   of a process that forks) leaves bits set that nobody owns: addresses are lost, never given twice. This is why
//!   there is no lock, and why signal handlers may map memory.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use crate::bits::{self, PAGES, Words};

/// Bytes of a granule.
pub(crate) const GRANULE: usize = 2 << 20;
/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Granules in a page of 1 GiB.
pub(crate) const GIANT: usize = 512;
/// Granules in the region: 4 TiB.
pub(crate) const GRANULES: usize = 2 << 20;

/// What a granule is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing of ours is mapped in it.
    Free = 0,
    /// One caller has all of it, on pages that the kernel splits at will.
    Whole = 1,
    /// Callers have some of its pages; the bits tell which.
    Split = 2,
    /// A hugetlb page of 2 MiB; the spare bits tell which pages of it its caller does not believe to have.
    Huge = 3,
    /// A part of a hugetlb page of 1 GiB; bits as for `Huge`.
    Giant = 4,
    /// Mapped by `--reserve` on transparent pages, and not yet given.
    Reserved = 5,
    /// Mapped by `--reserve` on hugetlb pages, and not yet given.
    ReservedHuge = 6,
    /// In between two states.
    Busy = 7,
}

impl State {
    fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Free,
            1 => Self::Whole,
            2 => Self::Split,
            3 => Self::Huge,
            4 => Self::Giant,
            5 => Self::Reserved,
            6 => Self::ReservedHuge,
            _ => Self::Busy,
        }
    }

    /// Whether the kernel refuses page-grained calls on it.
    pub(crate) fn is_hugetlb(self) -> bool {
        matches!(self, Self::Huge | Self::Giant)
    }
}

/// The page bits of a granule.
pub(crate) struct PageBits {
    pub(crate) used: Words,
    pub(crate) spare: Words,
}

/// The page bits of 1 GiB.
pub(crate) type Chunk = [PageBits; GIANT];

/// The table of the whole region.
pub(crate) struct Table {
    states: [AtomicU8; GRANULES],
    /// No run of free pages in a Split granule is longer than this.
    room: [AtomicU16; GRANULES],
    chunks: [AtomicUsize; GRANULES / GIANT],
    /// Granules below are the heap's and the reserve's.
    floor: AtomicUsize,
    /// No granule from `floor` to here is free.
    low: AtomicUsize,
    /// No granule from here on was ever claimed.
    high: AtomicUsize,
}

/// Maps zeroed memory for one [`Chunk`]; the address, or `None`.
pub(crate) type MapChunk = fn() -> Option<usize>;

impl Table {
    pub(crate) const fn new() -> Self {
        Self {
            states: [const { AtomicU8::new(0) }; GRANULES],
            room: [const { AtomicU16::new(0) }; GRANULES],
            chunks: [const { AtomicUsize::new(0) }; GRANULES / GIANT],
            floor: AtomicUsize::new(0),
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
        }
    }

    pub(crate) fn state(&self, granule: usize) -> State {
        State::of(self.states[granule].load(SeqCst))
    }

    pub(crate) fn set_state(&self, granule: usize, state: State) {
        self.states[granule].store(state as u8, SeqCst);
    }

    /// Moves `granule` from one state to another, unless somebody else did.
    pub(crate) fn change(&self, granule: usize, from: State, to: State) -> bool {
        self.states[granule].compare_exchange(from as u8, to as u8, SeqCst, SeqCst).is_ok()
    }

    /// Sets the lowest granule that mappings may take.
    pub(crate) fn set_floor(&self, granule: usize) {
        self.floor.store(granule, SeqCst);
        self.low.store(granule, SeqCst);
        self.high.fetch_max(granule, SeqCst);
    }

    /// No granule from here on was ever claimed.
    pub(crate) fn high(&self) -> usize {
        self.high.load(SeqCst)
    }

    /// Claims `count` neighbouring free granules, the first at a multiple of `align`, lowest address first. They
    /// become Whole.
    fn claim_up(&self, low: usize, count: usize, align: usize) -> Option<usize> {
        let mut at = low.next_multiple_of(align);
        while at + count <= GRANULES {
            match self.claim_at(State::Free, at, count) {
                Ok(()) => return Some(at),
                Err(taken) => at = (taken + 1).next_multiple_of(align),
            }
        }
        None
    }

    /// Claims `count` neighbouring granules of `range` in state `from`, lowest address first. They become Whole.
    pub(crate) fn claim_from(&self, from: State, range: core::ops::Range<usize>, count: usize) -> Option<usize> {
        let mut at = range.start;
        while at + count <= range.end {
            match self.claim_at(from, at, count) {
                Ok(()) => return Some(at),
                Err(taken) => at = taken + 1,
            }
        }
        None
    }

    /// Claims `count` free granules anywhere above the heap's.
    pub(crate) fn claim_free(&self, count: usize, align: usize) -> Option<usize> {
        let low = self.low.load(SeqCst);
        let first = self.claim_up(low, count, align)?;
        if first <= low {
            let _ = self.low.compare_exchange(low, first + count, SeqCst, SeqCst);
        }
        Some(first)
    }

    /// Claims exactly these granules; the first that is taken on failure, and then none is claimed.
    pub(crate) fn claim_at(&self, from: State, first: usize, count: usize) -> Result<(), usize> {
        if first + count > GRANULES {
            return Err(first);
        }
        // From the far end: whoever walks upward over a long run finds an obstacle before it takes anything.
        for granule in (first..first + count).rev() {
            if !self.change(granule, from, State::Whole) {
                for claimed in granule + 1..first + count {
                    self.set_state(claimed, from);
                }
                return Err(granule);
            }
        }
        self.high.fetch_max(first + count, SeqCst);
        Ok(())
    }

    /// Gives `granule` back; whatever was mapped there is gone.
    pub(crate) fn free(&self, granule: usize) {
        self.set_state(granule, State::Free);
        self.low.fetch_min(granule.max(self.floor.load(SeqCst)), SeqCst);
    }

    /// The page bits of `granule`, mapped at first use.
    pub(crate) fn pages(&self, granule: usize, map: MapChunk) -> Option<&PageBits> {
        let slot = &self.chunks[granule / GIANT];
        let mut address = slot.load(SeqCst);
        if address == 0 {
            let mapped = map()?;
            // A loser's chunk stays mapped and untouched: a rare 64 KiB of addresses, no memory.
            address = match slot.compare_exchange(0, mapped, SeqCst, SeqCst) {
                Ok(_) => mapped,
                Err(other) => other,
            };
        }
        crate::state::chunk(address).get(granule % GIANT)
    }

    /// Makes the claimed `granule` one whose pages are given singly: `count` pages from `first` are used already, the
    /// others free, and spare if `spare`.
    pub(crate) fn open(&self, granule: usize, bits: &PageBits, first: usize, count: usize, spare: bool) {
        // All used before any is free: a claim that still sees an older Split here must fail until all is set.
        bits::fill(&bits.used, u64::MAX);
        bits::fill(&bits.spare, if spare { u64::MAX } else { 0 });
        bits::clear(&bits.spare, first, count);
        self.set_state(granule, State::Split);
        self.room[granule].store(PAGES as u16, Relaxed);
        bits::clear(&bits.used, 0, first);
        bits::clear(&bits.used, first + count, PAGES - first - count);
    }

    /// Makes the Whole `granule` Split with every page used, so that single pages can be freed.
    /// False if it is not Whole, or somebody died on the way: then its pages stay used for ever.
    pub(crate) fn split(&self, granule: usize, bits: &PageBits) -> bool {
        if self.change(granule, State::Whole, State::Busy) {
            bits::fill(&bits.spare, 0);
            bits::fill(&bits.used, u64::MAX);
            self.room[granule].store(0, Relaxed);
            self.set_state(granule, State::Split);
        }
        for _ in 0..10_000 {
            match self.state(granule) {
                State::Split => return true,
                State::Busy => core::hint::spin_loop(),
                _ => return false,
            }
        }
        false
    }

    /// Moves granules from `state` to Busy, in order, until one is in another; how many were moved.
    pub(crate) fn hold(&self, range: core::ops::Range<usize>, state: State) -> usize {
        range.take_while(|&granule| self.change(granule, state, State::Busy)).count()
    }

    /// Ends a [`Self::hold`].
    pub(crate) fn let_go(&self, range: core::ops::Range<usize>, state: State) {
        range.for_each(|granule| self.set_state(granule, state));
    }

    /// Makes a claimed granule a part of a hugetlb page, all of it the program's.
    pub(crate) fn own(&self, granule: usize, bits: &PageBits, state: State) {
        bits::fill(&bits.used, u64::MAX);
        bits::fill(&bits.spare, 0);
        self.set_state(granule, state);
    }

    /// Makes a held hugetlb granule Split: the program's pages are used, the spare ones free.
    pub(crate) fn disown(&self, granule: usize, bits: &PageBits) {
        let spare = bits::take(&bits.spare);
        self.room[granule].store(PAGES as u16, Relaxed);
        self.set_state(granule, State::Split);
        bits::clear_words(&bits.used, spare);
    }

    /// Claims `count` neighbouring pages of one Split granule of `range`; the granule and the first page.
    pub(crate) fn claim_pages(
        &self,
        range: core::ops::Range<usize>,
        count: usize,
        map: MapChunk,
    ) -> Option<(usize, usize)> {
        for granule in range {
            if self.state(granule) != State::Split || usize::from(self.room[granule].load(Relaxed)) < count {
                continue;
            }
            let bits = self.pages(granule, map)?;
            match bits::claim(&bits.used, count) {
                Ok(first) if self.state(granule) == State::Split => return Some((granule, first)),
                Ok(first) => bits::clear(&bits.used, first, count),
                Err(longest) => self.room[granule].store(longest as u16, Relaxed),
            }
        }
        None
    }

    /// Frees pages of a Split granule. True if none is left.
    pub(crate) fn free_pages(&self, granule: usize, bits: &PageBits, first: usize, count: usize) -> bool {
        bits::clear(&bits.spare, first, count);
        bits::clear(&bits.used, first, count);
        self.room[granule].store(PAGES as u16, Relaxed);
        bits::is_empty(&bits.used)
    }

    /// Takes every page of an empty Split granule, so that it can be unmapped and freed. False if somebody was faster.
    pub(crate) fn close(&self, granule: usize, bits: &PageBits) -> bool {
        self.state(granule) == State::Split && bits::claim_run(&bits.used, 0, PAGES)
    }
}

#[cfg(test)]
mod tests;
