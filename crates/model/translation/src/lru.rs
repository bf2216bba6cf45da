//! Tables with least-recently-used replacement, for TLBs and walk caches.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `sets` | short sets, each in LRU order |
//! | `list` | a long list with a hash index |
//!
//! [`Sets`] serves few ways: a set is kept in LRU order, and one pass searches and reorders it.
//! [`LruList`] serves large fully associative tables: a hash finds the entry, linked entries keep the
//! order. Their operation is `touch`: returns whether the key was present, and makes it the most
//! recent. [`LruTable::new`] chooses the faster one.

mod list;
mod sets;
#[cfg(test)]
mod tests;

use list::LruList;
use sets::Sets;

/// From this number of ways, hashing costs less than moving a set.
const HASHED_WAYS: u32 = 33;

/// A table of `entries` keys in sets. Key 0 marks an empty entry and is never looked up.
#[derive(Debug, Clone)]
pub(crate) enum LruTable {
    Sets(Sets),
    List(LruList),
}

impl LruTable {
    /// The most entries of a fully associative table.
    pub(crate) const MAX_FULL: u32 = LruList::MAX;

    /// `ways` divides `entries`; neither is 0.
    pub(crate) fn new(entries: u32, ways: u32) -> Self {
        if entries == ways && ways >= HASHED_WAYS {
            Self::List(LruList::new(entries))
        } else {
            Self::Sets(Sets::new(entries / ways, ways))
        }
    }

    /// A fully associative table.
    pub(crate) fn full(entries: u32) -> Self {
        Self::new(entries, entries)
    }

    /// Returns whether `key` was present, and makes it the most recent. `page` selects the set.
    #[inline]
    pub(crate) fn touch(&mut self, page: u64, key: u64) -> bool {
        match self {
            Self::Sets(sets) => sets.touch(page, key),
            Self::List(list) => list.touch(key),
        }
    }

    /// Removes all keys.
    pub(crate) fn clear(&mut self) {
        match self {
            Self::Sets(sets) => sets.clear(),
            Self::List(list) => list.clear(),
        }
    }
}

/// Removes entry `at` from the chain that begins with `first`. `next` returns an entry's link.
#[inline]
pub(crate) fn unchain<E>(entries: &mut [E], next: impl Fn(&mut E) -> &mut u16, first: &mut u16, at: u16) {
    let rest = *next(&mut entries[usize::from(at)]);
    if *first == at {
        *first = rest;
        return;
    }
    let mut link = *first;
    while *next(&mut entries[usize::from(link)]) != at {
        link = *next(&mut entries[usize::from(link)]);
    }
    *next(&mut entries[usize::from(link)]) = rest;
}

/// Converts a number below a table's length to an index.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "below the length of a table in memory")]
pub(crate) const fn index(number: u64) -> usize {
    number as usize
}
