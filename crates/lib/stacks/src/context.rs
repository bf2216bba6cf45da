//! Contexts: stacks of their own, for coroutines and user threads; and what a stack consists of.
//!
//! A context is ten words, of which we use three:
//!
//! ```text
//! [0] the segment that its stack is in     [1] its guard     [2] its first segment
//! ```
//! Who switches stacks (swapcontext, Boost.Context) puts the old context away with `get` before and sets the new one with `set`.
//! A context's first segment is one block, of which a small stack touches one page, with the record in it: 4 KiB.

#![allow(unsafe_code, reason = "gives out raw memory, and says where the stack is")]

use core::ptr::{NonNull, null_mut};

use crate::segment::{PAGE_BYTES, Segment};
use crate::thread::{self, BlockedSignals, Thread};
use crate::{arena, dynamic, more};

/// A context.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Context {
    current: *mut Segment,
    guard: usize,
    first: *mut Segment,
    /// Of the caller's.
    pub spare: [usize; 7],
}

impl Context {
    /// One that stands for no stack.
    pub const EMPTY: Self = Self { current: null_mut(), guard: 0, first: null_mut(), spare: [0; 7] };

    /// A new stack with room for `bytes` at once. It grows beyond by itself.
    ///
    /// # Errors
    /// Without memory.
    pub fn new(bytes: usize) -> fieldstone_blocks::Result<Self> {
        let _signals = BlockedSignals::new();
        let first = arena::take_packed(bytes)?.as_ptr();
        // SAFETY: the segment was just made.
        Ok(Self { current: first, guard: unsafe { (*first).guard }, first, ..Self::EMPTY })
    }

    /// Puts the stack away that the calling thread is on, to be set again.
    pub fn get(&mut self) {
        thread::begin();
        // SAFETY: the calling thread's own.
        (self.current, self.guard) = (unsafe { (*Thread::here()).current }, thread::guard());
    }

    /// From now on the calling thread is on this stack.
    ///
    /// # Safety
    /// The caller goes on to that stack at once, and calls nothing on the way that may need more of one.
    pub unsafe fn set(&self) {
        // Its limit, and its end.
        thread::begin();
        // SAFETY: the calling thread's own.
        unsafe { (*Thread::here()).current = self.current };
        thread::set_guard(self.guard);
    }

    /// Lowest byte and size of what the first segment's frames may use, without the page that traps: where the stack begins, downwards.
    #[must_use]
    pub fn bounds(&self) -> (*mut u8, usize) {
        // SAFETY: a context that was made has a first segment, which lives as long as it does.
        let first = unsafe { &*self.first };
        let low = first.low + PAGE_BYTES;
        (core::ptr::without_provenance_mut(low), first.high - low)
    }

    /// The newest segment and its lowest byte, if there is a stack.
    #[doc(hidden)]
    #[must_use]
    pub fn newest(&self) -> Option<(usize, usize)> {
        // SAFETY: a context that was got or made has a segment that lives.
        unsafe { self.current.as_ref() }.map(|current| (self.current.expose_provenance(), current.low))
    }

    /// Forgets what was on the stack: it can begin anew.
    ///
    /// # Safety
    /// Nothing on it is used any more.
    pub unsafe fn reset(&mut self) {
        let _signals = BlockedSignals::new();
        // SAFETY: the first segment lives, and by contract no frame is in it, nor in those after it.
        unsafe {
            let first = &mut *self.first;
            dynamic::give_all(first);
            thread::give_after(first);
            (self.current, self.guard) = (self.first, first.guard);
        }
    }

    /// Gives the stack back.
    ///
    /// # Safety
    /// Nothing on it is used any more, and nothing else of the context but making it anew.
    pub unsafe fn release(&mut self) {
        if self.first.is_null() {
            return;
        }
        // SAFETY: by contract.
        unsafe { self.reset() };
        let _signals = BlockedSignals::new();
        if let Some(first) = NonNull::new(self.first) {
            // SAFETY: it is on no list, and nobody uses it.
            unsafe { thread::give(first) };
        }
        *self = Self::EMPTY;
    }
}

/// The used parts of the calling thread's stack, newest first: for who looks for pointers there.
#[derive(Debug)]
pub struct Parts {
    segment: *const Segment,
    stack_pointer: usize,
}

impl Parts {
    /// Those of the calling thread, from the caller's frame on.
    #[must_use]
    pub fn here() -> Self {
        let stack_pointer = thread::stack_pointer();
        // SAFETY: the calling thread's own.
        let current = NonNull::new(unsafe { (*Thread::here()).current });
        let segment =
            current.map_or(null_mut(), |current| more::holder(current, stack_pointer).unwrap_or(current).as_ptr());
        Self { segment, stack_pointer }
    }

    /// What comes next, in words that may be put away.
    #[must_use]
    pub fn as_raw(&self) -> (usize, usize) {
        (self.segment.expose_provenance(), self.stack_pointer)
    }

    /// From such words.
    ///
    /// # Safety
    /// They came from [`as_raw`](Self::as_raw), and no frame has returned since that lies there.
    #[must_use]
    pub unsafe fn from_raw((segment, stack_pointer): (usize, usize)) -> Self {
        Self { segment: core::ptr::with_exposed_provenance(segment), stack_pointer }
    }
}

impl Iterator for Parts {
    /// Lowest address and bytes.
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        // SAFETY: the segments of a stack live as long as frames lie in them.
        let segment = unsafe { self.segment.as_ref() }?;
        let part = (self.stack_pointer, segment.high.saturating_sub(self.stack_pointer));
        (self.segment, self.stack_pointer) = (segment.prev, segment.entered_from);
        Some(part)
    }
}
