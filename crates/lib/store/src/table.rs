//! Tables: their names and types, and what is read of them.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::data::{Key, Value};
use crate::error::Result;
use crate::tree::{self, Entries, KeyParts, Pages};

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

/// The value of a key in a tree.
#[inline]
pub(crate) fn get<'a, P: Pages, K: Key + ?Sized, V: Value + ?Sized>(
    pages: &'a P,
    root: Option<u32>,
    key: &K,
    _table: Table<K, V>,
) -> Result<Option<V::Lent<'a>>> {
    let Some(root) = root else { return Ok(None) };
    let Some(bytes) = key.with_bytes(|key| tree::get(pages, root, key))? else { return Ok(None) };
    Ok(Some(V::decode(bytes).ok_or_else(|| wrong_value::<P, V>(pages, root))?))
}

#[cold]
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
#[inline]
pub(crate) fn range<'a, P: Pages, K: Key + ?Sized, V: Value + ?Sized, Q: Borrow<K>>(
    pages: &'a P,
    root: Option<u32>,
    keys: &impl RangeBounds<Q>,
    _table: Table<K, V>,
) -> Result<Range<'a, P, K, V>> {
    let Some(root) = root else { return Ok(Range { pages, entries: None, root: 0, types: PhantomData }) };
    let entries =
        with_bound(keys.start_bound(), |from| with_bound(keys.end_bound(), |to| Entries::new(pages, root, from, to)))?;
    Ok(Range { pages, entries: Some(entries), root, types: PhantomData })
}

/// Calls `use_bytes` with a bound as bytes.
#[inline]
pub(crate) fn with_bound<K: Key + ?Sized, Q: Borrow<K>, T>(
    bound: Bound<&Q>,
    use_bytes: impl FnOnce(Bound<&[u8]>) -> T,
) -> T {
    match bound {
        Bound::Included(key) => key.borrow().with_bytes(|key| use_bytes(Bound::Included(key))),
        Bound::Excluded(key) => key.borrow().with_bytes(|key| use_bytes(Bound::Excluded(key))),
        Bound::Unbounded => use_bytes(Bound::Unbounded),
    }
}

impl<'a, P: Pages, K: Key + ?Sized, V: Value + ?Sized> Range<'a, P, K, V> {
    /// The key and the value of an entry.
    #[inline]
    fn decode(
        entry: Result<Option<(KeyParts<'a>, &'a [u8])>>,
        (pages, root): (&P, u32),
    ) -> Option<Result<(K::Owned, V::Lent<'a>)>> {
        match entry {
            Ok(entry) => {
                let (key, value) = entry?;
                let decoded = K::decode_key_parts(key.prefix, key.rest).zip(V::decode(value));
                Some(decoded.ok_or_else(|| wrong_value::<P, V>(pages, root)))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

impl<'a, P: Pages, K: Key + ?Sized, V: Value + ?Sized> Iterator for Range<'a, P, K, V> {
    type Item = Result<(K::Owned, V::Lent<'a>)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        Self::decode(self.entries.as_mut()?.next(), (self.pages, self.root))
    }
}

impl<P: Pages, K: Key + ?Sized, V: Value + ?Sized> DoubleEndedIterator for Range<'_, P, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        Self::decode(self.entries.as_mut()?.next_back(), (self.pages, self.root))
    }
}
