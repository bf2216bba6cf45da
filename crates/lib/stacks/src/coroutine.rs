//! Stacks made of blocks for coroutines of the crate corosensei.
//!
//! A coroutine's stack is a [`StackContext`]. The guard word has to change with the stack, which
//! corosensei does not do. So resume a coroutine through the [`Switch`] of its stack. Dropping a
//! suspended coroutine unwinds it on its own stack, with or without the switch.
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

#![allow(unsafe_code, reason = "implements corosensei's unsafe trait for stacks")]

use core::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use corosensei::stack::{Stack, StackPointer};

use crate::context::StackContext;
use crate::thread;

/// A coroutine's stack: one block at first, of which a small stack touches 4 KiB.
#[derive(Debug)]
pub struct BlockStack {
    base: StackPointer,
    limit: StackPointer,
    /// Keeps the memory allocated.
    _owner: Switch,
}

/// Switches to a [`BlockStack`] and back. Clones are handles of the same stack, whose memory is
/// freed with the last handle and the stack.
#[derive(Clone, Debug)]
pub struct Switch(Arc<Mutex<OwnedContext>>);

#[derive(Debug)]
struct OwnedContext(StackContext);

// SAFETY: a context is raw memory that one thread at a time uses: the lock's holder.
unsafe impl Send for OwnedContext {}

impl Drop for OwnedContext {
    fn drop(&mut self) {
        // SAFETY: the coroutine, which owned the stack, is dropped: nothing uses the stack's
        // contents any more.
        unsafe { self.0.release() };
    }
}

impl BlockStack {
    /// Allocates a stack, with the switch to it.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new() -> fieldstone_blocks::Result<(Self, Switch)> {
        let context = StackContext::new(0)?;
        let (low, bytes) = context.bounds();
        let switch = Switch(Arc::new(Mutex::new(OwnedContext(context))));
        let pointer = |address| NonZeroUsize::new(address).ok_or(fieldstone_blocks::Error::Foreign { address });
        let (limit, base) = (pointer(low.addr())?, pointer(low.addr() + bytes)?);
        Ok((Self { base, limit, _owner: switch.clone() }, switch))
    }
}

// SAFETY: base and limit are those of a segment: readable and writable memory, aligned to 64 bytes
// and larger than the minimum size. It stays allocated until the stack is dropped.
unsafe impl Stack for BlockStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}

impl Switch {
    /// Runs `resume`, which must resume the coroutine on this stack and call nothing else that may
    /// need more stack.
    ///
    /// # Panics
    /// If the coroutine panics.
    // Never inlined: inside, `grow` reads another stack's guard, which the compiler must not reuse
    // in the caller.
    #[inline(never)]
    pub fn enter<R>(&self, resume: impl FnOnce() -> R) -> R {
        thread::adopt();
        let mut owned = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = StackContext::EMPTY;
        before.get();
        // SAFETY: by contract the caller switches to that stack at once.
        unsafe { owned.0.set() };
        let _restore = RestoreOnDrop { before, coroutine: &mut owned.0 };
        resume()
    }
}

/// Saves the coroutine's stack and restores the thread's own on drop, by return or panic.
struct RestoreOnDrop<'a> {
    before: StackContext,
    coroutine: &'a mut StackContext,
}

impl Drop for RestoreOnDrop<'_> {
    fn drop(&mut self) {
        self.coroutine.get();
        // SAFETY: the thread is back on the saved stack.
        unsafe { self.before.set() };
    }
}
