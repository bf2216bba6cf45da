//! The free slots of one size class, under the lock.
//!
//! ```text
//! never used          ready           open                live        freed, closed
//! [first..capacity) -> (guards set) -> list, at most 64 -> objects -> FreedStack -> queue -+
//!                                      ^                                                   |
//!                                      +------------------ 64 of the oldest ---------------+
//! ```
//! The queue is the quarantine: freed slots are closed, and the oldest are reused. A class makes
//! new slots while its queue is shorter than the quarantine plus a batch. New slots become ready
//! 1 MiB at a time, and freed slots are opened 64 at a time by one system call.
//!
//! Invariants: a slot is in one list at most. Only the owner of the lock changes queue and open
//! list; `free` pushes to the [`FreedStack`] without the lock.

use crate::slots::freed::{FreedStack, List};
use crate::slots::geometry::stride;
use crate::slots::record::Record;
use crate::sync::Ordering;

/// How many freed slots are opened at a time.
pub(crate) const BATCH: usize = 64;
/// How many bytes of new slots are made ready at a time.
const READY_BYTES: usize = 1 << 20;

/// Free slots of a class, by their numbers in the class.
#[derive(Debug, Default)]
pub(crate) struct Class {
    /// Slots from here on were never used.
    pub(crate) first_unused: usize,
    /// Accessible slots without an object.
    open: List,
    queue: Queue,
}

/// A queue of closed slots, linked by `Record::next`.
#[derive(Debug, Default)]
struct Queue {
    oldest: u32,
    latest: u32,
    length: usize,
}

impl Queue {
    /// Adds slots that are listed latest first.
    fn append(&mut self, mut list: List, records: &[Record]) {
        let mut in_order = List::default();
        let mut count = 0;
        let mut latest = None;
        while let Some(slot) = list.pop(records) {
            latest = latest.or(Some(slot));
            in_order.push(slot, records);
            count += 1;
        }
        let (Some(latest), Some(oldest)) = (latest, in_order.first()) else { return };
        match records.get(self.latest as usize) {
            Some(record) if self.length > 0 => record.next.store(oldest + 1, Ordering::Relaxed),
            _ => self.oldest = oldest,
        }
        (self.latest, self.length) = (latest, self.length + count);
    }

    fn pop(&mut self, records: &[Record]) -> Option<u32> {
        self.length = self.length.checked_sub(1)?;
        let oldest = self.oldest;
        let next = records.get(oldest as usize)?.next.load(Ordering::Relaxed);
        // The next of the last one is 0; the queue is empty then.
        self.oldest = next.saturating_sub(1);
        Some(oldest)
    }
}

impl Class {
    /// An open slot.
    pub(crate) fn pop_open(&mut self, records: &[Record]) -> Option<u32> {
        self.open.pop(records)
    }

    /// Adds an open slot.
    pub(crate) fn push_open(&mut self, slot: u32, records: &[Record]) {
        self.open.push(slot, records);
    }

    /// Moves the slots that were freed to the queue.
    pub(crate) fn collect(&mut self, freed: &FreedStack, records: &[Record]) {
        self.queue.append(freed.take(), records);
    }

    /// Whether old slots are to be reused before new ones are made.
    pub(crate) fn is_quarantine_full(&self, quarantine: usize) -> bool {
        self.queue.length >= quarantine.saturating_add(BATCH)
    }

    /// How many freed slots to open now: a batch, but at most half of the quarantine.
    pub(crate) fn reusable(&self, batch: usize) -> usize {
        batch.min(self.queue.length.div_ceil(2))
    }

    /// The slot that was freed first.
    pub(crate) fn pop_oldest(&mut self, records: &[Record]) -> Option<u32> {
        self.queue.pop(records)
    }

    /// How many new slots to make at once.
    pub(crate) fn new_slots(&self, class: u32, capacity: usize) -> usize {
        (READY_BYTES / stride(class)).clamp(1, 1024).min(capacity - self.first_unused.min(capacity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: usize) -> Vec<Record> {
        (0..count).map(|_| Record::default()).collect()
    }

    #[test]
    fn the_queue_returns_slots_in_the_order_of_their_frees() {
        let (records, freed) = (records(10), FreedStack::default());
        let mut class = Class::default();
        for group in [&[3, 1][..], &[], &[4], &[0, 2, 9]] {
            group.iter().for_each(|&slot| freed.push(slot, &records));
            class.collect(&freed, &records);
        }
        assert_eq!(class.reusable(BATCH), 3);
        let order: Vec<_> = std::iter::from_fn(|| class.pop_oldest(&records)).collect();
        assert_eq!(order, [3, 1, 4, 0, 2, 9]);
        freed.push(5, &records);
        class.collect(&freed, &records);
        assert_eq!(class.pop_oldest(&records), Some(5), "an empty queue is usable");
        assert_eq!(class.pop_oldest(&records), None);
    }

    #[test]
    fn new_slots_end_with_the_class() {
        let mut class = Class::default();
        assert_eq!(class.new_slots(0, 1000), 128, "1 MiB");
        assert_eq!(class.new_slots(12, 3), 1, "a large slot alone");
        class.first_unused = 990;
        assert_eq!(class.new_slots(0, 1000), 10);
        class.first_unused = 1000;
        assert_eq!(class.new_slots(0, 1000), 0);
    }
}
