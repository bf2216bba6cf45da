//! What a program asks to have on cache lines of its own: a table in its memory, which a repairer reads from outside.
//!
//! ```text
//!   magic | changes | (address, bytes) | (address, bytes) | …
//! ```
//! An entry counts while its number of bytes is not 0. That is written last and taken away first, and `changes` is counted up after: who
//! reads the table when `changes` has changed misses nothing for good.

use core::sync::atomic::{AtomicU64, Ordering};

/// The table's name among a program's symbols.
pub const SYMBOL: &str = "fieldstone_isolated";
/// What it begins with.
pub const MAGIC: u64 = u64::from_le_bytes(*b"isolate1");
/// Ranges that it has room for.
pub const ENTRIES: usize = 255;

/// The table.
#[repr(C)]
#[derive(Debug)]
pub struct Isolated {
    magic: u64,
    changes: AtomicU64,
    entries: [Entry; ENTRIES],
}

#[repr(C)]
#[derive(Debug)]
struct Entry {
    address: AtomicU64,
    bytes: AtomicU64,
}

/// Where in it stands how often it has changed.
pub const CHANGES_AT: u64 = 8;
/// Bytes of the table.
pub const BYTES: usize = size_of::<Isolated>();

impl Isolated {
    /// One that asks for nothing.
    #[must_use]
    pub const fn new() -> Self {
        let entries = [const { Entry { address: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; ENTRIES];
        Self { magic: MAGIC, changes: AtomicU64::new(0), entries }
    }

    /// Asks for `bytes` from `address` on, neither of which is 0. False where there is no room for one more.
    pub fn isolate(&self, address: u64, bytes: u64) -> bool {
        let takes =
            |entry: &&Entry| entry.address.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let Some(entry) = self.entries.iter().find(takes) else { return false };
        entry.bytes.store(bytes, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
        true
    }

    /// Asks no longer for that range. False where nobody did.
    pub fn restore(&self, address: u64, bytes: u64) -> bool {
        let is = |entry: &&Entry| {
            entry.address.load(Ordering::Acquire) == address
                && entry.bytes.compare_exchange(bytes, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(entry) = self.entries.iter().find(is) else { return false };
        entry.address.store(0, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
        true
    }
}

impl Default for Isolated {
    fn default() -> Self {
        Self::new()
    }
}

/// The words of a table that was read from outside: how often it has changed, and what it asks for. None for what is no such table.
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

    /// As somebody outside reads it.
    fn seen(table: &Isolated) -> (u64, Vec<(u64, u64)>) {
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
    fn what_is_asked_for_is_read_from_outside() {
        let table = Isolated::new();
        assert_eq!(seen(&table), (0, Vec::new()));
        assert!(table.isolate(0x1000, 8) && table.isolate(0x2000, 16) && table.isolate(0x1000, 64));
        assert!(table.restore(0x1000, 8) && !table.restore(0x1000, 8) && !table.restore(0x2000, 8));
        assert_eq!(seen(&table), (4, [(0x2000, 16), (0x1000, 64)].to_vec()));
        assert!(table.isolate(0x3000, 4), "the free entry is used again");
        assert_eq!(seen(&table).1, [(0x3000, 4), (0x2000, 16), (0x1000, 64)]);
    }

    #[test]
    fn a_full_table_says_so() {
        let table = Isolated::new();
        assert!((1..=ENTRIES as u64).all(|at| table.isolate(at, 1)) && !table.isolate(1, 1));
        assert_eq!(seen(&table).1.len(), ENTRIES);
    }

    #[test]
    fn what_is_no_table_is_not_read() {
        assert!(read(&[0; BYTES]).is_none() && read(&[0; 8]).is_none() && read(&[]).is_none());
    }
}
