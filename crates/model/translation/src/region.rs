//! Where the pieces of a program's anonymous memory lie in the one primary region.
//!
//! The paper puts all anonymous read-write memory of a process in one contiguous range; a traced program has it in
//! pieces, as it asked for it. Each piece gets offsets in the region when it is mapped and gives them back when it is
//! unmapped; free offsets are taken again lowest first, so that the region, and the segment over it, grows little and
//! shrinks when it can.
//!
//! ```text
//!   addresses   ..[heap]......[arena 1]..[buffer]......[stack of a thread]..
//!                    \            |          \___________________
//!   region      0 [heap][arena 1][ free ][stack of a thread][buffer] extent
//! ```
//! Pages stay whole: pieces begin and end on multiples of 4 KiB, in addresses and in offsets.
//!
//! Every access asks, so the answers are kept by address: for each 2 MiB (modulo 64 of them) the piece or the gap that
//! was found there last. Any change of the pieces forgets these.

use std::collections::BTreeMap;

use crate::access::Access;
use crate::lru::index;
use crate::page::PageSize;
use crate::segment::DirectSegment;

const PAGE_BYTES: u64 = PageSize::Small4k.bytes();
/// Answers that are kept.
const RECENT: u64 = 64;

/// The memory of a piece: how much, and where in the region.
#[derive(Debug, Clone, Copy)]
struct Piece {
    bytes: u64,
    offset: u64,
}

/// What was found at an address: a piece, or a gap between two.
#[derive(Debug, Clone, Copy)]
struct Answer {
    start: u64,
    /// 0: nothing is known.
    bytes: u64,
    offset: Option<u64>,
}

const UNKNOWN: Answer = Answer { start: 0, bytes: 0, offset: None };

/// The primary region of one process, fed by its mappings.
#[derive(Debug, Clone)]
pub struct PrimaryRegion {
    /// By address.
    pieces: BTreeMap<u64, Piece>,
    /// Free bytes below `extent`, by offset; never two that touch.
    free: BTreeMap<u64, u64>,
    extent: u64,
    largest_extent: u64,
    bytes: u64,
    recent: Box<[Answer]>,
}

impl Default for PrimaryRegion {
    fn default() -> Self {
        Self::new()
    }
}

impl PrimaryRegion {
    /// BASE of its segment: the virtual address at which the region is taken to begin.
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
            recent: vec![UNKNOWN; index(RECENT)].into_boxed_slice(),
        }
    }

    /// Memory was mapped: the pages that `bytes` from `start` touch are in the region now. What was there before is
    /// replaced, as MAP_FIXED does.
    pub fn add(&mut self, start: u64, bytes: u64) {
        let (start, end) = pages(start, bytes);
        if start == end {
            return;
        }
        self.take_out(start, end, true);
        let offset = self.take_offsets(end - start);
        self.insert(start, Piece { bytes: end - start, offset });
        self.forget();
    }

    /// Memory was unmapped, or is no longer anonymous, private and read-write.
    pub fn remove(&mut self, start: u64, bytes: u64) {
        let (start, end) = pages(start, bytes);
        self.take_out(start, end, true);
        self.forget();
    }

    /// Memory has another address now (`mremap`): it keeps its place in the region. What was at the new address is
    /// replaced; what was at the old one outside of the region is nothing at the new one either.
    pub fn moved(&mut self, from: u64, to: u64, bytes: u64) {
        let (from, end) = pages(from, bytes);
        let to = to / PAGE_BYTES * PAGE_BYTES;
        let pieces = self.take_out(from, end, false);
        self.take_out(to, to + (end - from), true);
        for (start, piece) in pieces {
            self.insert(start - from + to, piece);
        }
        self.forget();
    }

    /// Where `address` is in the region; `None` outside.
    #[inline]
    pub fn offset_of(&mut self, address: u64) -> Option<u64> {
        let slot = index(address >> PageSize::Large2m.shift() & (RECENT - 1));
        let known = self.recent[slot];
        let within = address.wrapping_sub(known.start);
        if within < known.bytes {
            return known.offset.map(|offset| offset + within);
        }
        let answer = self.find(address);
        self.recent[slot] = answer;
        answer.offset.map(|offset| offset + (address - answer.start))
    }

    /// The access of a traced program, placed.
    #[inline]
    pub fn place(&mut self, address: u64, fetch: bool) -> Access {
        let access = match self.offset_of(address) {
            Some(offset) => Access::in_region(offset),
            None => Access::outside(address),
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

    /// The registers that translate the region: from [`Self::BASE`], as far as there are pieces, to physical memory
    /// from 0. An access in the region has its offset as physical address.
    #[must_use]
    pub fn segment(&self) -> DirectSegment {
        DirectSegment::new(Self::BASE, self.extent, 0)
    }

    /// Offsets at which pieces begin, in order: the ranges of a machine with range TLBs.
    #[must_use]
    pub fn range_starts(&self) -> Vec<u64> {
        let mut starts: Vec<u64> = self.pieces.values().map(|piece| piece.offset).collect();
        starts.sort_unstable();
        starts
    }

    fn find(&self, address: u64) -> Answer {
        let before = self.pieces.range(..=address).next_back();
        let mut gap_start = 0;
        if let Some((&start, piece)) = before {
            if address - start < piece.bytes {
                return Answer { start, bytes: piece.bytes, offset: Some(piece.offset) };
            }
            gap_start = start + piece.bytes;
        }
        let gap_end = self.pieces.range(address..).next().map_or(u64::MAX, |(&start, _)| start);
        Answer { start: gap_start, bytes: gap_end - gap_start, offset: None }
    }

    /// Takes the pieces from `start` to `end` out, cut to size, and gives their offsets back if `free`.
    fn take_out(&mut self, start: u64, end: u64, free: bool) -> Vec<(u64, Piece)> {
        if start == end {
            return Vec::new();
        }
        self.cut(start);
        self.cut(end);
        let inside: Vec<(u64, Piece)> = self.pieces.range(start..end).map(|(&at, &piece)| (at, piece)).collect();
        for (at, piece) in &inside {
            self.pieces.remove(at);
            self.bytes -= piece.bytes;
            if free {
                self.give_offsets(piece.offset, piece.bytes);
            }
        }
        inside
    }

    /// Makes two pieces of one that goes across `address`.
    fn cut(&mut self, address: u64) {
        if let Some((&start, piece)) = self.pieces.range_mut(..address).next_back()
            && address - start < piece.bytes
        {
            let front = address - start;
            let back = Piece { bytes: piece.bytes - front, offset: piece.offset + front };
            piece.bytes = front;
            self.pieces.insert(address, back);
        }
    }

    /// Puts a piece where there is none; it joins the one before where both addresses and offsets go on.
    fn insert(&mut self, start: u64, piece: Piece) {
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

    /// The lowest free offsets with room for `bytes`, else new ones at the end.
    fn take_offsets(&mut self, bytes: u64) -> u64 {
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

    /// Frees offsets, joined with their free neighbours; free ones at the end leave the region.
    fn give_offsets(&mut self, offset: u64, bytes: u64) {
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

    fn forget(&mut self) {
        self.recent.fill(UNKNOWN);
    }
}

/// The pages that `bytes` from `start` touch: first address, and the one behind.
fn pages(start: u64, bytes: u64) -> (u64, u64) {
    let first = start / PAGE_BYTES * PAGE_BYTES;
    let end = start.saturating_add(bytes).div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
    if bytes == 0 { (first, first) } else { (first, end) }
}
