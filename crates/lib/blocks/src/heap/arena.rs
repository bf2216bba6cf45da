//! Memory straight from the kernel for the pool's own tables, in a program whose global allocator is the pool.
//!
//! The pool's records, and those of its frames, come from the global allocator, which asks the pool, which may be at work on
//! these very records. So an allocation that is made while this thread holds a lock of ours, and that no slab can serve at once,
//! comes from here. There are few, and they are small beside what they record.
//!
//! ```text
//! span  | 0.. | small | small | ... | 0.. | small | ... | large, at a block's start | ...  ^ next
//!       each block of small ones begins with a slab's header of zeros: no thread owns it
//! ```
//! Sizes are powers of two, each with a list of what came back.

#![allow(unsafe_code, reason = "maps memory and hands it out")]

use core::alloc::Layout;
use core::ptr::{self, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::global::BLOCK_BYTES;
use super::slab::HEADER_BYTES;

const SPAN_BYTES: usize = 1 << 30;
const LEAST_SPAN_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Arena {
    start: AtomicUsize,
    end: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    next: usize,
    /// The first free piece of each power of two; its first word is the next one.
    free: [usize; usize::BITS as usize],
}

impl Arena {
    pub(super) const fn new() -> Self {
        let state = State { next: 0, free: [0; usize::BITS as usize] };
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    pub(super) fn contains(&self, address: usize) -> bool {
        let end = self.end.load(Ordering::Acquire);
        (self.start.load(Ordering::Acquire)..end).contains(&address)
    }

    /// Takes a piece; null when there is no memory.
    pub(super) fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bytes) = piece_bytes(layout) else { return null_mut() };
        let list = &mut state.free[bytes.trailing_zeros() as usize];
        if *list != 0 {
            let piece = ptr::with_exposed_provenance_mut::<usize>(*list);
            // SAFETY: what is on the list is a free piece of the span whose first word is the next one.
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

    /// Takes a piece back.
    ///
    /// # Safety
    /// It came from [`Arena::alloc`] with this layout, and nobody uses it any more.
    pub(super) unsafe fn free(&self, piece: *mut u8, layout: Layout) {
        let Some(bytes) = piece_bytes(layout) else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let list = &mut state.free[bytes.trailing_zeros() as usize];
        // SAFETY: a piece is 16 bytes or more and aligned to 16, and is ours again.
        unsafe { ptr::with_exposed_provenance_mut::<usize>(piece.addr()).write(*list) };
        *list = piece.addr();
    }

    /// Reserves the span. The kernel gives memory where it is touched.
    fn map(&self, state: &mut State) -> bool {
        let mut bytes = SPAN_BYTES;
        while bytes >= LEAST_SPAN_BYTES {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: no address is named, so nothing that exists is touched.
            let span = unsafe { mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE | MapFlags::NORESERVE) };
            if let Ok(span) = span {
                let start = span.expose_provenance();
                state.next = start.next_multiple_of(BLOCK_BYTES);
                // The end last, and read first: in between nothing is in the span.
                self.start.store(state.next, Ordering::Release);
                self.end.store(start + bytes, Ordering::Release);
                return true;
            }
            bytes /= 2;
        }
        false
    }
}

impl State {
    /// Where the next piece of so many bytes lies.
    fn place(&self, bytes: usize) -> usize {
        let start = self.next.next_multiple_of(bytes.min(BLOCK_BYTES));
        // Pieces are aligned to their size, so a small one never crosses a border, but may come to lie on one.
        let skip = if bytes < BLOCK_BYTES && start.is_multiple_of(BLOCK_BYTES) { bytes.max(HEADER_BYTES) } else { 0 };
        start + skip
    }
}

/// Bytes of the piece for a layout, a power of two; it is aligned to that, up to a block.
fn piece_bytes(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(super::class::MIN_ALIGN);
    (layout.align() <= BLOCK_BYTES).then(|| bytes.checked_next_power_of_two()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "maps with flags that Miri does not know")]
    fn pieces_are_apart_aligned_and_used_again() {
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
            // SAFETY: each was taken with this layout, and is given back once.
            unsafe { arena.free(piece, layout) };
        }
        assert!(layouts.iter().all(|&layout| taken.contains_key(&arena.alloc(layout).addr())));
        assert!(!arena.contains((&raw const arena).addr()));
    }
}
