//! A segment: the blocks that a stretch of a stack lies in, and how it hangs together with those before and after it.
//!
//! ```text
//!  end of the block  ┌──────────────────────────┐
//!                    │ Segment, 64 bytes        │  at the top, so that a small stack touches one page
//!  high              ├──────────────────────────┤
//!                    │ frames, downwards        │
//!  guard             ├──────────────────────────┤  a frame that would end below goes on elsewhere
//!                    │ headroom                 │  for code that does not check: libc, the kernel's signal frames
//!                    ├──────────────────────────┤
//!                    │ a page that traps        │  where the kernel has such without a mapping of their own
//!  low               └──────────────────────────┘  may move down: a segment grows into the blocks below while they are free
//! ```
//! Segments are a list. `next` is kept after its frames have returned, so that the next call across the border costs no allocation;
//! `prev` is the one whose frames called into this one, and is written by who enters it: a handler may put another segment between
//! two of which the first is just being left for the second.

#![allow(unsafe_code, reason = "a list of raw memory, which no owner in Rust's sense has")]

use core::ptr::{NonNull, null_mut};

use crate::limit;

/// Bytes of a block. The smaller, the less of the page tables a coroutine takes: 0.06 KiB.
pub(crate) const BLOCK_BYTES: usize = 32 << 10;
/// Blocks that a segment begins with that can grow.
pub(crate) const FIRST_BLOCKS: usize = 2;
/// What lies below the guard for frames that do not check, the page that traps among it. Of libc, printf of the largest long double takes
/// 34 KiB, regcomp of a nested pattern 35, glob 22, strtold 18; a signal frame with AVX-512 registers 3.5.
pub(crate) const HEADROOM_BYTES: usize = 44 << 10;
/// The same in a segment of one block, which is a coroutine's first.
const SMALL_HEADROOM_BYTES: usize = 28 << 10;

/// How much of the stack that the system gave a thread is used before its blocks, unless `FIELDSTONE_STACK_FIRST` asks for more
/// ([`limit::first_bytes`]): about a block, so that a program behaves alike in every thread, and as it would where nothing contiguous
/// is given.
pub(crate) const FIRST_BYTES: usize = 64 << 10;

pub(crate) const PAGE_BYTES: usize = 4096;

/// For what is between frames: a return address, alignment, a small frame that is not counted.
pub(crate) const SLACK_BYTES: usize = 512;

/// A segment's record. The assembly knows the offsets of its words.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Segment {
    /// Frames end above it.
    pub(crate) guard: usize,
    /// The lowest byte.
    pub(crate) low: usize,
    /// Frames begin below it. For a segment of blocks it is the record's own address.
    pub(crate) high: usize,
    pub(crate) prev: *mut Segment,
    pub(crate) next: *mut Segment,
    /// Memory that alloca could not have from the stack.
    pub(crate) dynamic: *mut crate::dynamic::Dynamic,
    /// What a call may need that begins it.
    pub(crate) room_bytes: usize,
    /// The frame record of the call that led here, in the segment before.
    pub(crate) entered_from: usize,
}

/// The words that the assembly uses.
pub(crate) mod offset {
    use super::Segment;
    use core::mem::offset_of;

    pub(crate) const GUARD: usize = offset_of!(Segment, guard);
    pub(crate) const LOW: usize = offset_of!(Segment, low);
    pub(crate) const HIGH: usize = offset_of!(Segment, high);
    pub(crate) const PREV: usize = offset_of!(Segment, prev);
    pub(crate) const NEXT: usize = offset_of!(Segment, next);
    pub(crate) const ROOM: usize = offset_of!(Segment, room_bytes);
    pub(crate) const DYNAMIC: usize = offset_of!(Segment, dynamic);
    pub(crate) const ENTERED_FROM: usize = offset_of!(Segment, entered_from);
}

impl Segment {
    /// A segment that no thread has.
    pub(crate) const fn none() -> Self {
        Self {
            guard: 0,
            low: 0,
            high: 0,
            prev: null_mut(),
            next: null_mut(),
            dynamic: null_mut(),
            room_bytes: 0,
            entered_from: 0,
        }
    }

    /// Makes `blocks` blocks from `low` on a segment that hangs on nothing.
    ///
    /// # Safety
    /// The blocks are the caller's, and neighbours.
    pub(crate) unsafe fn of_blocks(low: NonNull<u8>, blocks: usize) -> NonNull<Self> {
        let end = blocks * BLOCK_BYTES;
        // SAFETY: the record lies in the last block, and is aligned as the blocks are.
        let made = unsafe { low.add(end - size_of::<Self>()) }.cast::<Self>();
        let mut record = Self { high: made.addr().get(), ..Self::none() };
        record.reach_down_to(low.addr().get());
        // SAFETY: nobody else has the memory.
        unsafe { made.write(record) };
        made
    }

    /// Whether it is made of blocks, rather than what the system gave the thread.
    pub(crate) fn is_of_blocks(&self) -> bool {
        self.high == core::ptr::from_ref(self).addr()
    }

    /// Blocks that it is made of.
    pub(crate) fn blocks(&self) -> usize {
        (self.high + size_of::<Self>() - self.low) / BLOCK_BYTES
    }

    /// Bytes that it holds; of what the system gave a thread, those that are taken for its stack.
    pub(crate) fn bytes(&self) -> usize {
        let all = self.high - self.low;
        if self.is_of_blocks() { all } else { all.min(limit::first_bytes().saturating_add(HEADROOM_BYTES)) }
    }

    /// Whether a stack pointer points into it.
    pub(crate) fn contains(&self, stack_pointer: usize) -> bool {
        (self.low..=self.high).contains(&stack_pointer)
    }

    /// Bytes of it and of the segments before it.
    pub(crate) fn held_bytes(&self) -> usize {
        // SAFETY: segments on a list live.
        let before = |segment: &&Self| unsafe { segment.prev.as_ref() };
        core::iter::successors(Some(self), before).map(Self::bytes).sum()
    }

    /// Whether frames of `bytes` below `stack_pointer`, which points into it, end above the guard.
    pub(crate) fn has_room(&self, stack_pointer: usize, bytes: usize) -> bool {
        stack_pointer.checked_sub(bytes).is_some_and(|end| end >= self.guard)
    }

    /// Takes in what lies between `low` and where it ended, which the caller has taken for it.
    pub(crate) fn reach_down_to(&mut self, low: usize) {
        self.low = low;
        self.guard = low + headroom_bytes(self.blocks());
        self.room_bytes = self.high - self.guard - SLACK_BYTES;
    }
}

/// What lies below the guard of a segment of so many blocks.
const fn headroom_bytes(blocks: usize) -> usize {
    if blocks == 1 { SMALL_HEADROOM_BYTES } else { HEADROOM_BYTES }
}

/// Blocks of a segment in which frames of `bytes` end above the guard.
pub(crate) fn blocks_for(bytes: usize) -> usize {
    let fits = |blocks| bytes.saturating_add(headroom_bytes(blocks) + size_of::<Segment>()) <= blocks * BLOCK_BYTES;
    let whole = bytes.saturating_add(HEADROOM_BYTES + size_of::<Segment>()).div_ceil(BLOCK_BYTES);
    if fits(1) { 1 } else { whole }
}

/// Puts `made` between a segment and the one after it, which keeps its `prev`: somebody may be about to return from there.
///
/// # Safety
/// Both are records that live, `made` hangs on nothing, and no other thread has either.
pub(crate) unsafe fn insert_after(segment: NonNull<Segment>, made: NonNull<Segment>) {
    // SAFETY: by contract; the segment after is of the same list, and lives as long as it is on it.
    unsafe {
        let after = (*segment.as_ptr()).next;
        (*made.as_ptr()).prev = segment.as_ptr();
        (*made.as_ptr()).next = after;
        (*segment.as_ptr()).next = made.as_ptr();
    }
}
