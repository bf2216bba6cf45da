//! An open store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::flush::Flusher;
use crate::recovery;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::transaction::Transaction;

/// The smallest log, and the one that a store has unless another is chosen.
const LEAST_LOG: usize = 64 << 10;
const DEFAULT_LOG: usize = 8 << 20;

/// A store in one file. Clones are the same store; it closes with the last of them and of its snapshots.
#[derive(Clone, Debug)]
pub struct Store(pub(crate) Arc<Open>);

/// An open file, with the thread that writes its pages.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) shared: Arc<Shared>,
    pub(crate) flusher: Flusher,
}

/// Options of a store.
#[derive(Clone, Debug)]
pub struct StoreBuilder {
    path: PathBuf,
    log_bytes: usize,
}

impl StoreBuilder {
    /// The size of the log of a store that is made now: 64 KiB or more, default 8 MiB. With a small log,
    /// pages are written to their places more often.
    #[must_use]
    pub const fn log_bytes(mut self, bytes: usize) -> Self {
        self.log_bytes = bytes;
        self
    }

    /// Opens the store, or makes it.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(self) -> Result<Store> {
        let Ok(log_pages) = u32::try_from(self.log_bytes.max(LEAST_LOG).next_multiple_of(8192) / 4096) else {
            return Err(Error::new(ErrorKind::TooLarge, &self.path, "cannot use a log of this size"));
        };
        let (shared, header) = recovery::open(&self.path, log_pages)?;
        let flusher = Flusher::start_thread(&shared, header)?;
        Ok(Store(Arc::new(Open { shared, flusher })))
    }
}

impl Store {
    /// Opens the store of a file. Makes it if the file is absent, and recovers what was committed.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is open elsewhere, [`ErrorKind::Corrupt`], [`ErrorKind::Version`],
    /// [`ErrorKind::Io`] and [`ErrorKind::Memory`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder(path).open()
    }

    /// Options, then [`StoreBuilder::open`].
    #[must_use]
    pub fn builder(path: impl AsRef<Path>) -> StoreBuilder {
        StoreBuilder { path: path.as_ref().to_owned(), log_bytes: DEFAULT_LOG }
    }

    /// A snapshot: what is committed now.
    ///
    /// # Errors
    /// None yet.
    pub fn read(&self) -> Result<Snapshot> {
        Ok(Snapshot::new(Arc::clone(&self.0)))
    }

    /// Writes a store with what is committed now to a new file, while others read and write.
    ///
    /// # Errors
    /// As [`Snapshot::backup`].
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<()> {
        self.read()?.backup(path)
    }

    /// Begins a transaction, once no other one is open.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`] after a failed write; [`ErrorKind::Forked`] in a forked child.
    pub fn begin(&self) -> Result<Transaction> {
        Transaction::begin(Arc::clone(&self.0))
    }

    /// Makes a transaction of what `change` does. It is durable when this returns. After an error or a
    /// panic of `change` nothing has changed.
    ///
    /// # Errors
    /// Those of `change`, and as [`Transaction::commit`].
    pub fn write<T>(&self, change: impl FnOnce(&mut Transaction) -> Result<T>) -> Result<T> {
        let mut transaction = self.begin()?;
        let result = change(&mut transaction)?;
        transaction.commit()?;
        Ok(result)
    }
}

impl Drop for Open {
    /// Empties the log, so that the next opening has nothing to recover.
    fn drop(&mut self) {
        if self.shared.is_forked() {
            self.flusher.forget();
            return;
        }
        let mut writer = self.shared.take_writer();
        if self.shared.check_writable().is_ok()
            && writer.position > 0
            && writer.turn(&self.shared, &self.flusher).is_ok()
        {
            let _ = self.flusher.wait(&self.shared, writer.epoch);
        }
        self.shared.return_writer(writer);
    }
}
