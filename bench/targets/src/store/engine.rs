//! The trait of the measured stores, and the list of them.

use std::fs;
use std::path::Path;

use anyhow::Context;
use tempfile::TempDir;

use super::fieldstone::Fieldstone;
use super::fjall::Fjall;
use super::lmdb::Lmdb;
use super::redb::Redb;
use super::sqlite::Sqlite;

/// A key and a value.
pub(super) type Entry<'a> = (&'a [u8], &'a [u8]);

/// An open store with one table of byte strings. Each transaction is durable when its call returns.
pub(super) trait Engine {
    /// Creates a store in an empty directory.
    fn open(directory: &Path) -> anyhow::Result<Self>
    where
        Self: Sized;

    /// Inserts entries, or replaces their values, in one transaction.
    fn commit(&self, entries: &[Entry<'_>]) -> anyhow::Result<()>;

    /// Reads a value, replaces its bytes from `offset` on by `field`, and writes it, in one transaction.
    fn update(&self, key: &[u8], offset: usize, field: &[u8]) -> anyhow::Result<()>;

    /// Reads the values of keys in one snapshot. Keys that are absent are not counted.
    fn get(&self, keys: &[&[u8]]) -> anyhow::Result<Totals>;

    /// Reads at most `limit` entries at and above each of the keys, in one snapshot.
    fn scan(&self, starts: &[&[u8]], limit: usize) -> anyhow::Result<Totals>;
}

/// What a read has found. Both sides of a comparison must have equal totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    entries: u64,
    /// Sum of the values as little-endian words of 8 bytes and of the bytes behind them.
    sum: u64,
}

impl Totals {
    pub(super) fn add(&mut self, value: &[u8]) {
        let (words, rest) = value.as_chunks::<8>();
        let sum = words.iter().fold(self.sum, |sum, &word| sum.wrapping_add(u64::from_le_bytes(word)));
        self.sum = rest.iter().fold(sum, |sum, &byte| sum.wrapping_add(byte.into()));
        self.entries += 1;
    }

    pub(super) const fn merge(&mut self, other: Self) {
        self.entries += other.entries;
        self.sum = self.sum.wrapping_add(other.sum);
    }

    pub(super) const fn entries(self) -> u64 {
        self.entries
    }
}

/// A store that can be measured.
#[derive(Clone, Copy)]
pub(super) struct EngineType {
    pub(super) name: &'static str,
    pub(super) open: fn(&Path) -> anyhow::Result<Box<dyn Engine>>,
}

const fn engine_type<E: Engine + 'static>(name: &'static str) -> EngineType {
    EngineType { name, open: |directory| Ok(Box::new(E::open(directory)?)) }
}

/// Ours, then the peers.
pub(super) const ENGINES: [EngineType; 5] = [
    engine_type::<Fieldstone>("Fieldstone"),
    engine_type::<Lmdb>("LMDB"),
    engine_type::<Redb>("redb"),
    engine_type::<Sqlite>("SQLite"),
    engine_type::<Fjall>("fjall"),
];
/// Places in [`ENGINES`].
pub(super) const LMDB: usize = 1;
pub(super) const REDB: usize = 2;

/// The memory that a peer may use for its cache: all data fit.
pub(super) const CACHE_BYTES: u32 = 1 << 30;

/// The folder of all measured stores: they are on one file system, which is on a disk.
const FOLDER: &str = "/var/tmp";

/// An open store in a directory of its own, which is removed with it.
pub(super) struct OpenStore {
    pub(super) engine: Box<dyn Engine>,
    directory: TempDir,
}

impl OpenStore {
    /// Creates an empty store.
    pub(super) fn create(engine_type: EngineType) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("fieldstone-targets").tempdir_in(FOLDER);
        let directory = directory.with_context(|| format!("cannot create a directory in {FOLDER}"))?;
        let engine =
            (engine_type.open)(directory.path()).with_context(|| format!("cannot open {}", engine_type.name))?;
        Ok(Self { engine, directory })
    }

    /// Writes entries, `batch` in a transaction.
    pub(super) fn write(&self, entries: &[Entry<'_>], batch: usize) -> anyhow::Result<()> {
        entries.chunks(batch).try_for_each(|entries| self.engine.commit(entries))
    }

    /// Closes the store and returns the bytes of its files.
    pub(super) fn close(self) -> anyhow::Result<u64> {
        let Self { engine, directory } = self;
        drop(engine);
        Ok(file_bytes(directory.path())?)
    }
}

/// Bytes of all files in a folder and below it.
fn file_bytes(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { file_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::records::Records;
    use super::super::ycsb::{Client, WORKLOADS, run};
    use super::*;

    const KEYS: usize = 1000;

    /// Runs `work` on all stores, with the same records, and compares the totals.
    fn assert_equal_totals(work: impl Fn(&OpenStore, &Records) -> anyhow::Result<Vec<Totals>>) -> Vec<Totals> {
        let records = Records::new(KEYS);
        let all = ENGINES.map(|engine_type| {
            let store = OpenStore::create(engine_type).unwrap();
            store.write(&records.shuffled(1), 300).unwrap();
            (engine_type.name, work(&store, &records).unwrap())
        });
        for (name, totals) in &all {
            assert_eq!(totals, &all[0].1, "{name}");
        }
        all.into_iter().next().unwrap().1
    }

    #[test]
    fn all_stores_return_the_same_gets_and_scans() {
        let totals = assert_equal_totals(|store, records| {
            let engine = &*store.engine;
            let keys = records.random_keys(500, 3);
            Ok(vec![
                engine.get(&keys.slices())?,
                engine.get(&[b"absent"])?,
                engine.scan(&[b"0"], usize::MAX)?,
                engine.scan(&keys.slices(), 10)?,
                engine.scan(&[b"z"], 10)?,
            ])
        });
        let entries = totals.iter().map(|totals| totals.entries);
        assert!(entries.zip([500, 0, KEYS as u64]).all(|(found, expected)| found == expected), "{totals:?}");
        assert_eq!((totals[1], totals[4]), (Totals::default(), Totals::default()));
    }

    #[test]
    fn all_stores_contain_the_same_after_updates() {
        assert_equal_totals(|store, records| {
            store.write(&records.updates(100, 4), 1)?;
            store.write(&records.updates(300, 5), 100)?;
            let key: &[u8] = b"0000000000000007";
            store.engine.update(key, 20, b"a new field")?;
            Ok(vec![store.engine.scan(&[b"0"], usize::MAX)?, store.engine.get(&[key])?])
        });
    }

    #[test]
    fn all_stores_return_the_same_in_each_workload_of_ycsb() {
        let bytes = super::super::records::RandomBytes::new();
        let run_all = |engine_type| {
            let store = OpenStore::create(engine_type).unwrap();
            let mut client = Client::load(&*store.engine, KEYS, 100, &bytes).unwrap();
            let mut totals = WORKLOADS.map(|workload| {
                let operations = client.operations(workload, 50, 9, &bytes);
                run(&*store.engine, &operations).unwrap()
            });
            totals[0].merge(store.engine.scan(&[b"user"], usize::MAX).unwrap());
            totals
        };
        let all = ENGINES.map(run_all);
        assert!(all.iter().all(|totals| *totals == all[0]), "{all:?}");
        assert!(all[0].iter().all(|totals| totals.entries > 0), "{all:?}");
    }

    #[test]
    fn files_are_counted_when_the_store_is_closed() {
        let records = Records::new(KEYS);
        for engine_type in ENGINES {
            let store = OpenStore::create(engine_type).unwrap();
            store.write(&records.in_order(1), KEYS).unwrap();
            assert!(store.close().unwrap() > records.live_bytes() as u64, "{}", engine_type.name);
        }
    }
}
