//! The data: keys with a text or a list each, all of which are in one heap.
//!
//! ```text
//! entry  hash, bytes of the key, kind, three words of the value, the key
//! text   the block of its bytes, their number, unused
//! list   see `list`
//! ```
//! A command that fails changes nothing.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::heap::{Block, Field, Full, Heap};
use crate::list::{LIST_WORDS, List};
use crate::size_class::rounded;
use crate::table::{self, Place};
use crate::words::words_of;

const KEY_BYTES: usize = 1;
const KIND: usize = 2;
const VALUE: usize = 3;
const KEY: usize = VALUE + LIST_WORDS;

const TEXT: u64 = 1;
const LIST: u64 = 2;

/// Why a command changed nothing.
#[derive(Debug)]
pub(crate) enum DataError {
    /// The heap of this many bytes is full.
    Full(usize),
    /// The key has a value of another kind.
    WrongKind,
    NotAnInteger,
    Overflow,
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(bytes) => write!(
                f,
                "OOM command not allowed: the heap of {} is full; start with a larger --memory",
                crate::arguments::size_text(*bytes)
            ),
            Self::WrongKind => f.write_str("WRONGTYPE Operation against a key holding the wrong kind of value"),
            Self::NotAnInteger => f.write_str("ERR value is not an integer or out of range"),
            Self::Overflow => f.write_str("ERR increment or decrement would overflow"),
        }
    }
}

type Result<T> = std::result::Result<T, DataError>;

/// Keys and values in a heap.
#[derive(Debug)]
pub(crate) struct Database {
    heap: Heap,
    seed: u64,
}

impl Database {
    /// The data of a heap that has a table.
    pub(crate) fn new(heap: Heap) -> Self {
        let seed = heap.field(Field::Seed);
        Self { heap, seed }
    }

    /// An empty database.
    pub(crate) fn create(heap: Heap) -> Result<Self> {
        let database = Self::new(heap);
        table::create(&database.heap).map_err(|full| database.full(full))?;
        Ok(database)
    }

    pub(crate) const fn heap(&self) -> &Heap {
        &self.heap
    }

    /// The number of keys.
    pub(crate) fn keys(&self) -> u64 {
        self.heap.field(Field::Keys)
    }

    /// Write commands since the database was created.
    pub(crate) fn writes(&self) -> u64 {
        self.heap.field(Field::Writes)
    }

    pub(crate) fn count_write(&mut self) {
        self.heap.set_field(Field::Writes, self.writes() + 1);
    }

    /// The text of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(place) = self.find(key) else { return Ok(None) };
        let value = self.value(place.entry, TEXT)?;
        Ok(Some(self.heap.read(self.heap.get_block(value), self.heap.get_block(value + 1))))
    }

    /// Sets the text of a key, which may have any value.
    pub(crate) fn set(&mut self, key: &[u8], text: &[u8]) -> Result<()> {
        let Some(Place { entry, .. }) = self.find(key) else { return self.add_text(key, text) };
        let (heap, value, words) = (&self.heap, entry + VALUE, block_words(text.len()));
        let is_in_place =
            heap.get(entry + KIND) == TEXT && rounded(block_words(heap.get_block(value + 1))) == rounded(words);
        if !is_in_place {
            let block = heap.allocate(words).map_err(|full| self.full(full))?;
            self.free_value(entry);
            heap.set(entry + KIND, TEXT);
            heap.set_block(value, block);
        }
        heap.write(heap.get_block(value), text);
        heap.set_block(value + 1, text.len());
        Ok(())
    }

    /// Deletes a key. Returns whether there was one.
    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        let Some(place) = self.find(key) else { return false };
        table::remove(&self.heap, place);
        self.free_value(place.entry);
        self.free_entry(place.entry);
        true
    }

    /// Adds 1 to the integer whose text a key has; no key counts as 0. Returns the sum.
    pub(crate) fn increment(&mut self, key: &[u8]) -> Result<i64> {
        let number = match self.get(key)? {
            Some(text) => integer(&text).ok_or(DataError::NotAnInteger)?,
            None => 0,
        };
        let sum = number.checked_add(1).ok_or(DataError::Overflow)?;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    /// Adds values at the front of the list of a key, one after another. Returns the length of the list.
    pub(crate) fn push(&mut self, key: &[u8], values: &[&[u8]]) -> Result<usize> {
        let (entry, is_new) = match self.find(key) {
            Some(place) => (place.entry, false),
            None => (self.add_entry(key, LIST)?, true),
        };
        let list = List::at(&self.heap, self.value(entry, LIST)?);
        for (pushed, value) in values.iter().enumerate() {
            let Err(full) = list.push(value) else { continue };
            (0..pushed).for_each(|_| list.pop());
            if is_new {
                self.delete(key);
            }
            return Err(self.full(full));
        }
        Ok(list.len())
    }

    /// The values from `start` to `stop`, both included. A negative position counts from the end.
    pub(crate) fn range(&self, key: &[u8], start: i64, stop: i64) -> Result<Vec<Vec<u8>>> {
        let Some(place) = self.find(key) else { return Ok(Vec::new()) };
        let list = List::at(&self.heap, self.value(place.entry, LIST)?);
        let length = list.len() as i64;
        let position = |position: i64| if position < 0 { position.saturating_add(length) } else { position };
        let (start, end) = (position(start).max(0), position(stop).saturating_add(1).min(length));
        Ok(if start < end { list.values(start as usize, (end - start) as usize) } else { Vec::new() })
    }

    /// Deletes all keys.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.heap.clear();
        table::create(&self.heap).map_err(|full| self.full(full))
    }

    fn full(&self, Full: Full) -> DataError {
        DataError::Full(self.heap.bytes())
    }

    fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    fn find(&self, key: &[u8]) -> Option<Place> {
        let is_wanted =
            |entry| self.heap.get_block(entry + KEY_BYTES) == key.len() && self.heap.equals(entry + KEY, key);
        table::find(&self.heap, self.hash(key), is_wanted)
    }

    /// The words of a value of this kind.
    fn value(&self, entry: Block, kind: u64) -> Result<usize> {
        if self.heap.get(entry + KIND) == kind { Ok(entry + VALUE) } else { Err(DataError::WrongKind) }
    }

    fn add_text(&self, key: &[u8], text: &[u8]) -> Result<()> {
        let block = self.heap.allocate(block_words(text.len())).map_err(|full| self.full(full))?;
        let entry = self.add_entry(key, TEXT).inspect_err(|_| self.heap.free(block, block_words(text.len())))?;
        self.heap.write(block, text);
        self.heap.set_block(entry + VALUE, block);
        self.heap.set_block(entry + VALUE + 1, text.len());
        Ok(())
    }

    /// Adds a key whose value is three zeros.
    fn add_entry(&self, key: &[u8], kind: u64) -> Result<Block> {
        let (heap, hash) = (&self.heap, self.hash(key));
        let entry = heap.allocate(KEY + words_of(key.len())).map_err(|full| self.full(full))?;
        heap.set(entry, hash);
        heap.set_block(entry + KEY_BYTES, key.len());
        heap.set(entry + KIND, kind);
        (VALUE..KEY).for_each(|word| heap.set(entry + word, 0));
        heap.write(entry + KEY, key);
        table::insert(heap, hash, entry).map_err(|full| {
            self.free_entry(entry);
            self.full(full)
        })?;
        Ok(entry)
    }

    fn free_entry(&self, entry: Block) {
        self.heap.free(entry, KEY + words_of(self.heap.get_block(entry + KEY_BYTES)));
    }

    fn free_value(&self, entry: Block) {
        let (heap, value) = (&self.heap, entry + VALUE);
        if heap.get(entry + KIND) == LIST {
            List::at(heap, value).clear();
        } else {
            heap.free(heap.get_block(value), block_words(heap.get_block(value + 1)));
        }
    }
}

/// Words of the block of a text.
fn block_words(bytes: usize) -> usize {
    words_of(bytes).max(1)
}

/// The integer that a text is, written as this program writes it.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}
