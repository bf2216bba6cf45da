//! The measured store.

use std::path::Path;

use anyhow::ensure;
use fieldstone_store::{Store, Table};

use super::engine::{Engine, Entry, Totals, get_by_sharing};

const RECORDS: Table<[u8], [u8]> = Table::new("records");

pub(super) struct Fieldstone(Store);

impl Engine for Fieldstone {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        Ok(Self(Store::open(directory.join("records.store"))?))
    }

    fn commit(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        self.0.write(|transaction| {
            let mut records = transaction.table(RECORDS)?;
            for (key, value) in entries {
                records.insert(key, value)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn update(&self, key: &[u8], offset: usize, field: &[u8]) -> anyhow::Result<()> {
        let is_found = self.0.write(|transaction| {
            let mut records = transaction.table(RECORDS)?;
            let Some(mut value) = records.get(key)?.map(<[u8]>::to_vec) else { return Ok(false) };
            value[offset..offset + field.len()].copy_from_slice(field);
            records.insert(key, &value)?;
            Ok(true)
        })?;
        ensure!(is_found, "the key to update is absent");
        Ok(())
    }

    fn get(&self, keys: &[&[u8]]) -> anyhow::Result<Totals> {
        let snapshot = self.0.read()?;
        let records = snapshot.table(RECORDS)?;
        let mut totals = Totals::default();
        for key in keys {
            if let Some(value) = records.get(key)? {
                totals.add(value);
            }
        }
        Ok(totals)
    }

    fn scan(&self, starts: &[&[u8]], limit: usize) -> anyhow::Result<Totals> {
        let snapshot = self.0.read()?;
        let records = snapshot.table(RECORDS)?;
        let mut totals = Totals::default();
        for &start in starts {
            for entry in records.range::<&[u8]>(start..)?.take(limit) {
                totals.add(entry?.1);
            }
        }
        Ok(totals)
    }

    fn get_in_threads(&self, shards: &[&[&[u8]]]) -> anyhow::Result<Totals> {
        get_by_sharing(self, shards)
    }

    /// The store keeps no count.
    fn count(&self) -> anyhow::Result<u64> {
        let mut count = 0;
        for entry in self.0.read()?.table(RECORDS)?.iter()? {
            entry?;
            count += 1;
        }
        Ok(count)
    }

    fn commit_each_later(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        for (key, value) in entries {
            let mut transaction = self.0.begin()?;
            transaction.table(RECORDS)?.insert(key, value)?;
            transaction.commit_later()?;
        }
        // Snapshots see them when they are written: an empty commit waits for that.
        Ok(self.0.begin()?.commit()?)
    }

    fn remove(&self, keys: &[&[u8]]) -> anyhow::Result<u64> {
        Ok(self.0.write(|transaction| {
            let mut records = transaction.table(RECORDS)?;
            let mut removed = 0;
            for key in keys {
                removed += u64::from(records.remove(key)?);
            }
            Ok(removed)
        })?)
    }

    fn extract_every_other(&self, from: &[u8], to: &[u8]) -> anyhow::Result<u64> {
        Ok(self.0.write(|transaction| {
            let mut records = transaction.table(RECORDS)?;
            let mut keys = Vec::new();
            for entry in records.range::<&[u8]>(from..to)?.skip(1).step_by(2) {
                keys.push(entry?.0);
            }
            for key in &keys {
                records.remove(key)?;
            }
            Ok(keys.len() as u64)
        })?)
    }

    fn pop_ends(&self, count: u64) -> anyhow::Result<u64> {
        Ok(self.0.write(|transaction| {
            let mut records = transaction.table(RECORDS)?;
            for popped in 0..count {
                let mut entries = records.range::<&[u8]>(..)?;
                let end = if popped % 2 == 0 { entries.next() } else { entries.next_back() };
                let Some(entry) = end else { return Ok(popped) };
                let key = entry?.0;
                records.remove(&key)?;
            }
            Ok(count)
        })?)
    }

    fn compact(self: Box<Self>, _directory: &Path) -> anyhow::Result<Box<dyn Engine>> {
        self.0.compact()?;
        Ok(self)
    }
}
