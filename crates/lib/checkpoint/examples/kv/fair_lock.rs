//! A lock that is passed to a thread that waits for it.
//!
//! The lock of the standard library lets a thread that releases it lock it again at once, so the event loop
//! could hold it for seconds while a save waits. Here a thread waits for the value while it holds `turn`, so
//! that no other thread can lock the value before it.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(crate) struct FairLock<T> {
    turn: Mutex<()>,
    value: Mutex<T>,
}

impl<T> FairLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { turn: Mutex::new(()), value: Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
