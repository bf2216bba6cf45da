//! The lock of the free slots. It is held by a thread for about 100 ns, or about 20 µs when slots
//! are made ready.
//!
//! A thread that holds the lock may run a signal handler that allocates. The lock records its
//! owner, so the second allocation fails instead of waiting forever. The wait for another thread
//! is bounded too: after a fork without [`Slots::before_fork`](crate::Slots::before_fork), the
//! owner does not exist in the child.

#![allow(unsafe_code, reason = "gives access to what the lock protects")]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::kernel::yield_now;

/// Tries before each further try yields the processor.
const SPINS: u32 = 100;
/// Tries before the caller gives up: at least 20 ms.
const MAX_TRIES: u32 = 100_000;

/// A value that one thread uses at a time.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    /// The owner's thread id, 0 if none.
    owner: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `Held` exists once, because it is created by the thread that changed the owner from 0.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { owner: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the lock for a thread; `None` if that thread has it already, or after a long wait.
    pub(crate) fn acquire(&self, thread: u32) -> Option<Held<'_, T>> {
        // Not `then_some`: a `Held` that is made and dropped would release the lock of its owner.
        self.hold(thread).then(|| Held(self))
    }

    /// As [`Lock::acquire`], until [`Lock::release`].
    pub(crate) fn hold(&self, thread: u32) -> bool {
        for tries in 0..MAX_TRIES {
            match self.owner.compare_exchange_weak(0, thread, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(owner) if owner == thread => return false,
                Err(_) if tries < SPINS => core::hint::spin_loop(),
                Err(_) => yield_now(),
            }
        }
        false
    }

    /// Ends a [`Lock::hold`] of a thread, if there is one.
    pub(crate) fn release_from(&self, thread: u32) {
        let _ = self.owner.compare_exchange(thread, 0, Ordering::Release, Ordering::Relaxed);
    }

    pub(crate) fn release(&self) {
        self.owner.store(0, Ordering::Release);
    }
}

/// The lock's value, for its owner.
pub(crate) struct Held<'a, T>(&'a Lock<T>);

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock until this is dropped.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the lock until this is dropped.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_thread_leaves_the_lock_to_its_owner() {
        let lock = Lock::new(0);
        let held = lock.acquire(1);
        assert!(held.is_some());
        for thread in [1, 2, 1, 2] {
            assert!(lock.acquire(thread).is_none(), "thread {thread}");
        }
        drop(held);
        assert!(lock.acquire(2).is_some());
    }
}
