//! A segment: the blocks of a contiguous part of a stack, linked with the segments before and after
//! it.
//!
//! ```text
//!  end of the block  ┌──────────────────────────┐
//!                    │ StackSegment, 64 bytes   │  at the top, so that a small stack touches one page
//!  high              ├──────────────────────────┤
//!                    │ frames, downwards        │
//!  guard             ├──────────────────────────┤  a frame that would end below continues in another segment
//!                    │ headroom                 │  for code that does not check: libc, the kernel's signal frames
//!                    ├──────────────────────────┤
//!                    │ trap page                │  if the kernel supports guard pages without a mapping of their own
//!  low               └──────────────────────────┘  may move down: a segment extends into free blocks below
//! ```
//! Segments form a list. `next` is kept after its frames have returned, so that the next call
//! across the border allocates nothing. `prev` is the segment whose frames called into this one. It
//! is written on entry: a handler may have inserted a segment between two of which the first is
//! just being left for the second.

#![allow(unsafe_code, reason = "a list in raw memory without a Rust owner")]

use core::ptr::{NonNull, null_mut};

use crate::settings;

/// Bytes of a block. Smaller blocks reduce a coroutine's share of page tables, here 0.06 KiB.
pub(crate) const BLOCK_BYTES: usize = 32 << 10;
/// Initial blocks of a segment that can grow.
pub(crate) const FIRST_BLOCKS: usize = 2;
/// Bytes below the guard for frames that do not check, including the trap page. In libc, printf of
/// the largest long double takes 34 KiB, regcomp of a nested pattern 35, glob 22, strtold 18; a
/// signal frame with AVX-512 registers 3.5.
pub(crate) const HEADROOM_BYTES: usize = 44 << 10;
/// The headroom in a segment of one block, which is a coroutine's first.
const SMALL_HEADROOM_BYTES: usize = 28 << 10;

pub(crate) const PAGE_BYTES: usize = 4096;

/// Allowance between frames: a return address, alignment, a small frame that is not counted.
pub(crate) const SLACK_BYTES: usize = 512;

/// The record in front of memory for alloca.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct DynamicMemory {
    pub(crate) next: *mut DynamicMemory,
    pub(crate) blocks: usize,
    /// The frame pointer of the function that requested it.
    pub(crate) frame: usize,
}

/// The record of a segment. The assembly uses the offsets of its words.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct StackSegment {
    /// Frames end above this address.
    pub(crate) guard: usize,
    /// The lowest byte.
    pub(crate) low: usize,
    /// Frames begin below this address. For a segment of blocks it is the record's own address.
    pub(crate) high: usize,
    pub(crate) prev: *mut StackSegment,
    pub(crate) next: *mut StackSegment,
    /// Memory for alloca that does not fit on the stack.
    pub(crate) dynamic: *mut DynamicMemory,
    /// Bytes available to the first call in the segment.
    pub(crate) usable_bytes: usize,
    /// The frame of the `__morestack` call that entered the segment, in the previous segment.
    pub(crate) entered_from: usize,
}

/// The offsets that the assembly uses.
pub(crate) mod offset {
    use super::StackSegment;
    use core::mem::offset_of;

    pub(crate) const GUARD: usize = offset_of!(StackSegment, guard);
    pub(crate) const LOW: usize = offset_of!(StackSegment, low);
    pub(crate) const HIGH: usize = offset_of!(StackSegment, high);
    pub(crate) const PREV: usize = offset_of!(StackSegment, prev);
    pub(crate) const NEXT: usize = offset_of!(StackSegment, next);
    pub(crate) const ROOM: usize = offset_of!(StackSegment, usable_bytes);
    pub(crate) const DYNAMIC: usize = offset_of!(StackSegment, dynamic);
    pub(crate) const ENTERED_FROM: usize = offset_of!(StackSegment, entered_from);
}

impl StackSegment {
    /// A segment without memory.
    pub(crate) const fn empty() -> Self {
        Self {
            guard: 0,
            low: 0,
            high: 0,
            prev: null_mut(),
            next: null_mut(),
            dynamic: null_mut(),
            usable_bytes: 0,
            entered_from: 0,
        }
    }

    /// Creates an unlinked segment of `blocks` blocks from `low` on.
    ///
    /// # Safety
    /// The caller owns the blocks, which are adjacent.
    pub(crate) unsafe fn from_blocks(low: NonNull<u8>, blocks: usize) -> NonNull<Self> {
        let end = blocks * BLOCK_BYTES;
        // SAFETY: the record is in the last block, and blocks are aligned more strictly.
        let made = unsafe { low.add(end - size_of::<Self>()) }.cast::<Self>();
        let mut record = Self { high: made.addr().get(), ..Self::empty() };
        record.extend_down_to(low.addr().get());
        // SAFETY: by contract the caller owns the memory.
        unsafe { made.write(record) };
        made
    }

    /// Whether the segment is made of blocks, and is not the system's stack.
    pub(crate) fn is_made_of_blocks(&self) -> bool {
        self.high == core::ptr::from_ref(self).addr()
    }

    /// The number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        (self.high + size_of::<Self>() - self.low) / BLOCK_BYTES
    }

    /// Bytes held; for the system's stack, the bytes that this crate uses.
    pub(crate) fn bytes(&self) -> usize {
        let all = self.high - self.low;
        if self.is_made_of_blocks() { all } else { all.min(settings::first_bytes().saturating_add(HEADROOM_BYTES)) }
    }

    /// Whether the stack pointer is in the segment.
    pub(crate) fn contains(&self, stack_pointer: usize) -> bool {
        (self.low..=self.high).contains(&stack_pointer)
    }

    /// Bytes held by the segment and all segments before it.
    pub(crate) fn held_bytes(&self) -> usize {
        // SAFETY: segments on a list live.
        let before = |segment: &&Self| unsafe { segment.prev.as_ref() };
        core::iter::successors(Some(self), before).map(Self::bytes).sum()
    }

    /// Whether frames of `bytes` below `stack_pointer`, which is in the segment, end above the
    /// guard.
    pub(crate) fn fits(&self, stack_pointer: usize, bytes: usize) -> bool {
        stack_pointer.checked_sub(bytes).is_some_and(|end| end >= self.guard)
    }

    /// Extends the segment down to `low`. The caller has allocated the memory.
    pub(crate) fn extend_down_to(&mut self, low: usize) {
        self.low = low;
        self.guard = low + headroom_bytes(self.blocks());
        self.usable_bytes = self.high - self.guard - SLACK_BYTES;
    }
}

/// Bytes below the guard of a segment of `blocks` blocks.
const fn headroom_bytes(blocks: usize) -> usize {
    if blocks == 1 { SMALL_HEADROOM_BYTES } else { HEADROOM_BYTES }
}

/// The number of blocks of a segment in which frames of `bytes` end above the guard.
pub(crate) fn blocks_for(bytes: usize) -> usize {
    let fits =
        |blocks| bytes.saturating_add(headroom_bytes(blocks) + size_of::<StackSegment>()) <= blocks * BLOCK_BYTES;
    let whole = bytes.saturating_add(HEADROOM_BYTES + size_of::<StackSegment>()).div_ceil(BLOCK_BYTES);
    if fits(1) { 1 } else { whole }
}

/// Inserts `made` after a segment. The segment after it keeps its `prev`, since a thread may be
/// about to return from there.
///
/// # Safety
/// Both records live, `made` is unlinked, and no other thread accesses either.
pub(crate) unsafe fn insert_after(segment: NonNull<StackSegment>, made: NonNull<StackSegment>) {
    // SAFETY: by contract both live; the following segment is on the same list, so it lives, too.
    unsafe {
        let after = (*segment.as_ptr()).next;
        (*made.as_ptr()).prev = segment.as_ptr();
        (*made.as_ptr()).next = after;
        (*segment.as_ptr()).next = made.as_ptr();
    }
}

/// The segment that contains the stack pointer: this one or an earlier one; `None` if none does.
pub(crate) fn find_containing(from: NonNull<StackSegment>, stack_pointer: usize) -> Option<NonNull<StackSegment>> {
    let mut at = Some(from);
    while let Some(segment) = at {
        // SAFETY: segments on the list live.
        let segment_ref = unsafe { segment.as_ref() };
        if segment_ref.contains(stack_pointer) {
            return Some(segment);
        }
        at = NonNull::new(segment_ref.prev);
    }
    None
}
