//! Which pages the pager has, and where: a record for each page of the address space, made at its
//! first use.
//!
//! ```text
//! address   15 bits root | 14 bits leaf | 6 bits chunk | 12 bits page
//! Root      2^15 pointers ─→ Leaf  known, occupied: a bit a chunk each | 2^14 chunks (4 GiB of addresses)
//! Chunk     lock | resident, kept: a bit a page each | 64 × { place in a store, check of the contents }
//! ```
//! A chunk takes 544 bytes for 256 KiB of addresses: 0.2 %. Untouched chunks take no memory.
//!
//! Invariants: a page that is both resident and in a store is a copy (`copies`). `resident` may be
//! wrong for a moment while the program drops pages: a fault on such a page is served all the same.

use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::arena::Arena;
use crate::kernel::PAGE;
use crate::lock::{Held, Lock};

/// Pages of a chunk.
pub(crate) const CHUNK_PAGES: usize = 64;
/// Bytes of addresses of a chunk.
pub(crate) const CHUNK: usize = CHUNK_PAGES * PAGE;
const LEAF_CHUNKS: usize = 1 << 14;
const LEAF: usize = LEAF_CHUNKS * CHUNK;
const LEAVES: usize = 1 << 15;
/// The first address above the user address space.
const END: usize = LEAVES * LEAF;

/// A page's place in a store, and the check of its contents there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The place; 0 for none.
    pub(crate) place: u32,
    pub(crate) check: u32,
}

impl Stored {
    /// No place.
    pub(crate) const NONE: Self = Self { place: 0, check: 0 };

    pub(crate) const fn is_some(self) -> bool {
        self.place != 0
    }
}

/// The state of 64 adjacent pages.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// A bit for each page that the pager counts as resident.
    pub(crate) resident: u64,
    /// A bit for each page that must stay resident.
    pub(crate) kept: u64,
    pub(crate) stored: [Stored; CHUNK_PAGES],
}

#[derive(Debug)]
struct Leaf {
    /// A bit for each chunk that has a record. The others are not accessed, so they take no memory.
    known: [AtomicU64; LEAF_CHUNKS / 64],
    /// A bit for each chunk that may have resident pages.
    occupied: [AtomicU64; LEAF_CHUNKS / 64],
    chunks: [Lock<Chunk>; LEAF_CHUNKS],
}

impl Leaf {
    fn known_bit(&self, address: usize) -> (&AtomicU64, u64) {
        let index = address / CHUNK % LEAF_CHUNKS;
        (&self.known[index / 64], 1 << (index % 64))
    }

    fn is_known(&self, address: usize) -> bool {
        let (word, bit) = self.known_bit(address);
        word.load(Ordering::Relaxed) & bit != 0
    }
}

#[derive(Debug)]
struct Root([AtomicPtr<Leaf>; LEAVES]);

/// The records of all pages of an address space.
#[derive(Debug)]
pub(crate) struct PageTable {
    root: &'static Root,
    arena: &'static Arena,
}

/// A chunk that this thread has locked, and the address of its first page.
#[derive(Debug)]
pub(crate) struct LockedChunk<'a> {
    pub(crate) start: usize,
    pub(crate) chunk: Held<'a, Chunk>,
    occupied: &'a AtomicU64,
}

impl LockedChunk<'_> {
    /// The address of a page.
    pub(crate) const fn page(&self, index: usize) -> usize {
        self.start + index * PAGE
    }

    /// Records pages as resident; the number of those that were not before.
    pub(crate) fn set_resident(&mut self, pages: u64) -> usize {
        let added = pages & !self.chunk.resident;
        self.chunk.resident |= pages;
        if pages != 0 {
            self.occupied.fetch_or(1 << (self.start / CHUNK % 64), Ordering::Relaxed);
        }
        added.count_ones() as usize
    }

    /// Records pages as missing; the number of those that were resident before.
    pub(crate) fn set_missing(&mut self, pages: u64) -> usize {
        let removed = pages & self.chunk.resident;
        self.chunk.resident &= !pages;
        removed.count_ones() as usize
    }
}

/// The index of a page in its chunk.
pub(crate) const fn index_of(page: usize) -> usize {
    page / PAGE % CHUNK_PAGES
}

/// The bits of `count` pages from `first` on.
pub(crate) const fn bits(first: usize, count: usize) -> u64 {
    if count == 0 { 0 } else { (u64::MAX >> (CHUNK_PAGES - count)) << first }
}

impl PageTable {
    /// Bytes of an arena for the records of one range of `bytes`.
    #[cfg(feature = "std")]
    pub(crate) const fn arena_bytes(bytes: usize) -> usize {
        // A range touches one leaf more than it fills when it begins inside one.
        size_of::<Root>() + (bytes.div_ceil(LEAF) + 1) * (size_of::<Leaf>() + PAGE)
    }

    /// An empty table in the arena. `None` when that is used up.
    #[allow(unsafe_code, reason = "places the root in zeroed memory")]
    pub(crate) fn new(arena: &'static Arena) -> Option<Self> {
        // SAFETY: zeros are null pointers, which are valid in an `AtomicPtr`.
        unsafe { arena.place() }.map(|root| Self { root, arena })
    }

    /// Locks the chunk of an address, and makes its record if need be. `None` if there is no memory
    /// for it, or the address is none of a program's.
    pub(crate) fn lock(&self, address: usize) -> Option<LockedChunk<'_>> {
        let leaf = self.leaf_or_new(address)?;
        let (word, bit) = leaf.known_bit(address);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Some(Self::locked(leaf, address))
    }

    /// Locks the chunk of an address, if it has a record.
    pub(crate) fn lock_known(&self, address: usize) -> Option<LockedChunk<'_>> {
        self.leaf(address).filter(|leaf| leaf.is_known(address)).map(|leaf| Self::locked(leaf, address))
    }

    /// Locks the chunk of an address, if it has a record that no other thread has locked.
    pub(crate) fn try_lock_known(&self, address: usize) -> Option<LockedChunk<'_>> {
        let leaf = self.leaf(address).filter(|leaf| leaf.is_known(address))?;
        let chunk = leaf.chunks[address / CHUNK % LEAF_CHUNKS].try_acquire()?;
        Some(Self::chunk(leaf, address, chunk))
    }

    fn locked(leaf: &Leaf, address: usize) -> LockedChunk<'_> {
        Self::chunk(leaf, address, leaf.chunks[address / CHUNK % LEAF_CHUNKS].acquire())
    }

    fn chunk<'a>(leaf: &'a Leaf, address: usize, chunk: Held<'a, Chunk>) -> LockedChunk<'a> {
        let occupied = &leaf.occupied[address / CHUNK % LEAF_CHUNKS / 64];
        LockedChunk { start: address & !(CHUNK - 1), chunk, occupied }
    }

    #[allow(unsafe_code, reason = "follows a published pointer")]
    fn leaf(&self, address: usize) -> Option<&'static Leaf> {
        // SAFETY: null, or a leaf that `leaf_or_new` has published and nothing frees.
        unsafe { self.root.0.get(address / LEAF)?.load(Ordering::Acquire).as_ref() }
    }

    #[allow(unsafe_code, reason = "places a leaf in zeroed memory")]
    fn leaf_or_new(&self, address: usize) -> Option<&'static Leaf> {
        if let Some(leaf) = self.leaf(address) {
            return Some(leaf);
        }
        let place = self.root.0.get(address / LEAF)?;
        // SAFETY: zeros are free locks of chunks without resident or stored pages.
        let leaf: &'static Leaf = unsafe { self.arena.place() }?;
        let new = core::ptr::from_ref(leaf).cast_mut();
        match place.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(leaf),
            // Another thread was faster; this leaf stays untouched, and takes no memory.
            Err(_) => self.leaf(address),
        }
    }

    /// The start of the next chunk at `from` or later that may have resident pages; from the lowest
    /// address again after the last one. `None` if there is none at all.
    pub(crate) fn next_occupied(&self, from: usize) -> Option<usize> {
        let from = if from < END { from & !(CHUNK - 1) } else { 0 };
        self.occupied_in(from..END).or_else(|| self.occupied_in(0..from))
    }

    fn occupied_in(&self, range: Range<usize>) -> Option<usize> {
        let mut at = range.start;
        while at < range.end {
            let Some(leaf) = self.leaf(at) else {
                at = (at / LEAF + 1) * LEAF;
                continue;
            };
            let index = at / CHUNK % LEAF_CHUNKS;
            let word = &leaf.occupied[index / 64];
            let later = word.load(Ordering::Relaxed) & (u64::MAX << (index % 64));
            if later != 0 {
                let found = (at & !(64 * CHUNK - 1)) + later.trailing_zeros() as usize * CHUNK;
                return (found < range.end).then_some(found);
            }
            at = (at & !(64 * CHUNK - 1)) + 64 * CHUNK;
        }
        None
    }

    /// Records that a locked chunk has no resident pages.
    pub(crate) fn clear_occupied(locked: &LockedChunk<'_>) {
        locked.occupied.fetch_and(!(1 << (locked.start / CHUNK % 64)), Ordering::Relaxed);
    }

    /// Calls `visit` for each known chunk that overlaps a range, with the bits of its pages there.
    pub(crate) fn for_each_in(&self, range: Range<usize>, mut visit: impl FnMut(LockedChunk<'_>, u64)) {
        let mut at = range.start;
        while at < range.end {
            if self.leaf(at).is_none() {
                at = (at / LEAF + 1) * LEAF;
                continue;
            }
            let start = at & !(CHUNK - 1);
            let end = range.end.min(start + CHUNK);
            if let Some(locked) = self.lock_known(at) {
                visit(locked, bits(index_of(at), (end - at) / PAGE));
            }
            at = start + CHUNK;
        }
    }
}
