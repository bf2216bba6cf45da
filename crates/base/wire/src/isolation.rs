//! A program's requests for cache lines of its own: a table in its memory that a repairer reads
//! from outside.
//!
//! ```text
//!   magic | changes | (address, bytes) | (address, bytes) | …
//! ```
//! Invariants: an entry is valid while its byte count is not 0. `isolate` writes the count last,
//! `restore` clears it first, and both then increment `changes`. A reader that rereads the table
//! after `changes` has changed misses no entry.

use core::sync::atomic::{AtomicU64, Ordering};

/// The table's symbol name in a program.
pub const SYMBOL: &str = "fieldstone_isolated";
/// The first word of the table.
pub const MAGIC: u64 = u64::from_le_bytes(*b"isolate1");
/// Capacity in ranges.
pub const ENTRIES: usize = 255;

/// The table. It lives in the program and lasts as long as the process.
#[repr(C)]
#[derive(Debug)]
pub struct IsolationTable {
    magic: u64,
    changes: AtomicU64,
    entries: [IsolationEntry; ENTRIES],
}

#[repr(C)]
#[derive(Debug)]
struct IsolationEntry {
    address: AtomicU64,
    bytes: AtomicU64,
}

/// Offset in bytes of the change counter.
pub const CHANGES_OFFSET: u64 = 8;
/// Size of the table in bytes.
pub const BYTES: usize = size_of::<IsolationTable>();

impl IsolationTable {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        let entries = [const { IsolationEntry { address: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; ENTRIES];
        Self { magic: MAGIC, changes: AtomicU64::new(0), entries }
    }

    /// Adds the range of `bytes` bytes at `address`; neither may be 0. Returns false when the table
    /// is full.
    pub fn isolate(&self, address: u64, bytes: u64) -> bool {
        let claims = |entry: &&IsolationEntry| {
            entry.address.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(entry) = self.entries.iter().find(claims) else { return false };
        entry.bytes.store(bytes, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
        true
    }

    /// Removes a range that [`Self::isolate`] added. Returns false when no such entry exists.
    pub fn restore(&self, address: u64, bytes: u64) -> bool {
        let removes = |entry: &&IsolationEntry| {
            entry.address.load(Ordering::Acquire) == address
                && entry.bytes.compare_exchange(bytes, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(entry) = self.entries.iter().find(removes) else { return false };
        entry.address.store(0, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
        true
    }
}

impl Default for IsolationTable {
    fn default() -> Self {
        Self::new()
    }
}

/// Parses the bytes of a table: its change counter and its ranges as (address, bytes). `None` when
/// the bytes are not such a table.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<(u64, impl Iterator<Item = (u64, u64)>)> {
    let (words, rest) = bytes.as_chunks::<8>();
    if bytes.len() != BYTES || !rest.is_empty() {
        return None;
    }
    let word = |index: usize| u64::from_le_bytes(words[index]);
    let entries = words[2..].as_chunks::<2>().0.iter();
    let entries = entries.map(|[address, bytes]| (u64::from_le_bytes(*address), u64::from_le_bytes(*bytes)));
    (word(0) == MAGIC).then(|| (word(1), entries.filter(|&(address, bytes)| address != 0 && bytes != 0)))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// The table as another process reads it.
    fn read_back(table: &IsolationTable) -> (u64, Vec<(u64, u64)>) {
        let words = [table.magic, table.changes.load(Ordering::Relaxed)].into_iter().chain(
            table
                .entries
                .iter()
                .flat_map(|entry| [entry.address.load(Ordering::Relaxed), entry.bytes.load(Ordering::Relaxed)]),
        );
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let (changes, entries) = read(&bytes).unwrap();
        (changes, entries.collect())
    }

    #[test]
    fn an_isolated_range_is_read_from_outside() {
        let table = IsolationTable::new();
        assert_eq!(read_back(&table), (0, Vec::new()));
        assert!(table.isolate(0x1000, 8) && table.isolate(0x2000, 16) && table.isolate(0x1000, 64));
        assert!(table.restore(0x1000, 8) && !table.restore(0x1000, 8) && !table.restore(0x2000, 8));
        assert_eq!(read_back(&table), (4, [(0x2000, 16), (0x1000, 64)].to_vec()));
        assert!(table.isolate(0x3000, 4), "the free entry is used again");
        assert_eq!(read_back(&table).1, [(0x3000, 4), (0x2000, 16), (0x1000, 64)]);
    }

    #[test]
    fn a_full_table_refuses_a_range() {
        let table = IsolationTable::new();
        assert!((1..=ENTRIES as u64).all(|at| table.isolate(at, 1)) && !table.isolate(1, 1));
        assert_eq!(read_back(&table).1.len(), ENTRIES);
    }

    #[test]
    fn bytes_that_are_no_table_are_not_read() {
        assert!(read(&[0; BYTES]).is_none() && read(&[0; 8]).is_none() && read(&[]).is_none());
    }
}
