//! The pages of a window that are in memory, in the order in which they came.
//!
//! ```text
//! fill ─→ turn of the slot, back of the queue      front of the queue ─→ oldest slot, if its turn is the same
//! ```
//! Invariant: each slot counts once, however often its page was filled. Entries of the queue whose slot has
//! another turn, or none, are *stale*.
//!
//! Cost: O(1) on average for each operation; the queue has at most about twice as many entries as slots.

use std::collections::{HashMap, VecDeque};

/// Stale entries that are kept in addition to one for each slot.
const MOST_STALE: usize = 64;

/// The slots whose pages are in memory.
#[derive(Debug)]
pub(crate) struct ResidentSlots {
    most: usize,
    /// The turn of the last fill of each slot.
    turns: HashMap<u32, u64>,
    /// Slots with the turns of their fills, oldest first.
    queue: VecDeque<(u32, u64)>,
    last_turn: u64,
}

impl ResidentSlots {
    /// None, of which `most` are to stay in memory.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, turns: HashMap::new(), queue: VecDeque::new(), last_turn: 0 }
    }

    /// Adds a slot whose page was filled, as the newest one.
    pub(crate) fn add(&mut self, slot: u32) {
        self.last_turn += 1;
        self.turns.insert(slot, self.last_turn);
        self.queue.push_back((slot, self.last_turn));
        if self.queue.len() > 2 * self.turns.len() + MOST_STALE {
            let turns = &self.turns;
            self.queue.retain(|(slot, turn)| turns.get(slot) == Some(turn));
        }
    }

    /// Removes a slot whose page was dropped.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.turns.remove(&slot);
    }

    pub(crate) fn clear(&mut self) {
        self.turns.clear();
        self.queue.clear();
    }

    /// Whether there are more slots than are to stay in memory.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.turns.len() > self.most
    }

    /// As [`Self::pop_oldest`], while fewer than `free` slots can be added up to the limit.
    pub(crate) fn pop_to_free(&mut self, free: usize) -> Option<u32> {
        if self.turns.len() + free > self.most { self.pop_oldest() } else { None }
    }

    /// The slots that are to stay in memory.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    /// Removes the slot that was filled first.
    pub(crate) fn pop_oldest(&mut self) -> Option<u32> {
        while let Some((slot, turn)) = self.queue.pop_front() {
            if self.turns.get(&slot) == Some(&turn) {
                self.turns.remove(&slot);
                return Some(slot);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_filled_repeatedly_counts_once() {
        let mut resident = ResidentSlots::new(2);
        for _ in 0..1000 {
            resident.add(7);
            resident.remove(7);
            resident.add(7);
            resident.add(7);
            assert!(!resident.is_over_limit() && resident.queue.len() < MOST_STALE + 4);
        }
        (8..10).for_each(|slot| resident.add(slot));
        assert!(resident.is_over_limit());
        // 7 is the newest one by now.
        resident.add(7);
        resident.remove(9);
        assert_eq!([resident.pop_oldest(), resident.pop_oldest(), resident.pop_oldest()], [Some(8), Some(7), None]);
    }
}
