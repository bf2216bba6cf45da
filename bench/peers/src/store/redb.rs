//! redb with `Durability::Immediate`.

use std::ops::Bound;
use std::path::Path;

use anyhow::Context;
use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table, TableDefinition,
    WriteTransaction,
};

use super::engine::{Engine, Entry, Totals, cache_bytes, get_by_sharing};

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

pub(super) struct Redb(Database);

impl Redb {
    fn begin_durable(&self) -> anyhow::Result<WriteTransaction> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        Ok(transaction)
    }

    /// Changes the table in one durable transaction.
    fn change(
        &self,
        change: impl FnOnce(&mut Table<'_, &'static [u8], &'static [u8]>) -> anyhow::Result<u64>,
    ) -> anyhow::Result<u64> {
        let transaction = self.begin_durable()?;
        let result = change(&mut transaction.open_table(RECORDS)?)?;
        transaction.commit()?;
        Ok(result)
    }
}

impl Engine for Redb {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        let mut builder = Database::builder();
        builder.set_cache_size(usize::try_from(cache_bytes())?);
        Ok(Self(builder.create(directory.join("records.redb"))?))
    }

    fn commit(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        let transaction = self.begin_durable()?;
        let mut records = transaction.open_table(RECORDS)?;
        for (key, value) in entries {
            records.insert(key, value)?;
        }
        drop(records);
        Ok(transaction.commit()?)
    }

    fn update(&self, key: &[u8], offset: usize, field: &[u8]) -> anyhow::Result<()> {
        let transaction = self.begin_durable()?;
        let mut records = transaction.open_table(RECORDS)?;
        let mut value = records.get(key)?.context("the key to update is absent")?.value().to_vec();
        value[offset..offset + field.len()].copy_from_slice(field);
        records.insert(key, value.as_slice())?;
        drop(records);
        Ok(transaction.commit()?)
    }

    fn get(&self, keys: &[&[u8]]) -> anyhow::Result<Totals> {
        let records = self.0.begin_read()?.open_table(RECORDS)?;
        let mut totals = Totals::default();
        for key in keys {
            if let Some(value) = records.get(key)? {
                totals.add(value.value());
            }
        }
        Ok(totals)
    }

    fn scan(&self, starts: &[&[u8]], limit: usize) -> anyhow::Result<Totals> {
        let records = self.0.begin_read()?.open_table(RECORDS)?;
        let mut totals = Totals::default();
        for &start in starts {
            for entry in records.range::<&[u8]>(start..)?.take(limit) {
                totals.add(entry?.1.value());
            }
        }
        Ok(totals)
    }

    fn get_in_threads(&self, shards: &[&[&[u8]]]) -> anyhow::Result<Totals> {
        get_by_sharing(self, shards)
    }

    fn count(&self) -> anyhow::Result<u64> {
        Ok(self.0.begin_read()?.open_table(RECORDS)?.len()?)
    }

    fn commit_each_later(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        for (key, value) in entries {
            let mut transaction = self.0.begin_write()?;
            transaction.set_durability(Durability::None)?;
            transaction.open_table(RECORDS)?.insert(key, value)?;
            transaction.commit()?;
        }
        Ok(())
    }

    fn append(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        self.change(|records| {
            let mut end = records.upper_bound_mut(Bound::<&[u8]>::Unbounded)?;
            for (key, value) in entries {
                end.insert_before(*key, *value)?;
            }
            end.close()?;
            Ok(entries.len() as u64)
        })?;
        Ok(())
    }

    fn remove(&self, keys: &[&[u8]]) -> anyhow::Result<u64> {
        self.change(|records| {
            let mut removed = 0;
            for key in keys {
                removed += u64::from(records.remove(key)?.is_some());
            }
            Ok(removed)
        })
    }

    fn retain_every_other(&self) -> anyhow::Result<u64> {
        self.change(|records| {
            let before = records.len()?;
            let mut is_kept = false;
            records.retain(|_, _| {
                is_kept = !is_kept;
                is_kept
            })?;
            Ok(before - records.len()?)
        })
    }

    fn extract_every_other(&self, from: &[u8], to: &[u8]) -> anyhow::Result<u64> {
        self.change(|records| {
            let (mut is_extracted, mut extracted) = (true, 0);
            let is_second = |_: &[u8], _: &[u8]| {
                is_extracted = !is_extracted;
                is_extracted
            };
            for entry in records.extract_from_if::<&[u8], _>(from..to, is_second)? {
                entry?;
                extracted += 1;
            }
            Ok(extracted)
        })
    }

    fn pop_ends(&self, count: u64) -> anyhow::Result<u64> {
        self.change(|records| {
            for popped in 0..count {
                let end = if popped % 2 == 0 { records.pop_first()? } else { records.pop_last()? };
                if end.is_none() {
                    return Ok(popped);
                }
            }
            Ok(count)
        })
    }

    fn compact(mut self: Box<Self>, _directory: &Path) -> anyhow::Result<Box<dyn Engine>> {
        self.0.compact()?;
        Ok(self)
    }
}
