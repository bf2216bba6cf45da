//! The allocation table of the region: lock-free, in granules of 2 MiB and pages of 4 KiB.
//!
//! The region is an address *range*, mapped piece by piece, so that limits, overcommit and faults
//! on unmapped memory work as without the agent. The table decides where the next piece goes.
//!
//! ```text
//! granule (2 MiB)   Free | Whole | Split | Huge | Giant | Reserved...      one byte each, in chunks of 1 GiB
//! page (4 KiB)      used: allocated, in Split                               512 bits a granule, in the same chunks
//!                   spare: slack in Split; not the program's in Huge and Giant
//!
//! used spare   a page of a Split granule
//!   0    0     free: the agent has mapped nothing there; the kernel may have, without the agent's knowledge
//!   0    1     slack: mapped read-write by the agent and never allocated
//!   1    0     allocated, or occupied by a mapping that the agent did not make
//!   1    1     slack being allocated; with exact placement, allocated while a neighbour could make it resident
//! ```
//!
//! Invariants
//! - Only the thread that moves a granule out of `Free` (by compare-exchange) maps in it. A Free
//!   granule, or a free page, may hold a mapping unknown to the agent, which must not be replaced
//!   (see [`crate::raw::map_new`]).
//! - The used bits of a granule that is not Split are all ones once they were written. A claim of
//!   pages that races with a change of state fails on the bits.
//! - Only the thread that moves a hugetlb granule to `Busy` changes its state.
//! - No operation waits for another thread without a bound. A thread that dies between two steps
//!   (as the other threads of a forking process do in the child) leaves bits set: the addresses are
//!   lost, and never allocated twice. Therefore there is no lock, and signal handlers may map
//!   memory.
//!
//! Cost: 68 KiB of table for each GiB in use; a claim scans from the lowest granule that may be
//! free.
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

/// The state of a granule.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GranuleState {
    /// The agent has mapped nothing in it.
    Free = 0,
    /// Allocated as a whole, on pages that the kernel can split.
    Whole = 1,
    /// Allocated by pages; the bits say which.
    Split = 2,
    /// A hugetlb page of 2 MiB; the spare bits mark pages that the program has unmapped or never
    /// requested.
    Huge = 3,
    /// A part of a hugetlb page of 1 GiB; bits as for `Huge`.
    Giant = 4,
    /// Mapped by `--reserve` on transparent pages, and not yet used.
    Reserved = 5,
    /// Mapped by `--reserve` on hugetlb pages, and not yet used.
    ReservedHuge = 6,
    /// Changing between two states.
    Busy = 7,
}

impl GranuleState {
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

    /// Whether the kernel refuses page-grained calls on this granule.
    pub(crate) fn is_hugetlb(self) -> bool {
        matches!(self, Self::Huge | Self::Giant)
    }
}

/// The page bits of a granule.
pub(crate) struct PageBits {
    pub(crate) used: Words,
    pub(crate) spare: Words,
}

/// The granules of 1 GiB. Mapped when the first of them is claimed: a program that locks its memory
/// locks the table too.
pub(crate) struct TableChunk {
    states: [AtomicU8; GIANT],
    /// Upper bounds of the longest run of free pages in each Split granule.
    max_free_run: [AtomicU16; GIANT],
    bits: [PageBits; GIANT],
}

/// The table of the whole region.
pub(crate) struct RegionTable {
    /// The address of each [`TableChunk`]; zero if none of its granules was ever claimed.
    chunks: [AtomicUsize; GRANULES / GIANT],
    /// The granules below are those of the heap and the reserve.
    floor: AtomicUsize,
    /// No granule between `floor` and this one is free.
    low: AtomicUsize,
    /// No granule from this one on was ever claimed.
    high: AtomicUsize,
}

impl RegionTable {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { AtomicUsize::new(0) }; GRANULES / GIANT],
            floor: AtomicUsize::new(0),
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
        }
    }

    /// Resets the table; the old chunks stay mapped.
    #[cfg(test)]
    pub(crate) fn reset(&self) {
        self.chunks.iter().chain([&self.floor, &self.low, &self.high]).for_each(|word| word.store(0, SeqCst));
    }

    /// The chunk of `granule`, if it is mapped.
    fn existing(&self, granule: usize) -> Option<&TableChunk> {
        match self.chunks[granule / GIANT].load(SeqCst) {
            0 => None,
            address => Some(crate::state::chunk(address)),
        }
    }

    /// The chunk of `granule`, mapped at first use; `None` if there is no memory for it.
    fn chunk(&self, granule: usize) -> Option<&TableChunk> {
        self.existing(granule).or_else(|| {
            let mapped = map_chunk()?;
            // The chunk of the thread that loses the race stays mapped but untouched: 68 KiB of
            // addresses, no memory.
            let _ = self.chunks[granule / GIANT].compare_exchange(0, mapped, SeqCst, SeqCst);
            self.existing(granule)
        })
    }

    pub(crate) fn state(&self, granule: usize) -> GranuleState {
        let byte = |chunk: &TableChunk| chunk.states[granule % GIANT].load(SeqCst);
        GranuleState::of(self.existing(granule).map_or(GranuleState::Free as u8, byte))
    }

    pub(crate) fn set_state(&self, granule: usize, state: GranuleState) {
        if let Some(chunk) = self.chunk(granule) {
            chunk.states[granule % GIANT].store(state as u8, SeqCst);
        }
    }

    /// Moves `granule` from one state to another. False if its state differs, or if there is no
    /// memory for the table.
    pub(crate) fn change_state(&self, granule: usize, from: GranuleState, to: GranuleState) -> bool {
        self.chunk(granule).is_some_and(|chunk| {
            chunk.states[granule % GIANT].compare_exchange(from as u8, to as u8, SeqCst, SeqCst).is_ok()
        })
    }

    /// An upper bound of the longest run of free pages in a Split granule.
    fn max_free_run(&self, granule: usize) -> usize {
        self.existing(granule).map_or(0, |chunk| chunk.max_free_run[granule % GIANT].load(Relaxed).into())
    }

    fn set_max_free_run(&self, granule: usize, pages: usize) {
        if let Some(chunk) = self.existing(granule) {
            chunk.max_free_run[granule % GIANT].store(pages as u16, Relaxed);
        }
    }

    /// Sets the lowest granule that mappings may use.
    pub(crate) fn set_floor(&self, granule: usize) {
        self.floor.store(granule, SeqCst);
        self.low.store(granule, SeqCst);
        self.high.fetch_max(granule, SeqCst);
    }

    /// No granule from this one on was ever claimed.
    pub(crate) fn high(&self) -> usize {
        self.high.load(SeqCst)
    }

    /// Claims `count` adjacent free granules, the first at a multiple of `align`, lowest address
    /// first. They become Whole.
    fn claim_up(&self, low: usize, count: usize, align: usize) -> Option<usize> {
        let mut at = low.next_multiple_of(align);
        while at + count <= GRANULES {
            match self.claim_at(GranuleState::Free, at, count) {
                Ok(()) => return Some(at),
                // Without memory for the table every other claim fails too.
                Err(taken) if self.existing(taken).is_none() => return None,
                Err(taken) => at = (taken + 1).next_multiple_of(align),
            }
        }
        None
    }

    /// Claims `count` adjacent granules of `range` in state `from`, lowest address first. They
    /// become Whole.
    pub(crate) fn claim_from(&self, from: GranuleState, range: core::ops::Range<usize>, count: usize) -> Option<usize> {
        let mut at = range.start;
        while at + count <= range.end {
            match self.claim_at(from, at, count) {
                Ok(()) => return Some(at),
                Err(taken) => at = taken + 1,
            }
        }
        None
    }

    /// Claims `count` adjacent free granules above the heap.
    pub(crate) fn claim_free(&self, count: usize, align: usize) -> Option<usize> {
        let low = self.low.load(SeqCst);
        let first = self.claim_up(low, count, align)?;
        if first <= low {
            let _ = self.low.compare_exchange(low, first + count, SeqCst, SeqCst);
        }
        Some(first)
    }

    /// Claims exactly these granules.
    ///
    /// # Errors
    /// The granule whose state differs, or that has no memory for the table. Then none is claimed.
    pub(crate) fn claim_at(&self, from: GranuleState, first: usize, count: usize) -> Result<(), usize> {
        if first + count > GRANULES {
            return Err(first);
        }
        // From the far end: a search upward over a long run finds an obstacle before it claims
        // anything.
        for granule in (first..first + count).rev() {
            if !self.change_state(granule, from, GranuleState::Whole) {
                for claimed in granule + 1..first + count {
                    self.set_state(claimed, from);
                }
                return Err(granule);
            }
        }
        self.high.fetch_max(first + count, SeqCst);
        Ok(())
    }

    /// Frees `granule`, whose memory is unmapped.
    pub(crate) fn free(&self, granule: usize) {
        self.set_state(granule, GranuleState::Free);
        self.low.fetch_min(granule.max(self.floor.load(SeqCst)), SeqCst);
    }

    /// The page bits of `granule`; `None` if there is no memory for the table.
    pub(crate) fn pages(&self, granule: usize) -> Option<&PageBits> {
        self.chunk(granule)?.bits.get(granule % GIANT)
    }

    /// Makes the claimed `granule` Split: `count` pages from `first` are used, the others free, and
    /// slack if `spare`.
    pub(crate) fn open_split(&self, granule: usize, bits: &PageBits, first: usize, count: usize, spare: bool) {
        // All bits are set before any is cleared: a claim that still reads an older Split must fail
        // until all are written.
        bits::fill(&bits.used, u64::MAX);
        bits::fill(&bits.spare, if spare { u64::MAX } else { 0 });
        bits::clear(&bits.spare, first, count);
        self.set_state(granule, GranuleState::Split);
        self.set_max_free_run(granule, PAGES);
        bits::clear(&bits.used, 0, first);
        bits::clear(&bits.used, first + count, PAGES - first - count);
    }

    /// Makes the Whole `granule` Split with every page used, so that single pages can be freed.
    /// False if it is not Whole, or if another thread stopped in between: its pages then stay used
    /// forever.
    pub(crate) fn split_whole(&self, granule: usize, bits: &PageBits) -> bool {
        if self.change_state(granule, GranuleState::Whole, GranuleState::Busy) {
            bits::fill(&bits.spare, 0);
            bits::fill(&bits.used, u64::MAX);
            self.set_max_free_run(granule, 0);
            self.set_state(granule, GranuleState::Split);
        }
        for _ in 0..10_000 {
            match self.state(granule) {
                GranuleState::Split => return true,
                GranuleState::Busy => core::hint::spin_loop(),
                _ => return false,
            }
        }
        false
    }

    /// Moves granules from `state` to Busy, in order, up to the first in another state. Returns how
    /// many were moved.
    pub(crate) fn mark_busy(&self, range: core::ops::Range<usize>, state: GranuleState) -> usize {
        range.take_while(|&granule| self.change_state(granule, state, GranuleState::Busy)).count()
    }

    /// Sets the state of granules that this thread marked busy or claimed.
    pub(crate) fn set_states(&self, range: core::ops::Range<usize>, state: GranuleState) {
        range.for_each(|granule| self.set_state(granule, state));
    }

    /// Marks every page of a claimed granule as used, and sets its state.
    pub(crate) fn set_full(&self, granule: usize, bits: &PageBits, state: GranuleState) {
        bits::fill(&bits.used, u64::MAX);
        bits::fill(&bits.spare, 0);
        self.set_state(granule, state);
    }

    /// Makes a busy hugetlb granule Split: its spare pages become free.
    pub(crate) fn split_hugetlb(&self, granule: usize, bits: &PageBits) {
        let spare = bits::take(&bits.spare);
        self.set_max_free_run(granule, PAGES);
        self.set_state(granule, GranuleState::Split);
        bits::clear_words(&bits.used, spare);
    }

    /// Claims `count` adjacent pages of one Split granule of `range`; returns the granule and the
    /// first page.
    pub(crate) fn claim_pages(&self, range: core::ops::Range<usize>, count: usize) -> Option<(usize, usize)> {
        for granule in range {
            if self.state(granule) != GranuleState::Split || self.max_free_run(granule) < count {
                continue;
            }
            let bits = self.pages(granule)?;
            match bits::claim(&bits.used, count) {
                Ok(first) if self.state(granule) == GranuleState::Split => return Some((granule, first)),
                Ok(first) => bits::clear(&bits.used, first, count),
                Err(longest) => self.set_max_free_run(granule, longest),
            }
        }
        None
    }

    /// Frees one claimed page of a Split granule that was not allocated. A slack page stays slack.
    pub(crate) fn unclaim_page(&self, granule: usize, bits: &PageBits, page: usize) {
        bits::clear(&bits.used, page, 1);
        self.set_max_free_run(granule, PAGES);
    }

    /// Frees pages of a Split granule. True if no page of it is used any more.
    pub(crate) fn free_pages(&self, granule: usize, bits: &PageBits, first: usize, count: usize) -> bool {
        bits::clear(&bits.spare, first, count);
        bits::clear(&bits.used, first, count);
        self.set_max_free_run(granule, PAGES);
        bits::is_empty(&bits.used)
    }

    /// Claims every page of an empty Split granule, so that it can be unmapped and freed. False if
    /// another thread claims one.
    pub(crate) fn claim_all_pages(&self, granule: usize, bits: &PageBits) -> bool {
        self.state(granule) == GranuleState::Split && bits::claim_run(&bits.used, 0, PAGES)
    }
}

#[cfg(test)]
mod tests;
