//! Walks from chunk to chunk through memory of glibc's malloc.
//!
//! ```text
//!   chunk │ prev_size │ size + flags │ user bytes ... │     user bytes of a chunk in use
//!   next  │ (user)    │ size + flags │ ...                  end at the next chunk's size
//!                                └ 1: the previous chunk is in use; else prev_size is its size
//!                                  2: own mapping   4: not in the main arena
//!   last  │ prev_size │ size + flags │ unused memory │ end
//! ```
//! A size only gives a possible position of the next chunk. A walk checks alignment, bounds, flags,
//! and the size that a free chunk has at both ends. The first chunk is confirmed only by those that
//! follow, so a walk continues behind the chunk that it searches.
//!
//! Source: glibc 2.26 to 2.41, `malloc/malloc.c`, the comment on chunks.

use fieldstone_rewrite::ReadableMemory;

use super::window::{ChunkHeader, MemoryWindow};

/// Limits of bytes and chunks in a walk: about 100 ms (estimate).
const MAX_BYTES: usize = 256 << 20;
const MAX_CHUNKS: usize = 16 << 20;
/// Chunks that must follow the searched one.
const MORE_CHUNKS: usize = 8;
/// Smallest distance between two marks.
const MARK_BYTES: u64 = 1 << 20;

const PREVIOUS_IN_USE: u64 = 1;
const MAPPED: u64 = 2;
const NOT_MAIN: u64 = 4;
/// Size of the smallest chunk.
const MIN_CHUNK: u64 = 32;
/// Alignment of chunks.
const ALIGNMENT: u64 = 16;
/// Size of each of the two chunks that end a part of the heap before memory of other code.
const FENCE: u64 = 16;

/// A chunk found by a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeapChunk {
    /// The address of its header.
    pub(super) start: u64,
    /// Its size in bytes.
    pub(super) bytes: u64,
    /// Whether it is free or was never allocated.
    pub(super) free: bool,
}

/// The result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkEnd {
    /// The searched chunk.
    Chunk(HeapChunk),
    /// A fence that ends at this address; more chunks may follow.
    Fence(u64),
    /// Memory that is no chunk.
    Inconsistent,
    /// A limit of the walk.
    TooLong,
}

/// A walk and its remaining limits.
pub(super) struct ChunkWalk<'a> {
    memory: &'a dyn ReadableMemory,
    window: MemoryWindow<'a>,
    left_chunks: usize,
    /// Flags that no chunk of this heap can have.
    forbidden: u64,
}

impl<'a> ChunkWalk<'a> {
    pub(super) fn new(memory: &'a dyn ReadableMemory, main: bool) -> Self {
        let forbidden = if main { MAPPED | NOT_MAIN } else { MAPPED };
        Self { memory, window: MemoryWindow::new(memory, MAX_BYTES), left_chunks: MAX_CHUNKS, forbidden }
    }

    /// Searches the first chunk within `scan` bytes of `from`, and walks to the one that contains
    /// `target`. Adds chunks on the way to `marks`.
    pub(super) fn search(&mut self, from: u64, scan: u64, end: u64, target: u64, marks: &mut Vec<u64>) -> WalkEnd {
        let first = from.next_multiple_of(ALIGNMENT);
        let last = end.min(target.saturating_add(1)).min(first.saturating_add(scan));
        let mut at = first;
        while at < last {
            let mark_count = marks.len();
            let result = match self.head(at, end) {
                Some(head) if head[1] & PREVIOUS_IN_USE != 0 => self.to(at, end, target, marks),
                Some(_) => WalkEnd::Inconsistent,
                None if self.window.is_spent() => WalkEnd::TooLong,
                None => WalkEnd::Inconsistent,
            };
            if result != WalkEnd::Inconsistent {
                return result;
            }
            marks.truncate(mark_count);
            at += ALIGNMENT;
        }
        WalkEnd::Inconsistent
    }

    /// Walks from the chunk at `from` to the one that contains `target`.
    pub(super) fn to(&mut self, from: u64, end: u64, target: u64, marks: &mut Vec<u64>) -> WalkEnd {
        let (mut at, mut before, mut marked) = (from, None, from);
        loop {
            let Some((head, bytes, next)) = self.step(at, end, before) else { return self.failure() };
            if bytes == FENCE {
                let other = self.head(next, end).is_some_and(|head| size(head) == FENCE);
                return if other { WalkEnd::Fence(next + FENCE) } else { WalkEnd::Inconsistent };
            }
            if target < next {
                return self.confirm(HeapChunk { start: at, bytes, free: false }, head, end);
            }
            if next - marked >= MARK_BYTES {
                marks.push(next);
                marked = next;
            }
            (at, before) = (next, Some(bytes));
        }
    }

    /// The header of the chunk at `at`, its size, and the address of the next; `None` if it is no
    /// chunk.
    fn step(&mut self, at: u64, end: u64, before: Option<u64>) -> Option<(ChunkHeader, u64, u64)> {
        self.left_chunks = self.left_chunks.checked_sub(1)?;
        let head = self.head(at, end)?;
        let bytes = size(head);
        let next = at.checked_add(bytes).filter(|&next| next <= end)?;
        let fits =
            bytes.is_multiple_of(ALIGNMENT) && (bytes >= MIN_CHUNK || bytes == FENCE) && head[1] & self.forbidden == 0;
        let follows = head[1] & PREVIOUS_IN_USE != 0 || before.is_none_or(|before| head[0] == before);
        (fits && follows).then_some((head, bytes, next))
    }

    /// Checks the chunks that follow, and determines whether the chunk is in use.
    fn confirm(&mut self, chunk: HeapChunk, head: ChunkHeader, end: u64) -> WalkEnd {
        let next = chunk.start + chunk.bytes;
        if next == end {
            return self.if_unchanged(HeapChunk { free: true, ..chunk }, head, None);
        }
        let (mut at, mut before, mut follower) = (next, chunk.bytes, None);
        for _ in 0..MORE_CHUNKS {
            let Some((head, bytes, next)) = self.step(at, end, Some(before)) else {
                // Heaps of an arena before the last one end with a chunk of size 0.
                let ends = self.head(at, end).is_some_and(|head| size(head) == 0) && at + FENCE == end;
                if ends && follower.is_some() {
                    break;
                }
                return self.failure();
            };
            follower.get_or_insert(head);
            if next == end || bytes == FENCE {
                break;
            }
            (at, before) = (next, bytes);
        }
        let free = follower.is_some_and(|head| head[1] & PREVIOUS_IN_USE == 0);
        self.if_unchanged(HeapChunk { free, ..chunk }, head, follower)
    }

    /// The chunk, if its header and the next one have not changed during the walk.
    fn if_unchanged(&self, chunk: HeapChunk, head: ChunkHeader, follower: Option<ChunkHeader>) -> WalkEnd {
        let is_unchanged = |at, was: ChunkHeader| {
            MemoryWindow::new(self.memory, usize::MAX).head(at).is_some_and(|now| now[1] == was[1])
        };
        let unchanged =
            is_unchanged(chunk.start, head) && follower.is_none_or(|was| is_unchanged(chunk.start + chunk.bytes, was));
        if unchanged { WalkEnd::Chunk(chunk) } else { WalkEnd::Inconsistent }
    }

    fn failure(&self) -> WalkEnd {
        if self.left_chunks == 0 || self.window.is_spent() { WalkEnd::TooLong } else { WalkEnd::Inconsistent }
    }

    fn head(&mut self, at: u64, end: u64) -> Option<ChunkHeader> {
        if at.checked_add(FENCE)? <= end { self.window.head(at) } else { None }
    }
}

fn size(head: ChunkHeader) -> u64 {
    head[1] & !7
}
