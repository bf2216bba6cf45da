//! LMDB: each commit is durable. Read-ahead is off, as its documentation advises for files larger than memory; it
//! changes nothing for a file that is in memory.

#![allow(unsafe_code, reason = "LMDB maps its file: no other process may change it")]

use std::ops::Bound;
use std::path::Path;

use anyhow::Context;
use heed::types::Bytes;
use heed::{CommitOrAbort, CompactionOption, Database, Env, EnvFlags, EnvOpenOptions, FlagSetMode, PutFlags};

use super::engine::{Engine, Entry, Totals, get_by_sharing};

/// Addresses for the file, which never reaches this size.
const MAP_BYTES: usize = 8 << 30;

pub(super) struct Lmdb {
    environment: Env,
    /// The unnamed database: a named one costs another page a commit.
    records: Database<'static, Bytes, Bytes>,
}

impl Lmdb {
    /// Whether commits wait for the disk.
    fn set_synced(&self, is_synced: bool) -> anyhow::Result<()> {
        let mode = if is_synced { FlagSetMode::Disable } else { FlagSetMode::Enable };
        // SAFETY: one thread at a time changes the flags, because a measurement writes with one thread.
        unsafe { self.environment.set_flags(EnvFlags::NO_SYNC, mode)? };
        Ok(())
    }
}

impl Engine for Lmdb {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        // SAFETY: the flag changes how the kernel reads the file, not what is read.
        unsafe { options.flags(EnvFlags::NO_READ_AHEAD) };
        // SAFETY: the directory is a new temporary one, so only this process accesses the file.
        let environment = unsafe { options.open(directory)? };
        let transaction = environment.write_txn()?;
        let created = environment.create_databases_and_commit(transaction, |opener, transaction| {
            opener.create_database::<Bytes, Bytes>(transaction, None).map(CommitOrAbort::<_, ()>::Commit)
        });
        let records = created?.commit().context("the transaction has committed")?;
        Ok(Self { environment, records })
    }

    fn commit(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        let mut transaction = self.environment.write_txn()?;
        for (key, value) in entries {
            self.records.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn update(&self, key: &[u8], offset: usize, field: &[u8]) -> anyhow::Result<()> {
        let mut transaction = self.environment.write_txn()?;
        let mut value = self.records.get(&transaction, key)?.context("the key to update is absent")?.to_vec();
        value[offset..offset + field.len()].copy_from_slice(field);
        self.records.put(&mut transaction, key, &value)?;
        Ok(transaction.commit()?)
    }

    fn get(&self, keys: &[&[u8]]) -> anyhow::Result<Totals> {
        let transaction = self.environment.read_txn()?;
        let mut totals = Totals::default();
        for key in keys {
            if let Some(value) = self.records.get(&transaction, key)? {
                totals.add(value);
            }
        }
        Ok(totals)
    }

    fn scan(&self, starts: &[&[u8]], limit: usize) -> anyhow::Result<Totals> {
        let transaction = self.environment.read_txn()?;
        let mut totals = Totals::default();
        for &start in starts {
            let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(start), Bound::Unbounded);
            for entry in self.records.range(&transaction, &range)?.take(limit) {
                totals.add(entry?.1);
            }
        }
        Ok(totals)
    }

    fn get_in_threads(&self, shards: &[&[&[u8]]]) -> anyhow::Result<Totals> {
        get_by_sharing(self, shards)
    }

    fn count(&self) -> anyhow::Result<u64> {
        Ok(self.records.len(&*self.environment.read_txn()?)?)
    }

    fn commit_each_later(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        self.set_synced(false)?;
        entries.iter().try_for_each(|entry| self.commit(std::slice::from_ref(entry)))?;
        self.set_synced(true)
    }

    fn append(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        let mut transaction = self.environment.write_txn()?;
        for (key, value) in entries {
            self.records.put_with_flags(&mut transaction, PutFlags::APPEND, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn remove(&self, keys: &[&[u8]]) -> anyhow::Result<u64> {
        let mut transaction = self.environment.write_txn()?;
        let mut removed = 0;
        for key in keys {
            removed += u64::from(self.records.delete(&mut transaction, key)?);
        }
        transaction.commit()?;
        Ok(removed)
    }

    fn extract_every_other(&self, from: &[u8], to: &[u8]) -> anyhow::Result<u64> {
        let mut transaction = self.environment.write_txn()?;
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(from), Bound::Excluded(to));
        let mut entries = self.records.range_mut(&mut transaction, &range)?;
        let (mut position, mut removed) = (0_u64, 0);
        while entries.next().transpose()?.is_some() {
            if position % 2 == 1 {
                // SAFETY: no reference to the entry is kept: the key and the value were dropped.
                removed += u64::from(unsafe { entries.del_current()? });
            }
            position += 1;
        }
        drop(entries);
        transaction.commit()?;
        Ok(removed)
    }

    fn pop_ends(&self, count: u64) -> anyhow::Result<u64> {
        let mut transaction = self.environment.write_txn()?;
        let mut popped = 0;
        while popped < count {
            let records = self.records;
            let end = if popped % 2 == 0 { records.first(&transaction)? } else { records.last(&transaction)? };
            let Some((key, _)) = end else { break };
            let key = key.to_vec();
            records.delete(&mut transaction, &key)?;
            popped += 1;
        }
        transaction.commit()?;
        Ok(popped)
    }

    /// LMDB does not compact a file in its place: a compacted copy replaces it.
    fn compact(self: Box<Self>, directory: &Path) -> anyhow::Result<Box<dyn Engine>> {
        let copy = directory.join("compacted");
        self.environment.copy_to_path(&copy, CompactionOption::Enabled)?.sync_all()?;
        self.environment.prepare_for_closing().wait();
        std::fs::rename(copy, directory.join("data.mdb"))?;
        Ok(Box::new(Self::open(directory)?))
    }
}
