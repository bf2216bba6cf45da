//! A long LRU list with a hash index: every access costs about the same.
//!
//! ```text
//!   buckets   hash(key) → first entry → next of the chain → …
//!   ring      newest ⇄ … ⇄ oldest ⇄ newest
//! ```
//! All entries are in the ring from the start, including empty ones (key 0). The ring is closed, so
//! the oldest entry becomes the newest by moving `newest` back by one. Replacing its key changes no
//! ring link.

use super::{index, unchain};

/// The end of a chain.
const NONE: u16 = u16::MAX;

#[derive(Debug, Clone, Copy)]
struct ListEntry {
    key: u64,
    /// Neighbours in the ring.
    newer: u16,
    older: u16,
    /// Next entry with the same hash.
    chain: u16,
}

/// A fully associative table.
#[derive(Debug, Clone)]
pub(crate) struct LruList {
    entries: Box<[ListEntry]>,
    buckets: Box<[u16]>,
    newest: u16,
    /// 64 minus the bits of a bucket's number.
    shift: u32,
}

impl LruList {
    /// An entry's index has 16 bits, one value of which is `NONE`.
    pub(super) const MAX: u32 = NONE as u32;

    pub(super) fn new(entries: u32) -> Self {
        assert!((1..=Self::MAX).contains(&entries), "{entries} entries in one list");
        // Enough buckets that a chain is nearly always empty or holds only the searched key, for
        // predictable branches.
        let buckets = (entries * 16).next_power_of_two();
        let mut list = Self {
            entries: vec![ListEntry { key: 0, newer: 0, older: 0, chain: NONE }; index(entries.into())]
                .into_boxed_slice(),
            buckets: vec![NONE; index(buckets.into())].into_boxed_slice(),
            newest: 0,
            shift: 64 - buckets.ilog2(),
        };
        list.clear();
        list
    }

    #[inline]
    pub(super) fn touch(&mut self, key: u64) -> bool {
        if self.entries[usize::from(self.newest)].key == key {
            return true;
        }
        let bucket = self.bucket(key);
        let mut at = self.buckets[bucket];
        while at != NONE {
            let entry = &self.entries[usize::from(at)];
            if entry.key == key {
                self.move_to_front(at);
                return true;
            }
            at = entry.chain;
        }
        self.replace(bucket, key);
        false
    }

    #[inline]
    fn bucket(&self, key: u64) -> usize {
        index(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift)
    }

    /// Makes entry `at` the newest. It is not the newest already.
    #[inline]
    fn move_to_front(&mut self, at: u16) {
        let newest = self.newest;
        let oldest = self.entries[usize::from(newest)].newer;
        self.newest = at;
        if at == oldest {
            return;
        }
        let ListEntry { newer, older, .. } = self.entries[usize::from(at)];
        self.entries[usize::from(newer)].older = older;
        self.entries[usize::from(older)].newer = newer;
        self.entries[usize::from(oldest)].older = at;
        self.entries[usize::from(newest)].newer = at;
        let entry = &mut self.entries[usize::from(at)];
        (entry.newer, entry.older) = (oldest, newest);
    }

    /// Replaces the oldest entry's key and makes the entry the newest.
    #[inline]
    fn replace(&mut self, bucket: usize, key: u64) {
        let at = self.entries[usize::from(self.newest)].newer;
        let old = self.entries[usize::from(at)].key;
        if old != 0 {
            let bucket = self.bucket(old);
            unchain(&mut self.entries, |entry| &mut entry.chain, &mut self.buckets[bucket], at);
        }
        self.newest = at;
        let entry = &mut self.entries[usize::from(at)];
        entry.key = key;
        entry.chain = self.buckets[bucket];
        self.buckets[bucket] = at;
    }

    pub(super) fn clear(&mut self) {
        self.buckets.fill(NONE);
        let count = u16::try_from(self.entries.len()).unwrap_or(NONE);
        for (entry, at) in self.entries.iter_mut().zip(0..count) {
            let newer = if at == 0 { count - 1 } else { at - 1 };
            let older = if at + 1 == count { 0 } else { at + 1 };
            *entry = ListEntry { key: 0, newer, older, chain: NONE };
        }
        self.newest = 0;
    }
}
