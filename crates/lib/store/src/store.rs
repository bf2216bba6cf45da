//! An open store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fieldstone_sys::limits::limits;
use fieldstone_sys::machine::machine;

use crate::backup;
use crate::catalog;
use crate::error::{Error, ErrorKind, Result};
use crate::flush::Flusher;
use crate::object::{ObjectOptions, Objects, types::PAGES};
use crate::page::PAGE;
use crate::progress::{OnRecovery, RecoveryOptions, RecoveryProgress};
use crate::recovery;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::transaction::Transaction;

/// The smallest log.
const LEAST_LOG: usize = 64 << 10;
/// The largest log. Its zeros are written when the store is made, and half of it is read into memory at once
/// by a recovery.
const LARGEST_LOG: usize = 1 << 30;
/// The log that a store has unless another is chosen. A larger one is emptied less often, and each page is
/// written less often then; but it is a part of the file. With 200,000 entries of 116 bytes, a commit of 100
/// updates takes 0.88 of this time with 8 MiB and 1.20 with 2 MiB, while the log is 0.36, 0.18 and 0.09 of
/// the bytes of the entries with 8, 4 and 2 MiB.
const DEFAULT_LOG: usize = 4 << 20;
/// The least memory for what was read.
const LEAST_MEMORY: usize = 1 << 20;

/// Half of the memory that this process can have.
fn half_of_memory() -> usize {
    let group = limits().cgroup.and_then(|group| group.limit_bytes).unwrap_or(u64::MAX);
    (machine().memory_available_bytes.min(group) / 2) as usize
}

/// A store in one file. Clones are the same store; it closes with the last of them and of its snapshots.
#[derive(Clone, Debug)]
pub struct Store(pub(crate) Arc<Open>);

/// An open file, with the thread that writes its pages.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) shared: Arc<Shared>,
    pub(crate) flusher: Flusher,
    pub(crate) objects: Objects,
}

/// Options of a store.
#[derive(Clone, Debug)]
pub struct StoreBuilder {
    path: PathBuf,
    log_bytes: usize,
    memory_bytes: Option<usize>,
    old_version_bytes: Option<usize>,
    creates: bool,
    recovery: RecoveryOptions,
    objects: ObjectOptions,
}

impl StoreBuilder {
    /// The size of the log of a store that is made now: 64 KiB to 1 GiB, default 4 MiB. With a small log,
    /// pages are written to their places more often.
    #[must_use]
    pub const fn log_bytes(mut self, bytes: usize) -> Self {
        self.log_bytes = bytes;
        self
    }

    /// Memory for what was read: 1 MiB or more, default half of what the machine and the memory control
    /// group have when the store is opened. It is exceeded by what living snapshots have read, and by what
    /// a transaction changes.
    #[must_use]
    pub const fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Memory for versions of pages that were replaced and that a snapshot may still read: 1 MiB or more,
    /// default half of [`StoreBuilder::memory_bytes`]. Beyond it, the oldest snapshots end: they read no
    /// further page ([`ErrorKind::TooOld`]), and what they were lent stays until they are dropped.
    #[must_use]
    pub const fn old_version_bytes(mut self, bytes: usize) -> Self {
        self.old_version_bytes = Some(bytes);
        self
    }

    /// Whether a store is made if the file is absent; default true. Otherwise that is an error
    /// ([`ErrorKind::Absent`]), for example if a file system is not mounted.
    #[must_use]
    pub const fn create(mut self, is_on: bool) -> Self {
        self.creates = is_on;
        self
    }

    /// A function that is called while the store is opened, if there are commits that are only in its log, or
    /// if commits are lost: when the log has been read, after each write of pages, and when all pages are
    /// durable. A recovery reads the log and writes each page once that the log changes, so it takes no longer
    /// for a larger store.
    #[must_use]
    pub fn on_recovery(mut self, report: impl Fn(RecoveryProgress) + Send + Sync + 'static) -> Self {
        self.recovery.on_recovery = OnRecovery::new(report);
        self
    }

    /// Opens a store although a record in the middle of its log is damaged; default false, which is an error
    /// ([`ErrorKind::Corrupt`]). The store has the commits before the damaged record. The commits from it on
    /// are lost permanently, and [`RecoveryProgress::lost_commits`] reports how many. Pages that were written to
    /// their places after these commits are damaged, or newer than the rest, and large values are unreadable whose
    /// room later commits have used again: use a backup if there is one.
    #[must_use]
    pub const fn accept_lost_commits(mut self, is_on: bool) -> Self {
        self.recovery.accepts_lost_commits = is_on;
        self
    }

    /// Collects objects at commits: each commit that changes something does a step of a collection, once
    /// enough objects were added or changed. See [`Store::collected`]; default false.
    #[must_use]
    pub const fn collect_at_commit(mut self, is_on: bool) -> Self {
        self.objects.collects_at_commit = is_on;
        self
    }

    /// The largest number of pages that the objects of a snapshot or transaction can be in, for tests of
    /// stores that are larger; default 2^23, for 32 GiB.
    #[doc(hidden)]
    #[must_use]
    pub fn window_pages(mut self, pages: u32) -> Self {
        self.objects.slots = pages.clamp(16, ObjectOptions::DEFAULT.slots);
        self
    }

    /// The pages of the log of a new store, an even number.
    ///
    /// # Errors
    /// If the size of the log or of the memory is outside of its range.
    fn check_sizes(&self) -> Result<u32> {
        let outside = |what: String, remedy| Error::new(ErrorKind::TooLarge, &self.path, what).with_remedy(remedy);
        if !(LEAST_LOG..=LARGEST_LOG).contains(&self.log_bytes) {
            let what = format!("cannot use a log of {} bytes: it has 64 KiB to 1 GiB", self.log_bytes);
            return Err(outside(what, "StoreBuilder::log_bytes with 65536 to 1073741824, or without it 4 MiB"));
        }
        if let Some(bytes) = self.memory_bytes.filter(|bytes| *bytes < LEAST_MEMORY) {
            let what = format!("cannot use {bytes} bytes of memory: it has 1 MiB or more");
            return Err(outside(what, "StoreBuilder::memory_bytes with 1048576 or more"));
        }
        if let Some(bytes) = self.old_version_bytes.filter(|bytes| *bytes < LEAST_MEMORY) {
            let what = format!("cannot keep old versions in {bytes} bytes of memory: it has 1 MiB or more");
            return Err(outside(what, "StoreBuilder::old_version_bytes with 1048576 or more"));
        }
        Ok((self.log_bytes.next_multiple_of(2 * PAGE) / PAGE) as u32)
    }

    /// Opens the store, or makes it.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] if the size of the log or of the memory is outside of its range: nothing is
    /// read or written then. [`ErrorKind::Absent`] without a file if none is to be made. As [`Store::open`].
    pub fn open(self) -> Result<Store> {
        let log_pages = self.check_sizes()?;
        let memory = self.memory_bytes.unwrap_or_else(half_of_memory).max(LEAST_MEMORY);
        let (shared, header) = recovery::open(&self.path, self.creates.then_some(log_pages), memory, &self.recovery)?;
        shared.frames.limit_old_versions(self.old_version_bytes.unwrap_or(memory / 2).max(LEAST_MEMORY));
        let flusher = Flusher::start_thread(&shared, header)?;
        let objects = ObjectOptions { memory_bytes: memory / 8, ..self.objects };
        Store::new(shared, flusher, objects)
    }
}

impl Store {
    /// The store of an open file.
    pub(crate) fn new(shared: Arc<Shared>, flusher: Flusher, options: ObjectOptions) -> Result<Self> {
        let objects = Objects::new(&shared, options)?;
        let store = Self(Arc::new(Open { shared, flusher, objects }));
        let now = store.read()?;
        // What cannot be read now is an error of the first access.
        if catalog::root(&now, &store.0.shared, PAGES).map_or(true, |root| root.is_some()) {
            store.0.shared.object_changes.set_has_objects();
        }
        Ok(store)
    }

    /// Opens the store of a file. Makes it if the file is absent, and recovers what was committed.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is open elsewhere, [`ErrorKind::Corrupt`], [`ErrorKind::Version`],
    /// [`ErrorKind::Io`] and [`ErrorKind::Memory`]. [`ErrorKind::Corrupt`] also if commits that were durable are
    /// lost, because a record of the log is damaged: see [`StoreBuilder::accept_lost_commits`]. After
    /// [`ErrorKind::Corrupt`], the file is as before.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(path).open()
    }

    /// Options, then [`StoreBuilder::open`].
    #[must_use]
    pub fn builder(path: impl AsRef<Path>) -> StoreBuilder {
        StoreBuilder {
            path: path.as_ref().to_owned(),
            log_bytes: DEFAULT_LOG,
            memory_bytes: None,
            old_version_bytes: None,
            creates: true,
            recovery: RecoveryOptions::default(),
            objects: ObjectOptions::DEFAULT,
        }
    }

    /// A snapshot: what is committed now.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] without addresses for objects; [`ErrorKind::Forked`] in a forked child.
    pub fn read(&self) -> Result<Snapshot> {
        Snapshot::new(Arc::clone(&self.0))
    }

    /// Writes a store with what is committed now to a new file, while others read and write. What they replace
    /// meanwhile stays in memory until the end of the backup, also beyond [`StoreBuilder::old_version_bytes`].
    /// The new file has at most the permissions of the file of the store.
    ///
    /// # Errors
    /// As [`Snapshot::backup`], except [`ErrorKind::TooOld`].
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<()> {
        let shared = &self.0.shared;
        let (reader, end) = shared.frames.begin_published_pinned();
        let written = backup::write(shared, reader.version, end, path.as_ref());
        shared.frames.end(reader);
        written
    }

    /// Makes the file smaller: moves pages from its end to unused places, then cuts it. Others read and
    /// write meanwhile; each step is a transaction of at most 64 pages, or of one large value. Returns how
    /// many bytes smaller the file is. What a living snapshot may read is not cut off: then the file becomes
    /// smaller later.
    ///
    /// Cost: each page of the tables is read, and those at the end are written twice.
    ///
    /// # Errors
    /// As [`Transaction::commit`]. What was moved before stays moved.
    pub fn compact(&self) -> Result<u64> {
        let bytes = || self.0.shared.storage.bytes().map_err(|error| Error::io(&self.0.shared.path, "read", &error));
        let before = bytes()?;
        let mut compaction = None;
        while self.write(|tx| tx.compact(&mut compaction))? {}
        self.write(Transaction::trim)?;
        self.begin()?.cut()?;
        Ok(before.saturating_sub(bytes()?))
    }

    /// Begins a transaction, once no other one is open.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`] after a failed write; [`ErrorKind::Forked`] in a forked child.
    pub fn begin(&self) -> Result<Transaction> {
        Transaction::begin(&self.0)
    }

    /// As [`Store::begin`], without waiting: `None` if another transaction is open.
    ///
    /// # Errors
    /// As [`Store::begin`].
    pub fn try_begin(&self) -> Result<Option<Transaction>> {
        Transaction::try_begin(&self.0)
    }

    /// Makes a transaction of what `change` does. It is durable when this returns. After an error or a
    /// panic of `change` nothing has changed.
    ///
    /// # Errors
    /// Those of `change`, and as [`Transaction::commit`].
    pub fn write<T>(&self, change: impl FnOnce(&mut Transaction) -> Result<T>) -> Result<T> {
        self.write_or(change)
    }

    /// As [`Store::write`], for a `change` with errors of its own.
    /// ```
    /// # use fieldstone_store::{Error, Store, Table};
    /// const USERS: Table<u64, str> = Table::new("users");
    ///
    /// fn add(store: &Store, id: &str, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    ///     store.write_or(|tx| {
    ///         tx.table(USERS)?.insert(&id.parse()?, name)?;
    ///         Ok(())
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Store::write`].
    pub fn write_or<T, E: From<Error>>(
        &self,
        change: impl FnOnce(&mut Transaction) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut transaction = self.begin()?;
        let result = change(&mut transaction)?;
        transaction.commit()?;
        Ok(result)
    }
}

impl Drop for Open {
    /// Empties the log, so that the next opening has nothing to recover, and cuts the file behind its pages.
    fn drop(&mut self) {
        if self.shared.is_forked() {
            self.flusher.forget();
            return;
        }
        let mut writer = self.shared.take_writer();
        if self.shared.check_writable().is_ok()
            && (writer.position == 0 || writer.turn(&self.shared, &self.flusher).is_ok())
            && self.flusher.wait(&self.shared, writer.epoch).is_ok()
        {
            // No snapshot and no transaction is left.
            writer.release_pages(&self.shared);
            let _ = writer.cut(&self.shared);
        }
        self.shared.return_writer(writer);
    }
}
