//! Contexts: separate stacks for coroutines and user threads. And iteration over the ranges of a
//! stack.
//!
//! A context is ten words, of which three are used:
//!
//! ```text
//! [0] the segment of its stack pointer     [1] its guard     [2] its first segment
//! ```
//! Code that switches stacks (swapcontext, Boost.Context) saves the old context with `get` and then
//! sets the new one with `set`. A context's first segment is one block with the record in it; a
//! small stack touches one page of it, 4 KiB.

#![allow(unsafe_code, reason = "returns raw memory and sets the current stack")]

use core::ptr::{NonNull, null_mut};

use crate::segment::{PAGE_BYTES, StackSegment};
use crate::signals::BlockedSignals;
use crate::thread::{self, ThreadStack};
use crate::{arena, release, segment};

/// A stack separate from the thread's own.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StackContext {
    current: *mut StackSegment,
    guard: usize,
    first: *mut StackSegment,
    /// Words for the caller's use.
    pub spare: [usize; 7],
}

impl StackContext {
    /// A context without a stack.
    pub const EMPTY: Self = Self { current: null_mut(), guard: 0, first: null_mut(), spare: [0; 7] };

    /// Allocates a stack with space for `bytes` at once. It grows when it needs more.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(bytes: usize) -> fieldstone_blocks::Result<Self> {
        let _signals = BlockedSignals::new();
        let first = arena::allocate_packed(bytes)?.as_ptr();
        // SAFETY: the segment was just created.
        Ok(Self { current: first, guard: unsafe { (*first).guard }, first, ..Self::EMPTY })
    }

    /// Saves the calling thread's current stack, for a later `set`.
    pub fn get(&mut self) {
        thread::init_thread();
        // SAFETY: the record belongs to the calling thread.
        (self.current, self.guard) = (unsafe { (*ThreadStack::current_thread()).current }, thread::guard());
    }

    /// Sets this stack as the calling thread's current one.
    ///
    /// # Safety
    /// The caller switches to that stack at once, and until then calls nothing that may need more
    /// stack.
    pub unsafe fn set(&self) {
        // A context may be the thread's first use of this crate: set its limit and destructor.
        thread::init_thread();
        // SAFETY: the record belongs to the calling thread.
        unsafe { (*ThreadStack::current_thread()).current = self.current };
        thread::set_guard(self.guard);
    }

    /// The lowest byte and the size of the memory for the first segment's frames, without the trap
    /// page. The stack grows downwards from its end.
    #[must_use]
    pub fn bounds(&self) -> (*mut u8, usize) {
        // SAFETY: a created context has a first segment, which lives as long as the context.
        let first = unsafe { &*self.first };
        let low = first.low + PAGE_BYTES;
        (core::ptr::without_provenance_mut(low), first.high - low)
    }

    /// The newest segment and its lowest byte; `None` without a stack.
    #[doc(hidden)]
    #[must_use]
    pub fn newest(&self) -> Option<(usize, usize)> {
        // SAFETY: a saved or created context has a live segment.
        unsafe { self.current.as_ref() }.map(|current| (self.current.expose_provenance(), current.low))
    }

    /// Empties the stack, so that it can be used from its beginning.
    ///
    /// # Safety
    /// Nothing uses the stack's contents any more.
    pub unsafe fn reset(&mut self) {
        let _signals = BlockedSignals::new();
        // SAFETY: the first segment lives, and by contract no frame is in it or in later ones.
        unsafe {
            let first = &mut *self.first;
            release::free_dynamic(first);
            release::free_after(first);
            (self.current, self.guard) = (self.first, first.guard);
        }
    }

    /// Frees the stack.
    ///
    /// # Safety
    /// Nothing uses the stack's contents any more, and the context is not used until it is created
    /// again.
    pub unsafe fn release(&mut self) {
        if self.first.is_null() {
            return;
        }
        // SAFETY: by contract nothing uses the stack's contents.
        unsafe { self.reset() };
        let _signals = BlockedSignals::new();
        if let Some(first) = NonNull::new(self.first) {
            // SAFETY: the segment is on no list, and nothing uses it.
            unsafe { release::free_segment(first) };
        }
        *self = Self::EMPTY;
    }
}

/// The used ranges of the calling thread's stack, newest first, for example for a garbage
/// collector's root scan.
#[derive(Debug)]
pub struct StackRanges {
    segment: *const StackSegment,
    stack_pointer: usize,
}

impl StackRanges {
    /// The ranges of the calling thread's stack, from the caller's frame on.
    #[must_use]
    pub fn here() -> Self {
        let stack_pointer = thread::stack_pointer();
        // SAFETY: the record belongs to the calling thread.
        let current = NonNull::new(unsafe { (*ThreadStack::current_thread()).current });
        let segment = current
            .map_or(null_mut(), |current| segment::find_containing(current, stack_pointer).unwrap_or(current).as_ptr());
        Self { segment, stack_pointer }
    }

    /// The iterator's state as two words, which can be stored.
    #[must_use]
    pub fn as_raw(&self) -> (usize, usize) {
        (self.segment.expose_provenance(), self.stack_pointer)
    }

    /// Restores an iterator from the words of `as_raw`.
    ///
    /// # Safety
    /// The words came from [`as_raw`](Self::as_raw), and no frame of the remaining ranges has
    /// returned since.
    #[must_use]
    pub unsafe fn from_raw((segment, stack_pointer): (usize, usize)) -> Self {
        Self { segment: core::ptr::with_exposed_provenance(segment), stack_pointer }
    }
}

impl Iterator for StackRanges {
    /// The lowest address of a range, and its size in bytes.
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        // SAFETY: the segments of a stack live as long as frames are in them.
        let segment = unsafe { self.segment.as_ref() }?;
        let range = (self.stack_pointer, segment.high.saturating_sub(self.stack_pointer));
        (self.segment, self.stack_pointer) = (segment.prev, segment.entered_from);
        Some(range)
    }
}
