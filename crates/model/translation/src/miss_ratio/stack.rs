//! Pages in LRU order, with their depth known to a power of two.
//!
//! ```text
//!   zone    0           1           2                   3
//!   depth   0 .. F-1    F .. 2F-1   2F .. 4F-1          4F .. 8F-1            F: size of the first zone
//!   pages   a b c d  │  e f g h  │  i j k l m n o p  │  q r
//!                 ↑           ↑                   ↑       ↑                   last of each zone
//! ```
//! An accessed page moves to the front. From each zone that it passes, the last page moves to the
//! next zone: as many steps as zones, at any depth (Kim, Hill and Wood, *Implementing Stack
//! Simulation for Highly-Associative Memories*, 1991). A hash finds the pages. A full stack
//! replaces its oldest page.

use crate::lru::{index, unchain};
use crate::mosaic::spread;

/// The end of a chain, and of the order.
const NONE: u16 = u16::MAX;
/// The first zone and fifteen doublings: more pages than an entry's index can address.
const ZONES: usize = 16;

#[derive(Debug, Clone, Copy)]
struct StackEntry {
    page: u64,
    /// Neighbours in the order of use.
    newer: u16,
    older: u16,
    /// Next entry with the same hash.
    chain: u16,
    zone: u8,
}

/// Pages in order of use.
#[derive(Debug, Clone)]
pub(super) struct LruStack {
    entries: Vec<StackEntry>,
    buckets: Box<[u16]>,
    newest: u16,
    /// The oldest page of each nonempty zone.
    last: [u16; ZONES],
    /// Pages in the first zone.
    first: usize,
    most: usize,
}

impl LruStack {
    /// Creates a stack for at most `most` pages, at least two. The first zone holds `first` pages.
    pub(super) fn new(most: u16, first: usize) -> Self {
        let buckets = (usize::from(most) * 2).next_power_of_two();
        Self {
            entries: Vec::with_capacity(usize::from(most)),
            buckets: vec![NONE; buckets].into_boxed_slice(),
            newest: NONE,
            last: [NONE; ZONES],
            first: first.max(1),
            most: usize::from(most),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= self.most
    }

    /// Moves `page` to the front and returns its former zone; `None` if it was not present. `hash`
    /// is its [`spread`].
    #[inline]
    pub(super) fn touch(&mut self, page: u64, hash: u64) -> Option<u8> {
        if let Some(newest) = self.entries.get(usize::from(self.newest))
            && newest.page == page
        {
            return Some(0);
        }
        let bucket = self.bucket(hash);
        let mut at = self.buckets[bucket];
        while let Some(entry) = self.entries.get(usize::from(at)) {
            if entry.page == page {
                let zone = entry.zone;
                self.move_to_front(at, zone);
                return Some(zone);
            }
            at = entry.chain;
        }
        if self.is_full() {
            self.replace(page, bucket);
        } else {
            self.insert(page, bucket);
        }
        None
    }

    /// The pages, oldest first.
    pub(super) fn oldest_first(&self) -> Vec<u64> {
        let following = |entry: &&StackEntry| self.entries.get(usize::from(entry.older));
        let order = std::iter::successors(self.entries.get(usize::from(self.newest)), following);
        let mut pages: Vec<u64> = order.map(|entry| entry.page).collect();
        pages.reverse();
        pages
    }

    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        index(hash >> 32) & (self.buckets.len() - 1)
    }

    /// The zone of a depth.
    #[inline]
    fn zone(&self, depth: usize) -> usize {
        (depth / self.first).checked_ilog2().map_or(0, |doublings| doublings as usize + 1)
    }

    /// Moves entry `at`, which is not the newest, to the front.
    #[inline]
    fn move_to_front(&mut self, at: u16, zone: u8) {
        let StackEntry { newer, older, .. } = self.entries[usize::from(at)];
        if self.last[usize::from(zone)] == at {
            // If it was alone in its zone, `newer` is the entry about to move there.
            self.last[usize::from(zone)] = newer;
        }
        self.entries[usize::from(newer)].older = older;
        if let Some(older) = self.entries.get_mut(usize::from(older)) {
            older.newer = newer;
        }
        self.put_first(at);
        self.shift_zones(zone);
    }

    #[inline]
    fn insert(&mut self, page: u64, bucket: usize) {
        let before = self.entries.len();
        let at = u16::try_from(before).unwrap_or(NONE);
        self.entries.push(StackEntry { page, newer: NONE, older: NONE, chain: self.buckets[bucket], zone: 0 });
        self.buckets[bucket] = at;
        self.put_first(at);
        // The zone of depth `before` grows by one. If this is its first page, it takes the last
        // page of the zone before.
        let zone = self.zone(before);
        if before == 0 {
            self.last[0] = at;
        } else if zone > 0 && before == self.first << (zone - 1) {
            self.last[zone] = self.last[zone - 1];
        }
        self.shift_zones(u8::try_from(zone).unwrap_or(0));
    }

    /// Replaces the oldest entry's page and moves the entry to the front.
    #[inline]
    fn replace(&mut self, page: u64, bucket: usize) {
        let zone = self.zone(self.entries.len() - 1);
        let at = self.last[zone];
        let old = self.bucket(spread(self.entries[usize::from(at)].page));
        unchain(&mut self.entries, |entry| &mut entry.chain, &mut self.buckets[old], at);
        let entry = &mut self.entries[usize::from(at)];
        (entry.page, entry.chain) = (page, self.buckets[bucket]);
        self.buckets[bucket] = at;
        self.move_to_front(at, u8::try_from(zone).unwrap_or(0));
    }

    #[inline]
    fn put_first(&mut self, at: u16) {
        let newest = std::mem::replace(&mut self.newest, at);
        if let Some(newest) = self.entries.get_mut(usize::from(newest)) {
            newest.newer = at;
        }
        let entry = &mut self.entries[usize::from(at)];
        (entry.newer, entry.older, entry.zone) = (NONE, newest, 0);
    }

    /// After an insertion at the front, moves the last page of each zone before `end` to the next
    /// zone.
    #[inline]
    fn shift_zones(&mut self, end: u8) {
        for (last, next) in self.last.iter_mut().zip(1..=end) {
            let moved = &mut self.entries[usize::from(*last)];
            moved.zone = next;
            *last = moved.newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::LruStack;
    use crate::mosaic::spread;

    proptest! {
        #[test]
        fn zones_match_a_naive_list(
            (most, first) in (2_u16..300, 1_usize..20),
            pages in prop::collection::vec(0_u64..400, 1..2000),
        ) {
            let mut stack = LruStack::new(most, first);
            let mut order: Vec<u64> = Vec::new();
            for page in pages {
                let depth = order.iter().position(|&other| other == page);
                let zone = depth.map(|depth| (0_u8..).find(|zone| depth < first << zone).unwrap());
                prop_assert_eq!(stack.touch(page, spread(page)), zone, "page {} of {:?}", page, order);
                if let Some(depth) = depth {
                    order.remove(depth);
                }
                order.insert(0, page);
                order.truncate(usize::from(most));
            }
            order.reverse();
            prop_assert_eq!((stack.len(), stack.oldest_first()), (order.len(), order));
        }
    }
}
