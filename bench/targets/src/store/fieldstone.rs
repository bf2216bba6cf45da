//! The measured store.

use std::path::Path;

use anyhow::ensure;
use fieldstone_store::{Store, Table};

use super::engine::{Engine, Entry, Totals};

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
}
