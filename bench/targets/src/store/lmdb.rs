//! LMDB with its default flags: each commit is durable.

#![allow(unsafe_code, reason = "LMDB maps its file: no other process may change it")]

use std::ops::Bound;
use std::path::Path;

use anyhow::Context;
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions};

use super::engine::{Engine, Entry, Totals};

/// Addresses for the file, which never reaches this size.
const MAP_BYTES: usize = 8 << 30;

pub(super) struct Lmdb {
    environment: Env,
    /// The unnamed database: a named one costs another page a commit.
    records: Database<'static, Bytes, Bytes>,
}

impl Engine for Lmdb {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
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
}
