//! Stacks of blocks for coroutines of the crate corosensei.
//!
//! A coroutine's stack is a [`Context`]; what the crate does not know is that the guard word has to change with the stack. So a
//! coroutine is resumed through the [`Switch`] that belongs to its stack. One that is dropped half-way is unwound on its own stack; that need not
//! be done through the switch.
//!
//! ```
//! use corosensei::{Coroutine, CoroutineResult};
//! use fieldstone_stacks::{BlockStack, grow};
//!
//! fn depth(n: u64) -> u64 {
//!     grow(|| if n == 0 { 0 } else { 1 + depth(n - 1) })
//! }
//! let (stack, switch) = BlockStack::new()?;
//! let mut coroutine = Coroutine::with_stack(stack, |yielder, n: u64| {
//!     let again = yielder.suspend(depth(n));
//!     depth(again)
//! });
//! assert_eq!(switch.enter(|| coroutine.resume(100_000)), CoroutineResult::Yield(100_000));
//! assert_eq!(switch.enter(|| coroutine.resume(5)), CoroutineResult::Return(5));
//! # Ok::<(), fieldstone_blocks::Error>(())
//! ```

#![allow(unsafe_code, reason = "promises corosensei that the memory is a stack")]

use core::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use corosensei::stack::{Stack, StackPointer};

use crate::context::Context;
use crate::thread;

/// A stack for a coroutine: one block to begin with, of which 4 KiB are touched if it stays small.
#[derive(Debug)]
pub struct BlockStack {
    base: StackPointer,
    limit: StackPointer,
    /// Keeps the memory.
    _owner: Switch,
}

/// Leads to such a stack and back. A clone is the same one; the stack's memory stays until the last of them is dropped, and the stack.
#[derive(Clone, Debug)]
pub struct Switch(Arc<Mutex<Owned>>);

#[derive(Debug)]
struct Owned(Context);

// SAFETY: a context is raw memory that one thread at a time uses: the one that has the lock.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the coroutine, which owned the stack, is gone: nothing on it is used any more.
        unsafe { self.0.release() };
    }
}

impl BlockStack {
    /// A new stack, and what leads to it.
    ///
    /// # Errors
    /// Without memory.
    pub fn new() -> fieldstone_blocks::Result<(Self, Switch)> {
        let context = Context::new(0)?;
        let (low, bytes) = context.bounds();
        let switch = Switch(Arc::new(Mutex::new(Owned(context))));
        let pointer = |address| NonZeroUsize::new(address).ok_or(fieldstone_blocks::Error::Foreign { address });
        let (limit, base) = (pointer(low.addr())?, pointer(low.addr() + bytes)?);
        Ok((Self { base, limit, _owner: switch.clone() }, switch))
    }
}

// SAFETY: base and limit are those of a segment, which is readable and writable, aligned to 64 bytes, larger than the least size, and
// stays until the stack is dropped.
unsafe impl Stack for BlockStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}

impl Switch {
    /// Runs `resume`, which is to resume the coroutine on this stack, and nothing else that may need more of one.
    ///
    /// # Panics
    /// If the coroutine does.
    // Never inlined: what `grow` finds out by the guard in between is nothing that its caller may go by.
    #[inline(never)]
    pub fn enter<R>(&self, resume: impl FnOnce() -> R) -> R {
        thread::adopt();
        let mut owned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = Context::EMPTY;
        before.get();
        // SAFETY: by contract the caller goes to that stack at once.
        unsafe { owned.0.set() };
        let _back = Back { before, left: &mut owned.0 };
        resume()
    }
}

/// Back on the stack that was left, by a return or a panic.
struct Back<'a> {
    before: Context,
    left: &'a mut Context,
}

impl Drop for Back<'_> {
    fn drop(&mut self) {
        self.left.get();
        // SAFETY: the thread is on this stack again.
        unsafe { self.before.set() };
    }
}
