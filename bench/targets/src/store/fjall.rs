//! fjall, with an fdatasync(2) of its journal in each commit.

use std::path::Path;

use anyhow::Context;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use super::engine::{CACHE_BYTES, Engine, Entry, Totals};

pub(super) struct Fjall {
    database: Database,
    records: Keyspace,
}

impl Engine for Fjall {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        let database = Database::builder(directory).cache_size(CACHE_BYTES.into()).open()?;
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
}
