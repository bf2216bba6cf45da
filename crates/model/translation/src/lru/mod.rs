//! Tables of entries of which the least recently used goes first: TLBs, walk caches.
//!
//! [`Sets`] is for few ways: a set is kept in order of use, and one pass both searches and reorders it. [`List`] is for
//! large fully associative tables: a hash finds the entry, a ring of links keeps the order. Both have one operation,
//! `touch`: was it there? It is now, and is the most recent. [`Table::new`] takes the one that is faster.

mod list;
mod sets;
#[cfg(test)]
mod tests;

use list::List;
use sets::Sets;

/// From so many ways on, moving a whole set costs more than hashing.
const HASHED_WAYS: u32 = 33;

/// A table of `entries` keys in sets. Key 0 marks an empty entry and is never asked for.
#[derive(Debug, Clone)]
pub(crate) enum Table {
    Sets(Sets),
    List(List),
}

impl Table {
    /// The most entries of one set that [`HASHED_WAYS`] makes a [`List`].
    pub(crate) const MOST_FULL: u32 = List::MOST;

    /// `ways` divides `entries`; neither is 0.
    pub(crate) fn new(entries: u32, ways: u32) -> Self {
        if entries == ways && ways >= HASHED_WAYS {
            Self::List(List::new(entries))
        } else {
            Self::Sets(Sets::new(entries / ways, ways))
        }
    }

    /// Fully associative.
    pub(crate) fn full(entries: u32) -> Self {
        Self::new(entries, entries)
    }

    /// Was `key` there? It is now. `page` chooses the set.
    #[inline]
    pub(crate) fn touch(&mut self, page: u64, key: u64) -> bool {
        match self {
            Self::Sets(sets) => sets.touch(page, key),
            Self::List(list) => list.touch(key),
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        match self {
            Self::Sets(sets) => sets.clear(),
            Self::List(list) => list.clear(),
        }
    }
}

/// Takes entry `at` out of the chain that begins with `first`; `next` is where an entry has the one behind it.
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

/// The low bits of a number as an index: callers have brought it below a table's length.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "below the length of a table in memory")]
pub(crate) const fn index(number: u64) -> usize {
    number as usize
}
