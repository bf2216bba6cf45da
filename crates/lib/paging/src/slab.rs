//! Memory for compressed pages: blocks of multiples of 64 bytes, up to a page and a line.
//!
//! ```text
//! spans of 64 KiB:   | block | block | ... |      one size a span
//! Span               size class | free blocks: a bit each | neighbours in the list of its class
//! classes            first span of each class that has a free block
//! empty              spans without a used block: their memory is returned to the system
//! ```
//! A block is named by its offset in units of 64 bytes.
//!
//! Invariants: a span is in the list of its class exactly while it has both free and used blocks,
//! and in the list of empty spans exactly while it has no used block. Cost: a put and a free each
//! take some 20 ns.

#![allow(unsafe_code, reason = "hands out parts of the arena")]

use core::ptr::NonNull;

use crate::arena::Arena;
use crate::kernel;

/// The granularity of blocks.
pub(crate) const UNIT: usize = 64;
const SPAN: usize = 64 << 10;
const UNITS: usize = SPAN / UNIT;
/// The largest block, in units: a page and its header.
const MAX_UNITS: usize = 65;
/// No span.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Span {
    /// Units of a block; 0 for an empty span.
    class: u16,
    used: u16,
    next: u32,
    previous: u32,
    /// A bit for each free block.
    free: [u64; UNITS / 64],
}

/// The allocator.
#[derive(Debug)]
pub(crate) struct Slab {
    memory: NonNull<u8>,
    spans: NonNull<Span>,
    /// Spans that exist.
    capacity: usize,
    /// Spans that were used at least once.
    begun: usize,
    /// The first span with a free block, by class.
    partial: [u32; MAX_UNITS + 1],
    empty: u32,
    /// Bytes of spans that are not empty.
    bytes: usize,
}

// SAFETY: the memory belongs to the slab alone.
unsafe impl Send for Slab {}

impl Slab {
    /// One that has no room.
    #[cfg(feature = "std")]
    pub(crate) const NONE: Self = Self {
        memory: NonNull::dangling(),
        spans: NonNull::dangling(),
        capacity: 0,
        begun: 0,
        partial: [NONE; MAX_UNITS + 1],
        empty: NONE,
        bytes: 0,
    };

    /// Bytes of an arena for a slab of `bytes` alone.
    #[cfg(feature = "std")]
    pub(crate) fn arena_bytes(bytes: usize) -> usize {
        let capacity = Self::capacity(bytes);
        (capacity * size_of::<Span>()).next_multiple_of(kernel::PAGE) + (capacity + 1) * SPAN
    }

    /// Spans of a slab: at least one, and at most those that a key of 29 bits can name.
    fn capacity(bytes: usize) -> usize {
        (bytes / SPAN).clamp(1, (1 << 29) / UNITS)
    }

    /// One of at most `bytes`, in the arena. `None` when that has no room.
    pub(crate) fn new(arena: &Arena, bytes: usize) -> Option<Self> {
        let capacity = Self::capacity(bytes);
        let spans = arena.take(capacity * size_of::<Span>())?.cast();
        let memory = arena.take((capacity + 1) * SPAN)?;
        // Spans start at multiples of their size, so that whole pages are returned to the system.
        // SAFETY: the memory has a span more than are used.
        let memory = unsafe { memory.add(memory.align_offset(SPAN)) };
        Some(Self { memory, spans, capacity, begun: 0, partial: [NONE; MAX_UNITS + 1], empty: NONE, bytes: 0 })
    }

    /// Bytes of memory in use.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    fn span(&mut self, index: u32) -> &mut Span {
        debug_assert!((index as usize) < self.capacity);
        // SAFETY: the array has `capacity` entries, for which zeros are valid, and `self` owns it.
        unsafe { self.spans.add(index as usize).as_mut() }
    }

    /// A block with room for `bytes`, by its name; `None` when the slab is full.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<u32> {
        let class = bytes.div_ceil(UNIT);
        debug_assert!((1..=MAX_UNITS).contains(&class));
        let index = match self.partial[class] {
            NONE => self.begin_span(class)?,
            index => index,
        };
        let span = self.span(index);
        let word = span.free.iter().position(|&word| word != 0)?;
        let block = word * 64 + span.free[word].trailing_zeros() as usize;
        span.free[word] &= span.free[word] - 1;
        span.used += 1;
        if usize::from(span.used) == UNITS / class {
            self.unlink(index, class);
        }
        Some((index as usize * UNITS + block * class) as u32)
    }

    /// Frees a block.
    pub(crate) fn free(&mut self, name: u32) {
        let (index, offset) = (name / UNITS as u32, name as usize % UNITS);
        let span = self.span(index);
        let class = usize::from(span.class);
        let block = offset / class;
        debug_assert!(span.free[block / 64] & 1 << (block % 64) == 0, "a block is freed once");
        let was_full = usize::from(span.used) == UNITS / class;
        span.free[block / 64] |= 1 << (block % 64);
        span.used -= 1;
        let is_empty = span.used == 0;
        if was_full {
            self.link(index, class);
        }
        if is_empty {
            self.end_span(index, class);
        }
    }

    /// The memory of a block.
    pub(crate) fn at(&self, name: u32) -> NonNull<u8> {
        // SAFETY: names are offsets inside the memory, because only `take` makes them.
        unsafe { self.memory.add(name as usize * UNIT) }
    }

    /// Makes a span with free blocks of a class; it is the first of its list.
    fn begin_span(&mut self, class: usize) -> Option<u32> {
        let index = match self.empty {
            NONE if self.begun == self.capacity => return None,
            NONE => {
                self.begun += 1;
                (self.begun - 1) as u32
            }
            index => {
                self.empty = self.span(index).next;
                index
            }
        };
        let blocks = UNITS / class;
        let free = core::array::from_fn(|word| match blocks.saturating_sub(word * 64) {
            0 => 0,
            left @ ..64 => (1 << left) - 1,
            _ => u64::MAX,
        });
        *self.span(index) = Span { class: class as u16, used: 0, next: NONE, previous: NONE, free };
        self.bytes += SPAN;
        self.link(index, class);
        Some(index)
    }

    fn end_span(&mut self, index: u32, class: usize) {
        self.unlink(index, class);
        let next = self.empty;
        let span = self.span(index);
        (span.class, span.next) = (0, next);
        self.empty = index;
        self.bytes -= SPAN;
        let start = self.at(index * UNITS as u32).addr().get();
        // SAFETY: the span has no used block, so nothing uses its contents.
        unsafe { kernel::discard(start..start + SPAN) };
    }

    fn link(&mut self, index: u32, class: usize) {
        let first = self.partial[class];
        let span = self.span(index);
        (span.next, span.previous) = (first, NONE);
        if first != NONE {
            self.span(first).previous = index;
        }
        self.partial[class] = index;
    }

    fn unlink(&mut self, index: u32, class: usize) {
        let Span { next, previous, .. } = *self.span(index);
        if previous == NONE {
            self.partial[class] = next;
        } else {
            self.span(previous).next = next;
        }
        if next != NONE {
            self.span(next).previous = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
        #[test]
        fn blocks_do_not_overlap_and_all_memory_comes_back(
            steps in proptest::collection::vec((any::<bool>(), 1..=4098_usize, any::<prop::sample::Index>()), 0..400),
        ) {
            let arena = Arena::reserve(64 << 20).unwrap();
            let mut slab = Slab::new(&arena, 1 << 20).unwrap();
            let mut blocks: BTreeMap<usize, usize> = BTreeMap::new();
            for (is_take, bytes, index) in steps {
                if is_take {
                    let Some(name) = slab.take(bytes) else { continue };
                    let start = name as usize * UNIT;
                    let below = blocks.range(..=start).next_back();
                    prop_assert!(below.is_none_or(|(&at, &bytes)| at + bytes <= start));
                    let above = blocks.range(start..).next();
                    prop_assert!(above.is_none_or(|(&at, _)| start + bytes <= at));
                    blocks.insert(start, bytes);
                } else if !blocks.is_empty() {
                    let start = *index.get(&blocks.keys().copied().collect::<Vec<_>>());
                    blocks.remove(&start);
                    slab.free((start / UNIT) as u32);
                }
            }
            for start in blocks.into_keys() {
                slab.free((start / UNIT) as u32);
            }
            prop_assert_eq!(slab.bytes(), 0);
        }
    }
}
