//! Places the mappings of a program's anonymous memory in one primary region.
//!
//! The paper puts all anonymous read-write memory of a process in one contiguous range; a traced
//! program has it in several mappings. Each mapping gets offsets in the region, which are freed
//! when it is unmapped. The lowest free offsets are used first, so that the region and its segment
//! grow little and shrink when possible.
//!
//! ```text
//!   addresses   ..[heap]......[arena 1]..[buffer]......[stack of a thread]..
//!                    \            |          \___________________
//!   region      0 [heap][arena 1][ free ][stack of a thread][buffer] extent
//! ```
//! Pages stay whole: pieces begin and end on multiples of 4 KiB, in addresses and in offsets.
//!
//! Every access looks up its address, so results are cached: for each 2 MiB of addresses (modulo
//! 64) the piece or gap found last. Any change of the pieces clears the cache.

use std::collections::BTreeMap;

use crate::access::PlacedAccess;
use crate::lru::index;
use crate::page::PageSize;
use crate::segment::DirectSegment;

const PAGE_BYTES: u64 = PageSize::Small4k.bytes();
/// Cached lookups.
const CACHED_LOOKUPS: u64 = 64;

/// The memory of a piece: its size, and its offset in the region.
#[derive(Debug, Clone, Copy)]
struct RegionPiece {
    bytes: u64,
    offset: u64,
}

/// The result of a lookup: a piece, or a gap between two.
#[derive(Debug, Clone, Copy)]
struct Lookup {
    start: u64,
    /// 0: empty.
    bytes: u64,
    offset: Option<u64>,
}

const EMPTY: Lookup = Lookup { start: 0, bytes: 0, offset: None };

/// The primary region of one process, driven by its mappings.
#[derive(Debug, Clone)]
pub struct PrimaryRegion {
    /// By address.
    pieces: BTreeMap<u64, RegionPiece>,
    /// Free bytes below `extent`, by offset. Adjacent ones are merged.
    free: BTreeMap<u64, u64>,
    extent: u64,
    largest_extent: u64,
    bytes: u64,
    cache: Box<[Lookup]>,
}

impl Default for PrimaryRegion {
    fn default() -> Self {
        Self::new()
    }
}

impl PrimaryRegion {
    /// BASE of its segment: the virtual address of the region's start.
    pub const BASE: u64 = 1 << 45;

    /// A region without memory.
    #[must_use]
    pub fn new() -> Self {
        Self {
            pieces: BTreeMap::new(),
            free: BTreeMap::new(),
            extent: 0,
            largest_extent: 0,
            bytes: 0,
            cache: vec![EMPTY; index(CACHED_LOOKUPS)].into_boxed_slice(),
        }
    }

    /// Adds mapped memory: the pages of `start..start + bytes`. Replaces earlier mappings there,
    /// like MAP_FIXED.
    pub fn add(&mut self, start: u64, bytes: u64) {
        let (start, end) = pages(start, bytes);
        if start == end {
            return;
        }
        self.extract(start, end, true);
        let offset = self.allocate_offsets(end - start);
        self.insert(start, RegionPiece { bytes: end - start, offset });
        self.clear_cache();
    }

    /// Removes memory that was unmapped, or is no longer anonymous, private and read-write.
    pub fn remove(&mut self, start: u64, bytes: u64) {
        let (start, end) = pages(start, bytes);
        self.extract(start, end, true);
        self.clear_cache();
    }

    /// Changes the address of memory (`mremap`), which keeps its offsets. Replaces mappings at the
    /// new address. Memory that was outside the region stays outside.
    pub fn relocate(&mut self, from: u64, to: u64, bytes: u64) {
        let (from, end) = pages(from, bytes);
        let to = to / PAGE_BYTES * PAGE_BYTES;
        let pieces = self.extract(from, end, false);
        self.extract(to, to + (end - from), true);
        for (start, piece) in pieces {
            self.insert(start - from + to, piece);
        }
        self.clear_cache();
    }

    /// The offset of `address` in the region; `None` outside.
    #[inline]
    pub fn offset_of(&mut self, address: u64) -> Option<u64> {
        let slot = index(address >> PageSize::Large2m.shift() & (CACHED_LOOKUPS - 1));
        let cached = self.cache[slot];
        let within = address.wrapping_sub(cached.start);
        if within < cached.bytes {
            return cached.offset.map(|offset| offset + within);
        }
        let lookup = self.find(address);
        self.cache[slot] = lookup;
        lookup.offset.map(|offset| offset + (address - lookup.start))
    }

    /// Places an access of a traced program.
    #[inline]
    pub fn place(&mut self, address: u64, fetch: bool) -> PlacedAccess {
        let access = match self.offset_of(address) {
            Some(offset) => PlacedAccess::in_region(offset),
            None => PlacedAccess::outside(address),
        };
        if fetch { access.fetch() } else { access }
    }

    /// Bytes of all pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes from the region's start to the end of the last piece.
    #[must_use]
    pub fn extent(&self) -> u64 {
        self.extent
    }

    /// The largest extent so far.
    #[must_use]
    pub fn largest_extent(&self) -> u64 {
        self.largest_extent
    }

    /// The registers that translate the region: from [`Self::BASE`] to its extent, to physical
    /// memory from 0. The physical address is the offset.
    #[must_use]
    pub fn segment(&self) -> DirectSegment {
        DirectSegment::new(Self::BASE, self.extent, 0)
    }

    /// The offsets at which pieces begin, in order: the ranges for range TLBs.
    #[must_use]
    pub fn range_starts(&self) -> Vec<u64> {
        let mut starts: Vec<u64> = self.pieces.values().map(|piece| piece.offset).collect();
        starts.sort_unstable();
        starts
    }

    fn find(&self, address: u64) -> Lookup {
        let before = self.pieces.range(..=address).next_back();
        let mut gap_start = 0;
        if let Some((&start, piece)) = before {
            if address - start < piece.bytes {
                return Lookup { start, bytes: piece.bytes, offset: Some(piece.offset) };
            }
            gap_start = start + piece.bytes;
        }
        let gap_end = self.pieces.range(address..).next().map_or(u64::MAX, |(&start, _)| start);
        Lookup { start: gap_start, bytes: gap_end - gap_start, offset: None }
    }

    /// Removes and returns the pieces of `start..end`, split at both ends. Frees their offsets if
    /// `free`.
    fn extract(&mut self, start: u64, end: u64, free: bool) -> Vec<(u64, RegionPiece)> {
        if start == end {
            return Vec::new();
        }
        self.split(start);
        self.split(end);
        let inside: Vec<(u64, RegionPiece)> = self.pieces.range(start..end).map(|(&at, &piece)| (at, piece)).collect();
        for (at, piece) in &inside {
            self.pieces.remove(at);
            self.bytes -= piece.bytes;
            if free {
                self.free_offsets(piece.offset, piece.bytes);
            }
        }
        inside
    }

    /// Splits a piece that contains `address` in its middle.
    fn split(&mut self, address: u64) {
        if let Some((&start, piece)) = self.pieces.range_mut(..address).next_back()
            && address - start < piece.bytes
        {
            let front = address - start;
            let back = RegionPiece { bytes: piece.bytes - front, offset: piece.offset + front };
            piece.bytes = front;
            self.pieces.insert(address, back);
        }
    }

    /// Inserts a piece, merged with the one before if addresses and offsets are contiguous.
    fn insert(&mut self, start: u64, piece: RegionPiece) {
        self.bytes += piece.bytes;
        if let Some((&before, front)) = self.pieces.range_mut(..start).next_back()
            && before + front.bytes == start
            && front.offset + front.bytes == piece.offset
        {
            front.bytes += piece.bytes;
        } else {
            self.pieces.insert(start, piece);
        }
    }

    /// Allocates the lowest free offsets for `bytes`, or new ones at the end.
    fn allocate_offsets(&mut self, bytes: u64) -> u64 {
        let fitting = self.free.iter().find(|&(_, &room)| room >= bytes).map(|(&offset, &room)| (offset, room));
        let offset = if let Some((offset, room)) = fitting {
            self.free.remove(&offset);
            if room > bytes {
                self.free.insert(offset + bytes, room - bytes);
            }
            offset
        } else {
            self.extent += bytes;
            self.extent - bytes
        };
        self.largest_extent = self.largest_extent.max(self.extent);
        offset
    }

    /// Frees offsets and merges them with free neighbours; free offsets at the end shrink the
    /// region.
    fn free_offsets(&mut self, offset: u64, bytes: u64) {
        let (mut start, mut end) = (offset, offset + bytes);
        if let Some(room) = self.free.remove(&end) {
            end += room;
        }
        if let Some((&before, &room)) = self.free.range(..start).next_back()
            && before + room == start
        {
            self.free.remove(&before);
            start = before;
        }
        if end == self.extent {
            self.extent = start;
        } else {
            self.free.insert(start, end - start);
        }
    }

    fn clear_cache(&mut self) {
        self.cache.fill(EMPTY);
    }
}

/// The pages of `bytes` bytes from `start`: first address, and end.
fn pages(start: u64, bytes: u64) -> (u64, u64) {
    let first = start / PAGE_BYTES * PAGE_BYTES;
    let end = start.saturating_add(bytes).div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
    if bytes == 0 { (first, first) } else { (first, end) }
}
