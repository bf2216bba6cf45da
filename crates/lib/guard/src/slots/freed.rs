//! The slots that were freed and not yet queued: a stack that threads push to without a lock.
//!
//! ```text
//! head -> slot 7 -> slot 3 -> slot 9 -> 0        each by `Record::next`; slot n is stored as n + 1
//! ```
//! Source: Treiber's stack, with one change. A consumer takes the whole stack by one exchange, so
//! no slot can be popped and pushed in between (the ABA problem). `free` is the only producer, and
//! a producer neither waits nor allocates, so signal handlers may free objects.
//!
//! Invariant: a slot is in at most one list. Cost: one compare-and-swap for each free.

use crate::slots::record::Record;
use crate::sync::{AtomicU32, Ordering};

/// A stack of freed slots of one class.
#[derive(Debug, Default)]
pub(crate) struct FreedStack(AtomicU32);

impl FreedStack {
    /// Adds a slot that is in no list.
    pub(crate) fn push(&self, slot: u32, records: &[Record]) {
        let Some(record) = records.get(slot as usize) else { return };
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            record.next.store(head, Ordering::Relaxed);
            match self.0.compare_exchange_weak(head, slot + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all slots; the caller owns the list. The latest is first.
    pub(crate) fn take(&self) -> List {
        if self.0.load(Ordering::Relaxed) == 0 {
            return List(0);
        }
        List(self.0.swap(0, Ordering::Acquire))
    }
}

/// A list of slots that one thread owns.
#[derive(Debug, Default)]
pub(crate) struct List(u32);

impl List {
    /// Adds a slot at the front.
    pub(crate) fn push(&mut self, slot: u32, records: &[Record]) {
        if let Some(record) = records.get(slot as usize) {
            record.next.store(self.0, Ordering::Relaxed);
            self.0 = slot + 1;
        }
    }

    /// The first slot.
    pub(crate) fn first(&self) -> Option<u32> {
        self.0.checked_sub(1)
    }

    /// Removes the first slot.
    pub(crate) fn pop(&mut self, records: &[Record]) -> Option<u32> {
        let slot = self.first()?;
        self.0 = records.get(slot as usize)?.next.load(Ordering::Relaxed);
        Some(slot)
    }
}
