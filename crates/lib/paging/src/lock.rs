//! A lock that threads without a libc can take: it spins, and then yields the processor.
//!
//! It is held for a few microseconds: to compress a page at most. Its owner never waits for the
//! memory of the program, so every wait ends.

#![allow(unsafe_code, reason = "gives access to what the lock protects")]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::kernel::yield_now;

/// Tries before each further try yields the processor: about a microsecond.
const SPINS: u32 = 100;

/// A value that one thread uses at a time. All zero bytes are a free lock.
#[derive(Debug, Default)]
pub(crate) struct Lock<T> {
    is_held: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that changed `is_held` from 0 to 1 uses the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { is_held: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the lock.
    pub(crate) fn acquire(&self) -> Held<'_, T> {
        let mut tries = 0;
        loop {
            if let Some(held) = self.try_acquire() {
                return held;
            }
            tries += 1;
            if tries < SPINS { core::hint::spin_loop() } else { yield_now() }
        }
    }

    /// Takes the lock, unless another thread holds it.
    pub(crate) fn try_acquire(&self) -> Option<Held<'_, T>> {
        let is_taken = self.is_held.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Not `then_some`: its argument would be dropped, and the lock of another thread released.
        is_taken.then(|| Held(self))
    }
}

/// The lock's value, for its owner.
#[derive(Debug)]
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
        self.0.is_held.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_is_not_released_by_another_try() {
        let lock = Lock::new(0);
        let held = lock.try_acquire();
        assert!(held.is_some() && lock.try_acquire().is_none());
        assert!(lock.try_acquire().is_none(), "the first try did not release it");
        drop(held);
        assert!(lock.try_acquire().is_some());
    }
}
