//! From chunk to chunk through memory that glibc's malloc manages.
//!
//! ```text
//!   chunk │ prev_size │ size + flags │ user bytes ... │        a chunk in use has the word behind it too: the user's bytes
//!   next  │ (user's)  │ size + flags │ ...                     end where the next chunk's size begins
//!                                └ 1: the chunk before is in use; else prev_size is its size
//!                                  2: mapped on its own   4: of an arena that is not the main one
//!   last  │ prev_size │ size + flags │ not given out yet │ end
//! ```
//! A size is only where the next chunk may be. A walk goes on while everything fits: alignment, bounds, flags, and the size that a free
//! chunk has at both of its ends. Whether the first chunk was one is only known when others follow it: so a walk goes on behind
//! the chunk that it looked for.
//!
//! Source: glibc 2.26 to 2.41, `malloc/malloc.c`, the words on chunks at its beginning.

use fieldstone_rewrite::Memory;

use super::window::{Head, Window};

/// Bytes that a walk may read, and chunks that it may pass: a tenth of a second by estimate.
const MOST_BYTES: usize = 256 << 20;
const MOST_CHUNKS: usize = 16 << 20;
/// Chunks that have to follow the one looked for.
const MORE_CHUNKS: usize = 8;
/// Bytes from one mark to the next.
const MARK_BYTES: u64 = 1 << 20;

const PREVIOUS_IN_USE: u64 = 1;
const MAPPED: u64 = 2;
const NOT_MAIN: u64 = 4;
/// The least chunk, what chunks are aligned to, and what ends memory behind which there is other memory.
const LEAST_CHUNK: u64 = 32;
const ALIGNMENT: u64 = 16;
const FENCE: u64 = 16;

/// A chunk that was walked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Its first byte.
    pub(super) start: u64,
    /// Its size.
    pub(super) bytes: u64,
    /// It is free, or has never been given out.
    pub(super) free: bool,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At the chunk.
    Chunk(Chunk),
    /// Chunks end here; others may begin behind.
    Fence(u64),
    /// At something that is no chunk.
    Odd,
    /// At its bounds.
    TooLong,
}

/// A walk, with what it may still spend.
pub(super) struct Walk<'a> {
    memory: &'a dyn Memory,
    window: Window<'a>,
    left_chunks: usize,
    /// Flags that no chunk has here.
    forbidden: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(memory: &'a dyn Memory, main: bool) -> Self {
        let forbidden = if main { MAPPED | NOT_MAIN } else { MAPPED };
        Self { memory, window: Window::new(memory, MOST_BYTES), left_chunks: MOST_CHUNKS, forbidden }
    }

    /// From the first chunk at or behind `from`, at most `scan` bytes, to the one that has `target`. `marks` gets chunks on the way.
    pub(super) fn search(&mut self, from: u64, scan: u64, end: u64, target: u64, marks: &mut Vec<u64>) -> End {
        let first = from.next_multiple_of(ALIGNMENT);
        let last = end.min(target.saturating_add(1)).min(first.saturating_add(scan));
        let mut at = first;
        while at < last {
            let known = marks.len();
            let found = match self.head(at, end) {
                Some(head) if head[1] & PREVIOUS_IN_USE != 0 => self.to(at, end, target, marks),
                Some(_) => End::Odd,
                None if self.window.is_spent() => End::TooLong,
                None => End::Odd,
            };
            if found != End::Odd {
                return found;
            }
            marks.truncate(known);
            at += ALIGNMENT;
        }
        End::Odd
    }

    /// From the chunk at `from` to the one that has `target`.
    pub(super) fn to(&mut self, from: u64, end: u64, target: u64, marks: &mut Vec<u64>) -> End {
        let (mut at, mut before, mut marked) = (from, None, from);
        loop {
            let Some((head, bytes, next)) = self.step(at, end, before) else { return self.gave_up() };
            if bytes == FENCE {
                let other = self.head(next, end).is_some_and(|head| size(head) == FENCE);
                return if other { End::Fence(next + FENCE) } else { End::Odd };
            }
            if target < next {
                return self.arrived(Chunk { start: at, bytes, free: false }, head, end);
            }
            if next - marked >= MARK_BYTES {
                marks.push(next);
                marked = next;
            }
            (at, before) = (next, Some(bytes));
        }
    }

    /// The head of the chunk at `at`, its size and where the next one is; none where it is none.
    fn step(&mut self, at: u64, end: u64, before: Option<u64>) -> Option<(Head, u64, u64)> {
        self.left_chunks = self.left_chunks.checked_sub(1)?;
        let head = self.head(at, end)?;
        let bytes = size(head);
        let next = at.checked_add(bytes).filter(|&next| next <= end)?;
        let fits = bytes.is_multiple_of(ALIGNMENT)
            && (bytes >= LEAST_CHUNK || bytes == FENCE)
            && head[1] & self.forbidden == 0;
        let follows = head[1] & PREVIOUS_IN_USE != 0 || before.is_none_or(|before| head[0] == before);
        (fits && follows).then_some((head, bytes, next))
    }

    /// Looks at what follows the chunk: whether that fits, and whether the chunk is in use.
    fn arrived(&mut self, chunk: Chunk, head: Head, end: u64) -> End {
        let next = chunk.start + chunk.bytes;
        if next == end {
            return self.unchanged(Chunk { free: true, ..chunk }, head, None);
        }
        let (mut at, mut before, mut follower) = (next, chunk.bytes, None);
        for _ in 0..MORE_CHUNKS {
            let Some((head, bytes, next)) = self.step(at, end, Some(before)) else {
                // The last heap of an arena but one ends in a chunk of no size.
                let ends = self.head(at, end).is_some_and(|head| size(head) == 0) && at + FENCE == end;
                if ends && follower.is_some() {
                    break;
                }
                return self.gave_up();
            };
            follower.get_or_insert(head);
            if next == end || bytes == FENCE {
                break;
            }
            (at, before) = (next, bytes);
        }
        let free = follower.is_some_and(|head| head[1] & PREVIOUS_IN_USE == 0);
        self.unchanged(Chunk { free, ..chunk }, head, follower)
    }

    /// The chunk, if its head and the next one's are still what they were.
    fn unchanged(&self, chunk: Chunk, head: Head, follower: Option<Head>) -> End {
        let again = |at, was: Head| Window::new(self.memory, usize::MAX).head(at).is_some_and(|now| now[1] == was[1]);
        let same = again(chunk.start, head) && follower.is_none_or(|was| again(chunk.start + chunk.bytes, was));
        if same { End::Chunk(chunk) } else { End::Odd }
    }

    fn gave_up(&self) -> End {
        if self.left_chunks == 0 || self.window.is_spent() { End::TooLong } else { End::Odd }
    }

    fn head(&mut self, at: u64, end: u64) -> Option<Head> {
        if at.checked_add(FENCE)? <= end { self.window.head(at) } else { None }
    }
}

fn size(head: Head) -> u64 {
    head[1] & !7
}
