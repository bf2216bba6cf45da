//! redb with `Durability::Immediate`.

use std::path::Path;

use anyhow::Context;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::engine::{CACHE_BYTES, Engine, Entry, Totals};

const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

pub(super) struct Redb(Database);

impl Redb {
    fn begin_durable(&self) -> anyhow::Result<WriteTransaction> {
        let mut transaction = self.0.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        Ok(transaction)
    }
}

impl Engine for Redb {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        let mut builder = Database::builder();
        builder.set_cache_size(usize::try_from(CACHE_BYTES)?);
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
}
