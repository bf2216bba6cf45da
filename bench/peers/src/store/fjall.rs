//! fjall, with an fdatasync(2) of its journal in each commit.

use std::path::Path;

use anyhow::Context;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use super::engine::{Engine, Entry, Totals, cache_bytes, get_by_sharing};

pub(super) struct Fjall {
    database: Database,
    records: Keyspace,
}

impl Engine for Fjall {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        let database = Database::builder(directory).cache_size(cache_bytes()).open()?;
        let records = database.keyspace("records", KeyspaceCreateOptions::default)?;
        Ok(Self { database, records })
    }

    fn commit(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        for &(key, value) in entries {
            batch.insert(&self.records, key, value);
        }
        Ok(batch.commit()?)
    }

    /// Nothing isolates the read from other writers: there are none here.
    fn update(&self, key: &[u8], offset: usize, field: &[u8]) -> anyhow::Result<()> {
        let mut value = self.records.get(key)?.context("the key to update is absent")?.to_vec();
        value[offset..offset + field.len()].copy_from_slice(field);
        self.commit(&[(key, &value)])
    }

    fn get(&self, keys: &[&[u8]]) -> anyhow::Result<Totals> {
        let snapshot = self.database.snapshot();
        let mut totals = Totals::default();
        for key in keys {
            if let Some(value) = snapshot.get(&self.records, key)? {
                totals.add(&value);
            }
        }
        Ok(totals)
    }

    fn scan(&self, starts: &[&[u8]], limit: usize) -> anyhow::Result<Totals> {
        let snapshot = self.database.snapshot();
        let mut totals = Totals::default();
        for &start in starts {
            for entry in snapshot.range(&self.records, start..).take(limit) {
                totals.add(&entry.value()?);
            }
        }
        Ok(totals)
    }

    fn get_in_threads(&self, shards: &[&[&[u8]]]) -> anyhow::Result<Totals> {
        get_by_sharing(self, shards)
    }

    fn count(&self) -> anyhow::Result<u64> {
        Ok(self.records.len()? as u64)
    }

    fn commit_each_later(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        Ok(entries.iter().try_for_each(|&(key, value)| self.records.insert(key, value))?)
    }

    /// The number includes keys that were absent before: no key of the callers is.
    fn remove(&self, keys: &[&[u8]]) -> anyhow::Result<u64> {
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        let mut removed = 0;
        for &key in keys {
            batch.remove(&self.records, key);
            removed += 1;
        }
        batch.commit()?;
        Ok(removed)
    }

    fn extract_every_other(&self, from: &[u8], to: &[u8]) -> anyhow::Result<u64> {
        let snapshot = self.database.snapshot();
        let keys = snapshot.range(&self.records, from..to).skip(1).step_by(2).map(|entry| entry.key());
        let keys = keys.collect::<fjall::Result<Vec<_>>>()?;
        drop(snapshot);
        self.remove(&keys.iter().map(|key| &key[..]).collect::<Vec<_>>())
    }

    /// One transaction would not see its own removals: each is one of its own, and all are synced at the end.
    fn pop_ends(&self, count: u64) -> anyhow::Result<u64> {
        let mut popped = 0;
        while popped < count {
            let records = &self.records;
            let end = if popped % 2 == 0 { records.first_key_value() } else { records.last_key_value() };
            let Some(entry) = end else { break };
            records.remove(entry.key()?)?;
            popped += 1;
        }
        self.database.persist(PersistMode::SyncData)?;
        Ok(popped)
    }

    fn compact(self: Box<Self>, _directory: &Path) -> anyhow::Result<Box<dyn Engine>> {
        self.records.major_compact()?;
        Ok(self)
    }
}
