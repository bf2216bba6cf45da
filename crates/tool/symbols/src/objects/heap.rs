//! Which block of glibc's malloc an address lies in, from outside: the allocator's own marks in memory say it.
//!
//! ```text
//!   [heap]    │ (thread-local memory of a static program) │ chunk │ chunk │ ... │ top │        the main arena
//!   64 MiB·n  │ heap_info │ arena (the first heap of it) │ chunk │ chunk │ ... │ top │         other arenas: threads that allocate
//!   mmap      │ chunk │                                                                       a large block by itself
//! ```
//! Nothing is asked of the program, so another allocator's memory, and what only looks like malloc's, has to be told apart: `walk` says
//! how. Where anything is odd twice, nothing is told.
//!
//! **Cost.** A walk reads all headers from the start of a heap, which for small chunks is all of it: 256 MiB or 16 million chunks at
//! most, by estimate a tenth of a second. It leaves marks, and goes on from there the next time, until [`Heap::forget`].
//!
//! **Not told**: main arenas that took to mmap(2) since brk(2) had no more; heaps of `glibc.malloc.hugetlb`; which of the blocks that seem
//! to be in use lie in a thread's cache of freed ones.

mod arena;
mod mapped;
#[cfg(test)]
mod tests;
mod walk;
mod window;

use std::collections::HashMap;
use std::ops::Range;

use fieldstone_rewrite::Memory;

use super::maps::{self, Maps};
use walk::{Chunk, End, Walk};

/// How far behind the start of its memory the first chunk of the main arena may be, and of others behind what another sbrk(2) took.
const SCAN_BYTES: u64 = 64 << 10;
const FENCED_BYTES: u64 = 1 << 20;
/// Places in one heap where others took memory by sbrk(2).
const MOST_FENCES: usize = 64;
/// A chunk's user bytes begin so far behind it and end so far behind its end.
const HEADER: u64 = 16;
const SHARED: u64 = 8;

/// What an address is to malloc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// In the user's bytes of a block.
    Block(Range<u64>),
    /// In memory that malloc has not given out.
    Free(Range<u64>),
    /// In its memory, but no more can be said, and why.
    NotTold(&'static str),
    /// Not in memory of malloc.
    Elsewhere,
}

/// Chunks of memory that grows, and where the first of them may be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Area {
    from: u64,
    scan: u64,
    end: u64,
    main: bool,
}

/// What is known of a process's heaps.
#[derive(Debug, Default)]
pub(super) struct Heap {
    /// Chunks that were walked past, by the start of their memory.
    marks: HashMap<u64, Vec<u64>>,
}

impl Heap {
    /// Forgets where chunks were: they may have moved.
    pub(super) fn forget(&mut self) {
        self.marks.clear();
    }

    /// The block that has `address`, in the main arena or another one.
    pub(super) fn in_arena(&mut self, memory: &dyn Memory, maps: &Maps, address: u64) -> Found {
        // The process goes on meanwhile: what was odd once may only have been under way.
        match self.once(memory, maps, address) {
            Found::NotTold(ODD) => {
                self.forget();
                self.once(memory, maps, address)
            }
            found => found,
        }
    }

    fn once(&mut self, memory: &dyn Memory, maps: &Maps, address: u64) -> Found {
        let Some(area) = area(memory, maps, address) else { return Found::Elsewhere };
        // A chunk in use has the first word of the next one.
        let Some(target) = address.checked_sub(SHARED) else { return Found::Elsewhere };
        match self.walk(memory, &area, target) {
            End::Chunk(chunk) => told(chunk, address),
            End::TooLong => Found::NotTold(
                "the heap is too large to be walked at once: asked again, the walk goes on from where it was",
            ),
            End::Odd | End::Fence(_) => Found::NotTold(ODD),
        }
    }

    fn walk(&mut self, memory: &dyn Memory, area: &Area, target: u64) -> End {
        let marks = self.marks.entry(area.from).or_default();
        let mut walk = Walk::new(memory, area.main);
        let known = marks.partition_point(|&mark| mark <= target);
        if let Some(&mark) = marks[..known].last() {
            let mut more = Vec::new();
            let end = walk.to(mark, area.end, target, &mut more);
            // From another chunk's mark than the last, the others behind it are known already.
            if known == marks.len() {
                marks.append(&mut more);
            }
            if !matches!(end, End::Fence(_)) {
                return end;
            }
            marks.clear();
        }
        let (mut from, mut scan) = (area.from, area.scan);
        for _ in 0..MOST_FENCES {
            match walk.search(from, scan, area.end, target, marks) {
                End::Fence(behind) => (from, scan) = (behind, FENCED_BYTES),
                end => return end,
            }
        }
        End::Odd
    }
}

/// The block with a mapping of its own that has `address`.
pub(super) fn in_mapping(memory: &dyn Memory, maps: &Maps, address: u64) -> Found {
    let own = maps.at(address).map(|mapping| mapping.start);
    let found = maps.span(address, maps::is_mapped).and_then(|span| mapped::block(memory, &span, own?, address));
    found.map_or(Found::Elsewhere, Found::Block)
}

const ODD: &str = "its chunks are not as malloc leaves them: another allocator's, or in the midst of a change";

fn area(memory: &dyn Memory, maps: &Maps, address: u64) -> Option<Area> {
    match maps.span(address, maps::is_heap) {
        Some(span) => Some(Area { from: span.start, scan: SCAN_BYTES, end: span.end, main: true }),
        None => arena::area(memory, maps, address),
    }
}

fn told(chunk: Chunk, address: u64) -> Found {
    let user = chunk.start + HEADER..chunk.start + chunk.bytes + SHARED;
    if chunk.free {
        Found::Free(chunk.start + HEADER..chunk.start + chunk.bytes)
    } else if user.contains(&address) {
        Found::Block(user)
    } else {
        Found::NotTold("it is a header of malloc's")
    }
}
