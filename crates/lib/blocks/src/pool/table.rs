//! The pool's chunk records, found by number, by address, or by "has a free block".
//!
//! ```text
//! segments   [ -> 2048 records + a summary bit each | -> ... | null ]     a record's number never changes
//! map        address >> 21:  [ -> 8192 numbers | null | ... ]             number + 1; 0 means no chunk
//! ```
//! Readers take no lock: segments and maps are only added. A summary bit may be set for a full
//! chunk; the next search clears it. It is never clear while a block is free: the thread that
//! clears it checks again, and both sides are sequentially consistent.

#![allow(unsafe_code, reason = "allocates, publishes and frees its tables")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ptr::{NonNull, null_mut};

use super::chunk::ChunkRecord;
use crate::error::{Error, Result};
use crate::frames::CHUNK_BYTES;
use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(not(loom))]
const SEGMENTS: usize = 512;
/// Miri checks every word that a reference covers, so it gets small tables.
#[cfg(not(loom))]
const SUMMARY_WORDS: usize = if cfg!(miri) { 1 } else { 32 };
#[cfg(loom)]
const SEGMENTS: usize = 1;
#[cfg(loom)]
const SUMMARY_WORDS: usize = 1;
#[cfg(not(loom))]
const SEGMENT_CHUNKS: usize = 64 * SUMMARY_WORDS;
#[cfg(loom)]
const SEGMENT_CHUNKS: usize = 2;

const LEAF_BITS: u32 = if cfg!(miri) { 8 } else { 13 };
const ROOT_BITS: u32 = if cfg!(miri) { 10 } else { 14 };
const CHUNK_BITS: u32 = CHUNK_BYTES.trailing_zeros();

struct Segment {
    summary: [AtomicU64; SUMMARY_WORDS],
    chunks: [ChunkRecord; SEGMENT_CHUNKS],
}

/// Not loom's atomics, of which there would be too many. Loom still explores the atomics through
/// which threads pass blocks.
type MapLeaf = [core::sync::atomic::AtomicU32; 1 << LEAF_BITS];

pub(crate) struct ChunkTable {
    segments: Box<[AtomicPtr<Segment>]>,
    map: Box<[core::sync::atomic::AtomicPtr<MapLeaf>]>,
    /// Records in use or vacant. Their numbers are below this.
    count: AtomicUsize,
}

impl ChunkTable {
    pub(crate) fn new() -> Result<Self> {
        let segments = boxed(SEGMENTS, || AtomicPtr::new(null_mut()))?;
        let map = boxed(1 << ROOT_BITS, || core::sync::atomic::AtomicPtr::new(null_mut()))?;
        Ok(Self { segments, map, count: AtomicUsize::new(0) })
    }

    /// The number of records; their numbers are below it.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.count.load(Ordering::Acquire)).unwrap_or(u32::MAX)
    }

    /// Returns a record by its number.
    pub(crate) fn chunk(&self, number: u32) -> &ChunkRecord {
        let (segment, at) = place(number);
        &self.segment(segment).chunks[at]
    }

    fn segment(&self, segment: usize) -> &Segment {
        let segment = NonNull::new(self.segments[segment].load(Ordering::Acquire));
        // SAFETY: a segment is initialised before the first number in it is returned, and freed
        // with the table.
        unsafe { segment.expect("a number exists only after its segment").as_ref() }
    }

    /// Adds a vacant record and returns its number. The caller serialises calls.
    pub(crate) fn add(&self) -> Result<u32> {
        let number = self.count.load(Ordering::Relaxed);
        let (segment, at) = (number / SEGMENT_CHUNKS, number % SEGMENT_CHUNKS);
        if segment >= SEGMENTS {
            return Err(Error::CapacityOverflow { elements: number });
        }
        if at == 0 {
            self.segments[segment].store(Box::into_raw(Segment::boxed()?), Ordering::Release);
        }
        self.count.store(number + 1, Ordering::Release);
        u32::try_from(number).map_err(|_| Error::CapacityOverflow { elements: number })
    }

    /// Records that a chunk has a free block.
    pub(crate) fn mark_free(&self, number: u32) {
        let (word, bit) = self.summary(number);
        // The block was freed before this load, and both are sequentially consistent. Loom models
        // that order for fences only.
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Records that a chunk has no free block.
    pub(crate) fn mark_full(&self, number: u32) {
        let (word, bit) = self.summary(number);
        word.fetch_and(!bit, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.chunk(number).has_free() {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    fn summary(&self, number: u32) -> (&AtomicU64, u64) {
        let (segment, at) = place(number);
        (&self.segment(segment).summary[at / 64], 1 << (at % 64))
    }

    /// Numbers of chunks that may have a free block, lowest first.
    pub(crate) fn with_free(&self) -> impl Iterator<Item = u32> {
        let words = (self.count.load(Ordering::Acquire)).div_ceil(64);
        (0..words).flat_map(move |word| {
            let first = word * 64;
            let mut bits =
                self.segment(first / SEGMENT_CHUNKS).summary[first % SEGMENT_CHUNKS / 64].load(Ordering::SeqCst);
            core::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros())?;
                bits &= bits - 1;
                u32::try_from(first).ok().map(|first| first + bit)
            })
        })
    }

    /// The number of the chunk that contains `address`.
    pub(crate) fn find(&self, address: usize) -> Option<u32> {
        let (root, leaf) = map_place(address)?;
        let leaves = NonNull::new(self.map[root].load(Ordering::Acquire))?;
        // SAFETY: a leaf of the map is initialised before it is published, and freed with the
        // table.
        let leaves = unsafe { leaves.as_ref() };
        leaves[leaf].load(Ordering::Acquire).checked_sub(1)
    }

    /// Maps the address of chunk `number` to it. The caller serialises calls.
    pub(crate) fn insert(&self, base: NonNull<u8>, number: u32) -> Result<()> {
        let address = base.addr().get();
        let (root, leaf) = map_place(address).ok_or(Error::Foreign { address })?;
        let mut leaves = self.map[root].load(Ordering::Acquire);
        if leaves.is_null() {
            leaves = Box::into_raw(map_leaf()?);
            self.map[root].store(leaves, Ordering::Release);
        }
        // SAFETY: a leaf of the map is initialised before it is published, and freed with the
        // table.
        let leaves = unsafe { &*leaves };
        leaves[leaf].store(number + 1, Ordering::Release);
        Ok(())
    }

    /// Removes a chunk's address from the map.
    pub(crate) fn remove(&self, base: NonNull<u8>) {
        let Some((root, leaf)) = map_place(base.addr().get()) else { return };
        if let Some(leaves) = NonNull::new(self.map[root].load(Ordering::Acquire)) {
            // SAFETY: a leaf of the map is initialised before it is published, and freed with the
            // table.
            let leaves = unsafe { leaves.as_ref() };
            leaves[leaf].store(0, Ordering::Release);
        }
    }
}

fn place(number: u32) -> (usize, usize) {
    (number as usize / SEGMENT_CHUNKS, number as usize % SEGMENT_CHUNKS)
}

fn map_place(address: usize) -> Option<(usize, usize)> {
    let chunk = address >> CHUNK_BITS;
    let (root, leaf) = (chunk >> LEAF_BITS, chunk & ((1 << LEAF_BITS) - 1));
    (root < 1 << ROOT_BITS).then_some((root, leaf))
}

/// A boxed slice, or [`Error::Table`] when there is no memory.
fn boxed<T>(count: usize, make: impl Fn() -> T) -> Result<Box<[T]>> {
    let mut made = Vec::new();
    made.try_reserve_exact(count).map_err(|_| Error::Table { bytes: count * size_of::<T>() })?;
    made.extend(core::iter::repeat_with(make).take(count));
    Ok(made.into_boxed_slice())
}

fn map_leaf() -> Result<Box<MapLeaf>> {
    let leaf = boxed(1 << LEAF_BITS, || core::sync::atomic::AtomicU32::new(0))?;
    leaf.try_into().map_err(|_| Error::Table { bytes: size_of::<MapLeaf>() })
}

impl Segment {
    #[cfg(not(loom))]
    fn boxed() -> Result<Box<Self>> {
        use alloc::alloc::{Layout, alloc_zeroed};
        let layout = Layout::new::<Self>();
        #[expect(clippy::cast_ptr_alignment, reason = "the layout is that of a segment")]
        // SAFETY: the layout is not of size zero.
        let made = unsafe { alloc_zeroed(layout) }.cast::<Self>();
        if made.is_null() {
            return Err(Error::Table { bytes: layout.size() });
        }
        // SAFETY: zeroed memory is a valid segment of vacant records, since its fields are atomics.
        // `Box` frees with the same allocator and layout.
        Ok(unsafe { Box::from_raw(made) })
    }

    #[cfg(loom)]
    fn boxed() -> Result<Box<Self>> {
        Ok(Box::new(Self {
            summary: core::array::from_fn(|_| AtomicU64::new(0)),
            chunks: core::array::from_fn(|_| ChunkRecord::vacant()),
        }))
    }
}

impl Drop for ChunkTable {
    fn drop(&mut self) {
        for segment in &self.segments {
            let segment = segment.load(Ordering::Acquire);
            if !segment.is_null() {
                // SAFETY: the segment came from `Box::into_raw`, and no reader of the table is
                // left.
                drop(unsafe { Box::from_raw(segment) });
            }
        }
        for leaf in &self.map {
            let leaf = leaf.load(Ordering::Acquire);
            if !leaf.is_null() {
                // SAFETY: the leaf came from `Box::into_raw`, and no reader of the table is left.
                drop(unsafe { Box::from_raw(leaf) });
            }
        }
    }
}

impl fmt::Debug for ChunkTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkTable").field("chunks", &self.count()).finish_non_exhaustive()
    }
}
