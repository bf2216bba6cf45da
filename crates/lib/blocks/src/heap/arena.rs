//! Memory from the kernel for the pool's own tables, in a program whose global allocator is on the
//! pool.
//!
//! The records of the pool and its frames come from the global allocator. That allocator calls the
//! pool, which may be changing these records. So an allocation comes from the arena if its thread
//! is inside the crate's internals and no slab can serve it at once. Such allocations are few and
//! small.
//!
//! ```text
//!  0.. | 0.. | small | small | ... | 0.. | small | ... | large, at a block's start | ...  ^ next
//!       each block of small pieces begins with a zeroed slab header: no thread owns it
//! ```
//! Sizes are powers of two, each with a list of free pieces.

#![allow(unsafe_code, reason = "maps memory and allocates from it")]

use core::alloc::Layout;
use core::ptr::{self, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::slab::HEADER_BYTES;

/// The block size, which is the slab size. A rarely used class takes one block.
pub(super) const BLOCK_BYTES: usize = 64 << 10;

const SPAN_BYTES: usize = 1 << 30;
const LEAST_SPAN_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Arena {
    start: AtomicUsize,
    end: AtomicUsize,
    state: Mutex<ArenaState>,
}

#[derive(Debug)]
struct ArenaState {
    next: usize,
    /// The first free piece of each power of two; its first word is the next piece's address.
    free: [usize; usize::BITS as usize],
}

impl Arena {
    pub(super) const fn new() -> Self {
        let state = ArenaState { next: 0, free: [0; usize::BITS as usize] };
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    pub(super) fn contains(&self, address: usize) -> bool {
        let end = self.end.load(Ordering::Acquire);
        (self.start.load(Ordering::Acquire)..end).contains(&address)
    }

    /// Allocates a piece; null when there is no memory.
    pub(super) fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bytes) = piece_bytes(layout) else { return null_mut() };
        let list = &mut state.free[bytes.trailing_zeros() as usize];
        if *list != 0 {
            let piece = ptr::with_exposed_provenance_mut::<usize>(*list);
            // SAFETY: a listed piece is a free part of the span whose first word is the next
            // piece's address.
            *list = unsafe { *piece };
            return piece.cast();
        }
        if state.next == 0 && !self.map(&mut state) {
            return null_mut();
        }
        let start = state.place(bytes);
        if start.checked_add(bytes).is_none_or(|end| end > self.end.load(Ordering::Relaxed)) {
            return null_mut();
        }
        state.next = start + bytes;
        ptr::with_exposed_provenance_mut(start)
    }

    /// Frees a piece.
    ///
    /// # Safety
    /// The piece came from [`Arena::alloc`] with this layout, and nothing uses it any more.
    pub(super) unsafe fn free(&self, piece: *mut u8, layout: Layout) {
        let Some(bytes) = piece_bytes(layout) else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let list = &mut state.free[bytes.trailing_zeros() as usize];
        // SAFETY: a piece has at least 16 bytes, is aligned to 16, and is unused by contract.
        unsafe { ptr::with_exposed_provenance_mut::<usize>(piece.addr()).write(*list) };
        *list = piece.addr();
    }

    /// Reserves the span. The kernel supplies memory at the first access.
    fn map(&self, state: &mut ArenaState) -> bool {
        let mut bytes = SPAN_BYTES;
        while bytes >= LEAST_SPAN_BYTES {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the kernel chooses the address, so no existing mapping changes.
            let span = unsafe { mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE | MapFlags::NORESERVE) };
            if let Ok(span) = span {
                let start = span.expose_provenance();
                state.next = start.next_multiple_of(BLOCK_BYTES);
                // `end` is stored last and read first, so in between the span is empty.
                self.start.store(state.next, Ordering::Release);
                self.end.store(start + bytes, Ordering::Release);
                return true;
            }
            bytes /= 2;
        }
        false
    }
}

impl ArenaState {
    /// The start of the next piece of `bytes` bytes.
    fn place(&self, bytes: usize) -> usize {
        let start = self.next.next_multiple_of(bytes.min(BLOCK_BYTES));
        // Pieces are aligned to their size, so a small one never crosses a block border but may
        // start at one.
        let skip = if bytes < BLOCK_BYTES && start.is_multiple_of(BLOCK_BYTES) { bytes.max(HEADER_BYTES) } else { 0 };
        start + skip
    }
}

/// Bytes of the piece for a layout, a power of two. The piece is aligned to its size, up to a
/// block.
fn piece_bytes(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(super::class::MIN_ALIGN);
    (layout.align() <= BLOCK_BYTES).then(|| bytes.checked_next_power_of_two()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support these mapping flags")]
    fn pieces_are_disjoint_aligned_and_reused() {
        let arena = Arena::new();
        let layouts = [(1, 1), (24, 8), (300, 128), (32_768, 16), (40_000, 8), (65_536, 65_536), (128, 128)];
        let layouts = layouts.map(|(bytes, align)| Layout::from_size_align(bytes, align).unwrap());
        let mut taken = std::collections::BTreeMap::new();
        for layout in layouts.iter().cycle().take(700) {
            let piece = arena.alloc(*layout);
            assert!(!piece.is_null() && piece.addr().is_multiple_of(layout.align()) && arena.contains(piece.addr()));
            assert_eq!(piece.addr().is_multiple_of(BLOCK_BYTES), layout.size() > BLOCK_BYTES / 2, "{layout:?}");
            if layout.size() <= BLOCK_BYTES / 2 {
                assert!(piece.addr() % BLOCK_BYTES >= HEADER_BYTES);
            }
            taken.insert(piece.addr(), (piece, *layout));
        }
        assert_eq!(taken.len(), 700);
        let ends = taken.iter().map(|(start, (_, layout))| start + layout.size());
        assert!(ends.zip(taken.keys().skip(1)).all(|(end, &next)| end <= next));
        for &(piece, layout) in taken.values() {
            // SAFETY: each piece was allocated with this layout, and is freed once.
            unsafe { arena.free(piece, layout) };
        }
        assert!(layouts.iter().all(|&layout| taken.contains_key(&arena.alloc(layout).addr())));
        assert!(!arena.contains((&raw const arena).addr()));
    }
}
