//! Transactions: changes that become durable together, or not at all.

use std::borrow::Borrow;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use crate::catalog::{self, Signature};
use crate::commit::Writer;
use crate::compact::{self, Compaction};
use crate::data::{Key, Value};
use crate::editor::{Editor, Edits};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{Extent, LARGEST_VALUE};
use crate::node::{LARGEST_ENTRY, LARGEST_KEY, Payload};
use crate::object::{ObjectEdits, types::check_table_name};
use crate::page::Page;
use crate::readers::Reader;
use crate::shared::Shared;
use crate::store::Open;
use crate::table::{Range, Table, get, range, with_bound};
use crate::tree::{self, Pages};

/// Changes of a store. It sees its own; others see them when it has committed. Dropped without a commit, it
/// changes nothing. There is one at a time.
pub struct Transaction {
    pub(crate) open: Arc<Open>,
    pub(crate) writer: Writer,
    pub(crate) edits: Edits,
    pub(crate) reader: Reader,
    pub(crate) objects: ObjectEdits,
    /// Why nothing can be committed: the first operation that failed in the middle.
    pub(crate) failure: Option<Box<Failure>>,
}

/// A failed operation of a transaction.
pub(crate) struct Failure {
    error: Error,
    /// The last savepoint before it.
    savepoint: Option<u64>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("version", &self.reader.version).finish_non_exhaustive()
    }
}

/// A point in a transaction to which its changes can be undone.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint(u64);

impl Transaction {
    pub(crate) fn begin(open: &Arc<Open>) -> Result<Self> {
        // A transaction of the parent may have the writer of a forked child.
        open.shared.check_writable()?;
        Self::new(Arc::clone(open), open.shared.take_writer())
    }

    /// Begins a transaction, unless another one is open.
    pub(crate) fn try_begin(open: &Arc<Open>) -> Result<Option<Self>> {
        open.shared.check_writable()?;
        open.shared.try_take_writer().map(|writer| Self::new(Arc::clone(open), writer)).transpose()
    }

    fn new(open: Arc<Open>, mut writer: Writer) -> Result<Self> {
        if let Err(error) = open.shared.check_writable() {
            open.shared.return_writer(writer);
            return Err(error);
        }
        writer.release_pages(&open.shared);
        let reader = open.shared.frames.begin(writer.sequence);
        let edits = Edits::new(writer.end, writer.group);
        let objects = ObjectEdits::new(open.objects.windows.slots(), writer.end);
        Ok(Self { open, writer, edits, reader, objects, failure: None })
    }

    fn shared(&self) -> &Shared {
        &self.open.shared
    }

    /// Makes a change; after an error in the middle of it, the transaction cannot be committed.
    pub(crate) fn change<T>(&mut self, change: impl FnOnce(&mut Editor<'_>) -> Result<T>) -> Result<T> {
        let (shared, version) = (&*self.open.shared, self.reader.version);
        let mut editor = Editor { shared, edits: &mut self.edits, writer: &self.writer, version };
        let result = change(&mut editor);
        self.note_failure(result)
    }

    /// Notes that an operation has failed in the middle, if it has.
    pub(crate) fn note_failure<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            let failure = || Box::new(Failure { error: error.clone(), savepoint: self.edits.last_mark() });
            self.failure.get_or_insert_with(failure);
        }
        result
    }

    /// Moves pages from the end of the file; returns whether there may be more to move.
    pub(crate) fn compact(&mut self, compaction: &mut Option<Compaction>) -> Result<bool> {
        self.change(|editor| {
            let compaction = match compaction {
                Some(compaction) => compaction,
                None => compaction.insert(Compaction::new(editor)?),
            };
            compaction.step(editor)
        })
    }

    /// Ends the file behind the last page that is in use.
    pub(crate) fn trim(&mut self) -> Result<()> {
        self.change(compact::trim)
    }

    /// Cuts the file behind its end.
    pub(crate) fn cut(&self) -> Result<()> {
        // The thread may still write pages that are behind the end by now.
        self.open.flusher.wait(self.shared(), self.writer.epoch)?;
        self.writer.cut(self.shared())
    }

    /// A table, which is made if it is absent.
    ///
    /// # Errors
    /// [`ErrorKind::Type`] if the table has other types, and as [`TableWrite::insert`].
    pub fn table<K: Key + ?Sized, V: Value + ?Sized>(&mut self, table: Table<K, V>) -> Result<TableWrite<'_, K, V>> {
        let root = self.table_root(Signature::of(table))?;
        Ok(TableWrite { transaction: self, root, table })
    }

    /// Removes a table with all its entries, whatever its types are. Returns whether it was there. A later
    /// table of this name may have other types.
    ///
    /// Cost: each page of the table is read once.
    ///
    /// # Errors
    /// [`ErrorKind::Type`] for a name that belongs to the store, and as [`TableWrite::insert`].
    pub fn remove_table(&mut self, name: &str) -> Result<bool> {
        check_table_name(self.shared(), name)?;
        self.change(|editor| catalog::remove(editor, name))
    }

    /// The root of a table, which is made if it is absent.
    pub(crate) fn table_root(&mut self, table: Signature<'_>) -> Result<u32> {
        check_table_name(self.shared(), table.name)?;
        check_name_sizes(self.shared(), table)?;
        // A table with other types changes nothing.
        match catalog::root(self, self.shared(), table)? {
            Some(root) => Ok(root),
            None => self.change(|editor| catalog::root_or_new(editor, table)),
        }
    }

    /// Inserts an entry, or replaces its value. Returns whether the key is new.
    pub(crate) fn insert_bytes(&mut self, root: u32, key: &[u8], value: &[u8]) -> Result<bool> {
        check_size(self.shared(), key.len(), value.len())?;
        self.change(|editor| {
            if key.len() + value.len() <= LARGEST_ENTRY {
                return tree::insert(editor, root, key, Payload::Value(value));
            }
            let reference = editor.write_extent(value.to_vec())?.encode();
            tree::insert(editor, root, key, Payload::Reference(&reference))
        })
    }

    /// A point to which the changes from now on can be undone.
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint(self.edits.mark())
    }

    /// Undoes the changes behind a savepoint, which stays; later ones end. Operations that failed behind it no longer
    /// prevent the commit.
    ///
    /// # Panics
    /// If the savepoint has ended, or is one of another transaction.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        assert!(
            self.edits.has_mark(savepoint.0),
            "cannot roll back to a savepoint that has ended or is of another transaction: a rollback to an earlier \
             savepoint ends later ones"
        );
        self.edits.roll_back_to(savepoint.0, &self.open.shared);
        self.objects.forget();
        // Numbers of savepoints increase.
        self.failure.take_if(|failure| failure.savepoint.is_some_and(|last| savepoint.0 <= last));
    }

    /// Makes the changes durable, then visible.
    ///
    /// # Errors
    /// [`ErrorKind::Full`]: nothing has changed. Other errors of the file, and a write that fails although its
    /// room was reserved ([`ErrorKind::Poisoned`]): the store takes no more writes until it is opened again,
    /// and only then is it known whether the changes are there. The error of an operation of this transaction that
    /// failed: nothing has changed.
    pub fn commit(self) -> Result<()> {
        let open = Arc::clone(&self.open);
        let sequence = self.append()?;
        open.shared.queue.wait(&open.shared, sequence)
    }

    /// Commits without waiting until the changes are durable: a crash soon afterwards may lose them, the
    /// later ones first. They become durable and visible with the next commit, or when a thread of the
    /// store has written them, usually within a millisecond. The next transaction sees them at once.
    ///
    /// # Errors
    /// As [`Transaction::commit`]. If a write fails later, the next transaction is refused.
    pub fn commit_later(self) -> Result<()> {
        let open = Arc::clone(&self.open);
        let sequence = self.append()?;
        open.flusher.write_log_soon(sequence);
        Ok(())
    }

    /// Appends the changes to the log, and ends; the number of the commit.
    fn append(mut self) -> Result<u64> {
        self.shared().check_parent()?;
        if let Some(failure) = self.failure.take() {
            return Err(failure.error.of_commit());
        }
        self.collect_step();
        self.writer.append(&self.open.shared, &self.open.flusher, &mut self.edits, self.reader.version)?;
        Ok(self.writer.sequence)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let shared = &self.open.shared;
        if shared.is_forked() {
            return;
        }
        self.edits.drop_all(shared);
        self.edits.cut_back(shared);
        shared.frames.end(self.reader);
        shared.return_writer(std::mem::take(&mut self.writer));
    }
}

impl Pages for Transaction {
    fn page(&self, number: u32) -> Result<&Page> {
        self.edits.page(self.shared(), number, self.reader.version)
    }

    fn extent(&self, extent: Extent) -> Result<&[u8]> {
        self.shared().extent(extent)
    }

    fn wrong(&self, number: u32, what: &str) -> Error {
        self.shared().wrong(number, what)
    }
}

/// # Errors
/// If a key or a value is too large.
fn check_size(shared: &Shared, key: usize, value: usize) -> Result<()> {
    let (what, remedy) = if key > LARGEST_KEY {
        let what = format!("cannot insert a key of {key} bytes: a key has at most {LARGEST_KEY} bytes");
        (what, "a shorter key, for example a hash of this one, with the whole key in the value")
    } else if value > LARGEST_VALUE {
        let what = format!("cannot insert a value of {value} bytes: a value has at most {LARGEST_VALUE} bytes");
        (what, "several smaller values, each with a key of its own")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::TooLarge, &shared.path, what).with_remedy(remedy))
}

/// # Errors
/// If the name of a table, or the names of its types, are too long.
fn check_name_sizes(shared: &Shared, table: Signature<'_>) -> Result<()> {
    let bytes = table.name.len();
    let (what, remedy) = if bytes > LARGEST_KEY {
        let what = format!("cannot use a table with a name of {bytes} bytes: it has at most {LARGEST_KEY} bytes");
        (what, "a shorter name")
    } else if table.entry_bytes() > LARGEST_ENTRY {
        let (name, key, value) = (table.name, table.key.len(), table.value.len());
        let most = LARGEST_ENTRY - (table.entry_bytes() - key - value);
        let what = format!(
            "cannot use the table {name}: the names of its types have {key} and {value} bytes, and may have {most} \
             bytes together"
        );
        (what, "shorter names in Key::TYPE and Value::TYPE")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::TooLarge, &shared.path, what).with_remedy(remedy))
}

/// A table of a transaction.
#[derive(Debug)]
pub struct TableWrite<'a, K: ?Sized, V: ?Sized> {
    transaction: &'a mut Transaction,
    root: u32,
    table: Table<K, V>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> TableWrite<'_, K, V> {
    /// Inserts an entry, or replaces its value. Returns whether the key is new.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`], [`ErrorKind::Full`], [`ErrorKind::Corrupt`] and [`ErrorKind::Io`]. After
    /// the last three, the transaction cannot be committed.
    pub fn insert(&mut self, key: &K, value: &V) -> Result<bool> {
        key.with_bytes(|key| value.with_bytes(|value| self.transaction.insert_bytes(self.root, key, value)))
    }

    /// Removes an entry. Returns whether it was there.
    ///
    /// # Errors
    /// As [`TableWrite::insert`].
    pub fn remove(&mut self, key: &K) -> Result<bool> {
        let root = self.root;
        key.with_bytes(|key| self.transaction.change(|editor| tree::remove(editor, root, key)))
    }

    /// Removes all entries between two keys; how many they were.
    ///
    /// # Errors
    /// As [`TableWrite::insert`].
    pub fn remove_range<Q: Borrow<K>>(&mut self, keys: impl RangeBounds<Q>) -> Result<u64> {
        let root = self.root;
        with_bound(keys.start_bound(), |from| {
            with_bound(keys.end_bound(), |to| {
                self.transaction.change(|editor| tree::remove_range(editor, root, from, to))
            })
        })
    }

    /// Removes all entries; how many they were. [`Transaction::remove_table`] removes the table, too.
    ///
    /// # Errors
    /// As [`TableWrite::insert`].
    pub fn clear(&mut self) -> Result<u64> {
        self.remove_range::<&K>(..)
    }

    /// The value of a key, as of now.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] and [`ErrorKind::Io`].
    pub fn get(&self, key: &K) -> Result<Option<V::Lent<'_>>> {
        get(&*self.transaction, Some(self.root), key, self.table)
    }

    /// The entries between two keys, as of now.
    ///
    /// # Errors
    /// As [`TableWrite::get`].
    pub fn range<Q: Borrow<K>>(&self, keys: impl RangeBounds<Q>) -> Result<Range<'_, Transaction, K, V>> {
        range(&*self.transaction, Some(self.root), &keys, self.table)
    }

    /// All entries, as of now.
    ///
    /// # Errors
    /// As [`TableWrite::get`].
    pub fn iter(&self) -> Result<Range<'_, Transaction, K, V>> {
        self.range::<&K>(..)
    }
}
