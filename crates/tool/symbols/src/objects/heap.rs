//! Finds the block of glibc's malloc that contains an address, from the allocator's headers in
//! memory.
//!
//! ```text
//!   main arena    [heap]    │ (thread-local memory of a static program) │ chunk │ chunk │ ... │ top │
//!   other arenas  64 MiB·n  │ heap_info │ arena (in its first heap) │ chunk │ chunk │ ... │ top │
//!   large block   mmap      │ chunk │
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `arena` | heaps of thread arenas |
//! | `mapped` | blocks with their own mapping |
//! | `walk` | the way from chunk to chunk, and which headers are consistent |
//! | `window` | a read buffer |
//!
//! The memory may belong to another allocator, or only resemble chunks. `walk` describes how to
//! distinguish them. If the headers are inconsistent twice, there is no answer.
//!
//! **Cost.** A walk reads the headers from the start of a heap, which for small chunks is all
//! memory: at most 256 MiB or 16 million chunks, about 100 ms (estimate). It records marks, from
//! which later walks continue, until [`MallocHeaps::forget`].
//!
//! **Not supported**: main arenas that use mmap(2) because brk(2) failed, and heaps of
//! `glibc.malloc.hugetlb`. Freed blocks in a thread's cache look like blocks in use.

mod arena;
mod mapped;
#[cfg(test)]
mod tests;
mod walk;
mod window;

use std::collections::HashMap;
use std::ops::Range;

use fieldstone_rewrite::ReadableMemory;

use super::maps::{self, Maps};
use walk::{ChunkWalk, HeapChunk, WalkEnd};

/// Search range for the first chunk, from the start of the main arena.
const SCAN_BYTES: u64 = 64 << 10;
/// Search range for the next chunk behind a fence (memory that other code took by sbrk(2)).
const FENCED_BYTES: u64 = 1 << 20;
/// Limit of fences in one heap.
const MAX_FENCES: usize = 64;
/// Distance from the start of a chunk to its user bytes.
const HEADER: u64 = 16;
/// Bytes of the next chunk that belong to the user of a chunk.
const SHARED: u64 = 8;

/// The result of looking up an address in memory of malloc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeapLookup {
    /// The user bytes of the block that contains the address.
    Block(Range<u64>),
    /// The free memory that contains the address.
    Free(Range<u64>),
    /// The address is in memory of malloc, but the block is unknown for this reason.
    Unknown(&'static str),
    /// The address is not in memory of malloc.
    NotMalloc,
}

/// A heap: its first chunk is within `scan` bytes of `from`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChunkArea {
    from: u64,
    scan: u64,
    end: u64,
    main: bool,
}

/// Positions of chunks in a process's heaps.
#[derive(Debug, Default)]
pub(super) struct MallocHeaps {
    /// Addresses of some chunks of each heap, ordered; by [`ChunkArea::from`].
    marks: HashMap<u64, Vec<u64>>,
}

impl MallocHeaps {
    /// Discards the marks, which may be outdated.
    pub(super) fn forget(&mut self) {
        self.marks.clear();
    }

    /// Looks up `address` in the main arena and the arenas of threads.
    pub(super) fn in_arena(&mut self, memory: &dyn ReadableMemory, maps: &Maps, address: u64) -> HeapLookup {
        // The process runs meanwhile, so the headers may have been read during an update: try
        // again.
        match self.look_up(memory, maps, address) {
            HeapLookup::Unknown(INCONSISTENT) => {
                self.forget();
                self.look_up(memory, maps, address)
            }
            other => other,
        }
    }

    fn look_up(&mut self, memory: &dyn ReadableMemory, maps: &Maps, address: u64) -> HeapLookup {
        let Some(area) = area(memory, maps, address) else { return HeapLookup::NotMalloc };
        // The first word of the next chunk belongs to a chunk in use.
        let Some(target) = address.checked_sub(SHARED) else { return HeapLookup::NotMalloc };
        match self.walk(memory, &area, target) {
            WalkEnd::Chunk(chunk) => lookup(chunk, address),
            WalkEnd::TooLong => HeapLookup::Unknown(
                "the heap is too large for one walk: the next query continues where this one stopped",
            ),
            WalkEnd::Inconsistent | WalkEnd::Fence(_) => HeapLookup::Unknown(INCONSISTENT),
        }
    }

    fn walk(&mut self, memory: &dyn ReadableMemory, area: &ChunkArea, target: u64) -> WalkEnd {
        let marks = self.marks.entry(area.from).or_default();
        let mut walk = ChunkWalk::new(memory, area.main);
        let mark_count = marks.partition_point(|&mark| mark <= target);
        if let Some(&mark) = marks[..mark_count].last() {
            let mut more = Vec::new();
            let end = walk.to(mark, area.end, target, &mut more);
            // Only behind the last mark are there new chunks.
            if mark_count == marks.len() {
                marks.append(&mut more);
            }
            if !matches!(end, WalkEnd::Fence(_)) {
                return end;
            }
            marks.clear();
        }
        let (mut from, mut scan) = (area.from, area.scan);
        for _ in 0..MAX_FENCES {
            match walk.search(from, scan, area.end, target, marks) {
                WalkEnd::Fence(behind) => (from, scan) = (behind, FENCED_BYTES),
                end => return end,
            }
        }
        WalkEnd::Inconsistent
    }
}

/// Looks up `address` among blocks with their own mapping.
pub(super) fn in_mapping(memory: &dyn ReadableMemory, maps: &Maps, address: u64) -> HeapLookup {
    let own = maps.at(address).map(|mapping| mapping.start);
    let block = maps.span(address, maps::is_mapped).and_then(|span| mapped::block(memory, &span, own?, address));
    block.map_or(HeapLookup::NotMalloc, HeapLookup::Block)
}

const INCONSISTENT: &str = "its headers are inconsistent: it belongs to another allocator, or malloc is changing it";

fn area(memory: &dyn ReadableMemory, maps: &Maps, address: u64) -> Option<ChunkArea> {
    match maps.span(address, maps::is_heap) {
        Some(span) => Some(ChunkArea { from: span.start, scan: SCAN_BYTES, end: span.end, main: true }),
        None => arena::area(memory, maps, address),
    }
}

fn lookup(chunk: HeapChunk, address: u64) -> HeapLookup {
    let user = chunk.start + HEADER..chunk.start + chunk.bytes + SHARED;
    if chunk.free {
        HeapLookup::Free(chunk.start + HEADER..chunk.start + chunk.bytes)
    } else if user.contains(&address) {
        HeapLookup::Block(user)
    } else {
        HeapLookup::Unknown("it is a header of malloc")
    }
}
