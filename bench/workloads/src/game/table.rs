//! The transposition table: one word per entry, direct-mapped, always replaced.
//!
//! ```text
//! bit 63                      8 7      2 1   0
//!     | key of the position    | 0      | bounds |      0 is an empty entry
//! ```

use std::ops::IndexMut;

use crate::{
    Error,
    fill::fill,
    random::{mix, scale},
};

/// The bounds of a position's value, which is -1, 0 or 1. Equal bounds are exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The value is at least this.
    pub low: i8,
    /// The value is at most this.
    pub high: i8,
}

/// The table, in an array of words. With size 0 it stores nothing.
#[derive(Debug)]
pub struct TranspositionTable<E = Vec<u64>> {
    entries: E,
    len: usize,
}

impl Bounds {
    /// No information.
    pub const ALL: Self = Self { low: -1, high: 1 };

    /// A code from 1 to 15.
    fn code(self) -> u64 {
        u64::from((self.low + 1).unsigned_abs()) << 2 | u64::from((self.high + 1).unsigned_abs())
    }

    fn decode(code: u64) -> Self {
        let value = |bits: u64| [-1, 0, 1, 1][usize::from((bits & 3) as u8)];
        Self { low: value(code >> 2), high: value(code) }
    }
}

impl TranspositionTable {
    /// Creates a table of at most `bytes` in a vector, with each page touched.
    ///
    /// # Errors
    /// [`Error::Memory`] if malloc fails.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let len = bytes / size_of::<u64>();
        Ok(Self::over(fill(len, |_| 0)?, len))
    }
}

impl<E: IndexMut<usize, Output = u64>> TranspositionTable<E> {
    /// Creates a table in `entries`, which has `len` words, all 0.
    pub const fn over(entries: E, len: usize) -> Self {
        Self { entries, len }
    }

    /// The bounds last stored for `key`, or [`Bounds::ALL`] if they were replaced.
    pub fn get(&self, key: u64) -> Bounds {
        if self.len == 0 {
            return Bounds::ALL;
        }
        let entry = self.entries[self.index(key)];
        if entry >> 8 == key { Bounds::decode(entry) } else { Bounds::ALL }
    }

    /// Stores `bounds`, replacing the old entry. `key` is below 2^56.
    pub fn put(&mut self, key: u64, bounds: Bounds) {
        if self.len > 0 {
            let index = self.index(key);
            self.entries[index] = key << 8 | bounds.code();
        }
    }

    fn index(&self, key: u64) -> usize {
        scale(mix(key), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_until_another_replaces_it() {
        let mut table = TranspositionTable::new(8).unwrap();
        let exact = Bounds { low: 0, high: 0 };
        table.put(77, exact);
        assert_eq!((table.get(77), table.get(78)), (exact, Bounds::ALL));
        table.put(78, Bounds { low: -1, high: 0 });
        assert_eq!((table.get(77), table.get(78)), (Bounds::ALL, Bounds { low: -1, high: 0 }));
    }

    #[test]
    fn all_bounds_are_encoded_and_decoded() {
        for (low, high) in [(-1, -1), (-1, 0), (-1, 1), (0, 0), (0, 1), (1, 1)] {
            assert_eq!(Bounds::decode(Bounds { low, high }.code()), Bounds { low, high });
        }
    }
}
