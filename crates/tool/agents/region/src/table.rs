//! Who has which address of the region: a lock-free table of granules and pages.
//!
//! The region is an address *range*, not a mapping: what lies in it is mapped piece by piece, so that limits,
//! overcommit and faults on what was unmapped keep their meaning. This table only decides where the next piece goes.
//!
//! ```text
//! granule (2 MiB)   Free | Whole | Split | Huge | Giant | Reserved...      one byte each, in chunks of 1 GiB
//! page (4 KiB)      used: given, in Split                                   512 bits a granule, in the same chunks
//!                   spare: in Split slack; in Huge and Giant not the program's
//!
//! used spare   a page of a Split granule
//!   0    0     not ours: this agent has mapped nothing there, and the kernel may have, unseen
//!   0    1     slack: mapped read-write by this agent and never given
//!   1    0     given, or taken by a mapping that this agent did not make
//!   1    1     slack that one call is giving; with exact placement, given when a neighbour could make it resident
//! ```
//!
//! Invariants
//! - Only the thread that moved a granule out of `Free` (by compare-exchange) may map in it. What is Free, or unused and
//!   no slack, is not known to be empty: a mapping there must not replace another (see [`crate::raw::map_new`]).
//! - The used bits of a granule that is not Split are all ones once they were ever written, so a claim of pages that
//!   races with a change of state fails on the bits.
//! - Only the thread that moved a hugetlb granule to `Busy` may change what it is.
//! - No operation waits for another thread without a bound. A thread that dies between two steps (the other threads
//!   of a process that forks) leaves bits set that nobody owns: addresses are lost, never given twice. This is why
//!   there is no lock, and why signal handlers may map memory.

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use crate::bits::{self, PAGES, Words};
use crate::state::map_chunk;

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

/// The granules of 1 GiB, mapped when the first of them is claimed: a program that locks all its memory locks the table too.
pub(crate) struct Chunk {
    states: [AtomicU8; GIANT],
    /// No run of free pages in a Split granule is longer than this.
    room: [AtomicU16; GIANT],
    bits: [PageBits; GIANT],
}

/// The table of the whole region.
pub(crate) struct Table {
    /// The address of each [`Chunk`]; zero where all of its granules are Free and always were.
    chunks: [AtomicUsize; GRANULES / GIANT],
    /// Granules below are the heap's and the reserve's.
    floor: AtomicUsize,
    /// No granule from `floor` to here is free.
    low: AtomicUsize,
    /// No granule from here on was ever claimed.
    high: AtomicUsize,
}

impl Table {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { AtomicUsize::new(0) }; GRANULES / GIANT],
            floor: AtomicUsize::new(0),
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
        }
    }

    /// As new; the old chunks stay mapped.
    #[cfg(test)]
    pub(crate) fn reset(&self) {
        self.chunks.iter().chain([&self.floor, &self.low, &self.high]).for_each(|word| word.store(0, SeqCst));
    }

    /// The chunk of `granule`, if it is mapped.
    fn existing(&self, granule: usize) -> Option<&Chunk> {
        match self.chunks[granule / GIANT].load(SeqCst) {
            0 => None,
            address => Some(crate::state::chunk(address)),
        }
    }

    /// The chunk of `granule`, mapped at first use; `None` without memory for it.
    fn chunk(&self, granule: usize) -> Option<&Chunk> {
        self.existing(granule).or_else(|| {
            let mapped = map_chunk()?;
            // A loser's chunk stays mapped and untouched: a rare 68 KiB of addresses, no memory.
            let _ = self.chunks[granule / GIANT].compare_exchange(0, mapped, SeqCst, SeqCst);
            self.existing(granule)
        })
    }

    pub(crate) fn state(&self, granule: usize) -> State {
        let byte = |chunk: &Chunk| chunk.states[granule % GIANT].load(SeqCst);
        State::of(self.existing(granule).map_or(State::Free as u8, byte))
    }

    pub(crate) fn set_state(&self, granule: usize, state: State) {
        if let Some(chunk) = self.chunk(granule) {
            chunk.states[granule % GIANT].store(state as u8, SeqCst);
        }
    }

    /// Moves `granule` from one state to another. False if it is in a third, or without memory for the table.
    pub(crate) fn change(&self, granule: usize, from: State, to: State) -> bool {
        self.chunk(granule).is_some_and(|chunk| {
            chunk.states[granule % GIANT].compare_exchange(from as u8, to as u8, SeqCst, SeqCst).is_ok()
        })
    }

    /// The longest run of free pages that a Split granule may have.
    fn room(&self, granule: usize) -> usize {
        self.existing(granule).map_or(0, |chunk| chunk.room[granule % GIANT].load(Relaxed).into())
    }

    fn set_room(&self, granule: usize, pages: usize) {
        if let Some(chunk) = self.existing(granule) {
            chunk.room[granule % GIANT].store(pages as u16, Relaxed);
        }
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
                // Without memory for the table all others are refused too.
                Err(taken) if self.existing(taken).is_none() => return None,
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

    /// The page bits of `granule`; `None` without memory for the table.
    pub(crate) fn pages(&self, granule: usize) -> Option<&PageBits> {
        self.chunk(granule)?.bits.get(granule % GIANT)
    }

    /// Makes the claimed `granule` one whose pages are given singly: `count` pages from `first` are used already, the
    /// others free, and spare if `spare`.
    pub(crate) fn open(&self, granule: usize, bits: &PageBits, first: usize, count: usize, spare: bool) {
        // All used before any is free: a claim that still sees an older Split here must fail until all is set.
        bits::fill(&bits.used, u64::MAX);
        bits::fill(&bits.spare, if spare { u64::MAX } else { 0 });
        bits::clear(&bits.spare, first, count);
        self.set_state(granule, State::Split);
        self.set_room(granule, PAGES);
        bits::clear(&bits.used, 0, first);
        bits::clear(&bits.used, first + count, PAGES - first - count);
    }

    /// Makes the Whole `granule` Split with every page used, so that single pages can be freed.
    /// False if it is not Whole, or somebody died on the way: then its pages stay used for ever.
    pub(crate) fn split(&self, granule: usize, bits: &PageBits) -> bool {
        if self.change(granule, State::Whole, State::Busy) {
            bits::fill(&bits.spare, 0);
            bits::fill(&bits.used, u64::MAX);
            self.set_room(granule, 0);
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
        self.set_room(granule, PAGES);
        self.set_state(granule, State::Split);
        bits::clear_words(&bits.used, spare);
    }

    /// Claims `count` neighbouring pages of one Split granule of `range`; the granule and the first page.
    pub(crate) fn claim_pages(&self, range: core::ops::Range<usize>, count: usize) -> Option<(usize, usize)> {
        for granule in range {
            if self.state(granule) != State::Split || self.room(granule) < count {
                continue;
            }
            let bits = self.pages(granule)?;
            match bits::claim(&bits.used, count) {
                Ok(first) if self.state(granule) == State::Split => return Some((granule, first)),
                Ok(first) => bits::clear(&bits.used, first, count),
                Err(longest) => self.set_room(granule, longest),
            }
        }
        None
    }

    /// Frees one claimed page of a Split granule that was not given: slack is slack still.
    pub(crate) fn unclaim(&self, granule: usize, bits: &PageBits, page: usize) {
        bits::clear(&bits.used, page, 1);
        self.set_room(granule, PAGES);
    }

    /// Frees pages of a Split granule. True if none is left.
    pub(crate) fn free_pages(&self, granule: usize, bits: &PageBits, first: usize, count: usize) -> bool {
        bits::clear(&bits.spare, first, count);
        bits::clear(&bits.used, first, count);
        self.set_room(granule, PAGES);
        bits::is_empty(&bits.used)
    }

    /// Takes every page of an empty Split granule, so that it can be unmapped and freed. False if somebody was faster.
    pub(crate) fn close(&self, granule: usize, bits: &PageBits) -> bool {
        self.state(granule) == State::Split && bits::claim_run(&bits.used, 0, PAGES)
    }
}

#[cfg(test)]
mod tests;
