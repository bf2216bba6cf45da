//! Snapshots: what was committed at one moment.

use std::borrow::Borrow;
use std::fmt;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;

use crate::backup;
use crate::catalog::{self, Signature};
use crate::data::{Key, Value};
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::object::window::WindowUse;
use crate::page::Page;
use crate::raw::RawTable;
use crate::readers::Reader;
use crate::store::Open;
use crate::table::{Range, Table, get, range};
use crate::tree::Pages;

/// What was committed when it was taken. Threads may share it and send it, and what it lends stays as it
/// is. While it lives, the pages that it may read are kept beside their later versions.
pub struct Snapshot {
    pub(crate) open: Arc<Open>,
    reader: Reader,
    /// Pages of the file.
    end: u32,
    /// Shows the objects; `None` if the store has none.
    pub(crate) window: Option<WindowUse>,
    /// Where pointer 0 leads.
    pub(crate) base: usize,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("version", &self.reader.version).finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(crate) fn new(open: Arc<Open>) -> Result<Self> {
        open.shared.check_parent()?;
        let (reader, end) = open.shared.frames.begin_published();
        match open.objects.window(&open.shared, reader.version, end) {
            Ok((window, base)) => Ok(Self { open, reader, end, window, base }),
            Err(error) => {
                open.shared.frames.end(reader);
                Err(error)
            }
        }
    }

    /// A table. One that is absent reads as empty.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Type`] if the table has other types, and as [`Snapshot::check_objects`].
    pub fn table<K: Key + ?Sized, V: Value + ?Sized>(&self, table: Table<K, V>) -> Result<TableRead<'_, K, V>> {
        self.check_objects()?;
        Ok(TableRead { snapshot: self, root: catalog::root(self, &self.open.shared, Signature::of(table))?, table })
    }

    /// The tables of programs, in the order of their names.
    ///
    /// # Errors
    /// As [`TableRead::get`].
    pub fn tables(&self) -> Result<Vec<RawTable>> {
        catalog::tables(self, &self.open.shared)
    }
}

impl Snapshot {
    /// Writes a store with these contents to a new file, while others read and write this one.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Exists`] if there is such a file; [`crate::ErrorKind::Corrupt`] for a damaged
    /// page here; [`crate::ErrorKind::TooOld`] if the snapshot is too old; [`crate::ErrorKind::Full`] and
    /// [`crate::ErrorKind::Io`].
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<()> {
        let (shared, version) = (&self.open.shared, self.reader.version);
        let pinned = shared.frames.begin_pinned(version);
        let written = backup::write(shared, version, self.end, path.as_ref());
        pinned.into_iter().for_each(|reader| shared.frames.end(reader));
        written
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if self.open.shared.is_forked() {
            return;
        }
        // This may be the last user of the store, which closes after this: then no window may keep a version.
        drop(self.window.take());
        self.open.shared.frames.end(self.reader);
    }
}

impl Pages for Snapshot {
    #[inline]
    fn page(&self, number: u32) -> Result<&Page> {
        self.open.shared.page(number, self.reader.version)
    }

    #[inline]
    fn page_in_memory(&self, number: u32) -> Option<&Page> {
        self.open.shared.page_in_memory(number, self.reader.version)
    }

    fn extent(&self, extent: Extent) -> Result<&[u8]> {
        self.open.shared.extent(extent)
    }

    fn wrong(&self, number: u32, what: &str) -> Error {
        self.open.shared.wrong(number, what)
    }
}

/// A table of a snapshot.
#[derive(Debug)]
pub struct TableRead<'a, K: ?Sized, V: ?Sized> {
    snapshot: &'a Snapshot,
    /// `None` of a table that is absent.
    root: Option<u32>,
    table: Table<K, V>,
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> TableRead<'a, K, V> {
    /// The value of a key, lent until the snapshot ends.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] and [`crate::ErrorKind::Io`].
    pub fn get(&self, key: &K) -> Result<Option<V::Lent<'a>>> {
        get(self.snapshot, self.root, key, self.table)
    }

    /// The entries between two keys, in the order of the keys, or with `rev` from the end.
    ///
    /// # Errors
    /// As [`TableRead::get`].
    pub fn range<Q: Borrow<K>>(&self, keys: impl RangeBounds<Q>) -> Result<Range<'a, Snapshot, K, V>> {
        range(self.snapshot, self.root, &keys, self.table)
    }

    /// All entries.
    ///
    /// # Errors
    /// As [`TableRead::get`].
    pub fn iter(&self) -> Result<Range<'a, Snapshot, K, V>> {
        self.range::<&K>(..)
    }
}
