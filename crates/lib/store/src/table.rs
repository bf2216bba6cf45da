//! Tables: their names and types, and what is read of them.

use std::borrow::Borrow;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::data::{Key, Value};
use crate::error::Result;
use crate::tree::{self, Entries, Pages};

/// A table: its name, and the types of its keys and values. They are kept in the file, and checked.
pub struct Table<K: ?Sized, V: ?Sized> {
    name: &'static str,
    types: PhantomData<fn(&K, &V)>,
}

impl<K: ?Sized, V: ?Sized> Table<K, V> {
    /// The table of a name, of at most 512 bytes. Tables with the same name are the same table.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, types: PhantomData }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<K: ?Sized, V: ?Sized> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized, V: ?Sized> Copy for Table<K, V> {}

impl<K: ?Sized, V: ?Sized> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.name).finish()
    }
}

/// The bytes of a key.
pub(crate) fn key_bytes<K: Key + ?Sized>(key: &K) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode(&mut bytes);
    bytes
}

/// Calls `use_bytes` with the bytes of a key, in memory that is used again.
pub(crate) fn with_key<K: Key + ?Sized, T>(key: &K, use_bytes: impl FnOnce(&[u8]) -> T) -> T {
    thread_local!(static BYTES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) });
    let mut bytes = BYTES.take();
    bytes.clear();
    key.encode(&mut bytes);
    let result = use_bytes(&bytes);
    BYTES.set(bytes);
    result
}

/// The value of a key in a tree.
pub(crate) fn get<'a, P: Pages, K: Key + ?Sized, V: Value + ?Sized>(
    pages: &'a P,
    root: Option<u32>,
    key: &K,
    _table: Table<K, V>,
) -> Result<Option<V::Lent<'a>>> {
    let Some(root) = root else { return Ok(None) };
    let Some(bytes) = with_key(key, |key| tree::get(pages, root, key))? else { return Ok(None) };
    Ok(Some(V::decode(bytes).ok_or_else(|| wrong_value::<P, V>(pages, root))?))
}

fn wrong_value<P: Pages, V: Value + ?Sized>(pages: &P, root: u32) -> crate::Error {
    pages.wrong(root, &format!("its tree contains bytes that are no {}", V::TYPE))
}

/// The entries of a table in the order of their keys, from either end.
#[derive(Debug)]
pub struct Range<'a, P, K: ?Sized, V: ?Sized> {
    pages: &'a P,
    /// `None` of a table that is absent.
    entries: Option<Entries<'a, P>>,
    root: u32,
    types: PhantomData<fn(&K, &V)>,
}

/// The entries between two keys.
pub(crate) fn range<'a, P: Pages, K: Key + ?Sized, V: Value + ?Sized, Q: Borrow<K>>(
    pages: &'a P,
    root: Option<u32>,
    keys: &impl RangeBounds<Q>,
    _table: Table<K, V>,
) -> Result<Range<'a, P, K, V>> {
    let [from, to] = bounds(keys);
    let entries = root.map(|root| Entries::new(pages, root, slice(&from), slice(&to))).transpose()?;
    Ok(Range { pages, entries, root: root.unwrap_or(0), types: PhantomData })
}

/// The bounds of a range, as bytes.
pub(crate) fn bounds<K: Key + ?Sized, Q: Borrow<K>>(keys: &impl RangeBounds<Q>) -> [Bound<Vec<u8>>; 2] {
    [keys.start_bound(), keys.end_bound()].map(|bound| bound.map(|key| key_bytes(key.borrow())))
}

/// A bound by its bytes.
pub(crate) fn slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl<'a, P: Pages, K: Key + ?Sized, V: Value + ?Sized> Range<'a, P, K, V> {
    fn decode(&self, key: &[u8], value: &'a [u8]) -> Result<(K::Owned, V::Lent<'a>)> {
        K::decode_key(key).zip(V::decode(value)).ok_or_else(|| wrong_value::<P, V>(self.pages, self.root))
    }

    fn step(&mut self, is_back: bool) -> Option<Result<(K::Owned, V::Lent<'a>)>> {
        let mut entries = self.entries.take()?;
        let entry = if is_back { entries.next_back() } else { entries.next() };
        let entry = match entry {
            Ok(entry) => entry.map(|(key, value)| self.decode(key, value)),
            // An error is the last entry.
            Err(error) => return Some(Err(error)),
        };
        self.entries = Some(entries);
        entry
    }
}

impl<'a, P: Pages, K: Key + ?Sized, V: Value + ?Sized> Iterator for Range<'a, P, K, V> {
    type Item = Result<(K::Owned, V::Lent<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl<P: Pages, K: Key + ?Sized, V: Value + ?Sized> DoubleEndedIterator for Range<'_, P, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}
