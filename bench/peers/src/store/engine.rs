//! The trait of the measured stores, the list of them, and an open one.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use fieldstone_sys::limits::limits;
use tempfile::TempDir;

use super::fieldstone::Fieldstone;
use super::fjall::Fjall;
use super::lmdb::Lmdb;
use super::redb::Redb;
use super::sqlite::Sqlite;

/// A key and a value.
pub type Entry<'a> = (&'a [u8], &'a [u8]);

/// An open store with one table of byte strings. Each transaction is durable when its call returns.
pub trait Engine {
    /// Creates a store in an empty directory, or opens the one that is there.
    ///
    /// # Errors
    /// If the store cannot be opened.
    fn open(directory: &Path) -> anyhow::Result<Self>
    where
        Self: Sized;

    /// Inserts entries, or replaces their values, in one transaction.
    ///
    /// # Errors
    /// If the transaction fails.
    fn commit(&self, entries: &[Entry<'_>]) -> anyhow::Result<()>;

    /// Reads a value, replaces its bytes from `offset` on by `field`, and writes it, in one transaction.
    ///
    /// # Errors
    /// If the transaction fails, or the key is absent.
    fn update(&self, key: &[u8], offset: usize, field: &[u8]) -> anyhow::Result<()>;

    /// Reads the values of keys in one snapshot. Keys that are absent are not counted.
    ///
    /// # Errors
    /// If a read fails.
    fn get(&self, keys: &[&[u8]]) -> anyhow::Result<Totals>;

    /// Reads at most `limit` entries at and above each of the keys, in one snapshot.
    ///
    /// # Errors
    /// If a read fails.
    fn scan(&self, starts: &[&[u8]], limit: usize) -> anyhow::Result<Totals>;

    /// Reads the values of keys, one shard by each of as many threads.
    ///
    /// # Errors
    /// If a read fails.
    fn get_in_threads(&self, shards: &[&[&[u8]]]) -> anyhow::Result<Totals>;

    /// The number of entries, by the store's own count if it keeps one.
    ///
    /// # Errors
    /// If a read fails.
    fn count(&self) -> anyhow::Result<u64>;

    /// Inserts each entry in a transaction of its own. All are visible when the call returns, and need
    /// not be durable.
    ///
    /// # Errors
    /// If a transaction fails.
    fn commit_each_later(&self, entries: &[Entry<'_>]) -> anyhow::Result<()>;

    /// Inserts entries whose keys are in order and above all others, by the fastest call for that.
    ///
    /// # Errors
    /// If the transaction fails.
    fn append(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        self.commit(entries)
    }

    /// Removes entries in one transaction. Returns their number.
    ///
    /// # Errors
    /// If the transaction fails.
    fn remove(&self, keys: &[&[u8]]) -> anyhow::Result<u64>;

    /// Removes the second of two entries, the fourth, and so on, in one transaction. Returns their number.
    ///
    /// # Errors
    /// If the transaction fails.
    fn retain_every_other(&self) -> anyhow::Result<u64> {
        self.extract_every_other(&[0], &[0xFF; 40])
    }

    /// The same for the entries from `from` to below `to`, which are read as well.
    ///
    /// # Errors
    /// If the transaction fails.
    fn extract_every_other(&self, from: &[u8], to: &[u8]) -> anyhow::Result<u64>;

    /// Removes `count` entries, in one transaction: the first, the last, the first and so on. Returns how
    /// many there were.
    ///
    /// # Errors
    /// If the transaction fails.
    fn pop_ends(&self, count: u64) -> anyhow::Result<u64>;

    /// Makes the files of the store in `directory` as small as the store can.
    ///
    /// # Errors
    /// If the store fails.
    fn compact(self: Box<Self>, directory: &Path) -> anyhow::Result<Box<dyn Engine>>;
}

/// [`Engine::get_in_threads`] of a store that threads share.
pub(super) fn get_by_sharing<E: Engine + Sync>(engine: &E, shards: &[&[&[u8]]]) -> anyhow::Result<Totals> {
    sum_of_threads(shards, &|keys| engine.get(keys))
}

/// The sum of the totals of shards, each read by its own thread.
pub(super) fn sum_of_threads(
    shards: &[&[&[u8]]],
    read: &(dyn Fn(&[&[u8]]) -> anyhow::Result<Totals> + Sync),
) -> anyhow::Result<Totals> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = shards.iter().map(|&keys| scope.spawn(move || read(keys))).collect();
        let mut totals = Totals::default();
        for thread in threads {
            let Ok(read) = thread.join() else { bail!("a reading thread has panicked") };
            totals.merge(read?);
        }
        Ok(totals)
    })
}

/// What a read has found. Both sides of a comparison must have equal totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    entries: u64,
    /// Sum of the values as little-endian words of 8 bytes and of the bytes behind them.
    sum: u64,
}

impl Totals {
    /// Adds a value.
    pub fn add(&mut self, value: &[u8]) {
        let (words, rest) = value.as_chunks::<8>();
        let sum = words.iter().fold(self.sum, |sum, &word| sum.wrapping_add(u64::from_le_bytes(word)));
        self.sum = rest.iter().fold(sum, |sum, &byte| sum.wrapping_add(byte.into()));
        self.entries += 1;
    }

    /// Adds the totals of another read.
    pub const fn merge(&mut self, other: Self) {
        self.entries += other.entries;
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// The number of values.
    #[must_use]
    pub const fn entries(self) -> u64 {
        self.entries
    }
}

/// A store that can be measured.
#[derive(Clone, Copy, Debug)]
pub struct EngineType {
    /// Its name in results.
    pub name: &'static str,
    /// [`Engine::open`].
    pub open: fn(&Path) -> anyhow::Result<Box<dyn Engine>>,
}

const fn engine_type<E: Engine + 'static>(name: &'static str) -> EngineType {
    EngineType { name, open: |directory| Ok(Box::new(E::open(directory)?)) }
}

/// The measured store.
pub const OURS: EngineType = engine_type::<Fieldstone>("Fieldstone");
/// Ours, then the peers. The first three have goals.
pub const ENGINES: [EngineType; 5] = [
    OURS,
    engine_type::<Lmdb>("LMDB"),
    engine_type::<Redb>("redb"),
    engine_type::<Sqlite>("SQLite"),
    engine_type::<Fjall>("fjall"),
];
/// The place of LMDB in [`ENGINES`].
pub const LMDB: usize = 1;
/// The place of redb in [`ENGINES`].
pub const REDB: usize = 2;

/// The memory that a peer may use for its cache: all data fit, unless a control group limits this process.
pub(super) fn cache_bytes() -> u64 {
    let limit = limits().cgroup.and_then(|group| group.limit_bytes);
    (4 << 30).min(limit.map_or(u64::MAX, |bytes| bytes / 2))
}

/// The folder of all measured stores: they are on one file system, which is on a disk.
const FOLDER: &str = "/var/tmp";

/// An open store in a directory of its own, which is removed with it.
pub struct OpenStore {
    /// The store.
    pub engine: Box<dyn Engine>,
    directory: TempDir,
}

impl OpenStore {
    /// Creates an empty store.
    ///
    /// # Errors
    /// If there is no place for it, or it cannot be opened.
    pub fn create(engine_type: EngineType) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("fieldstone-stores").tempdir_in(FOLDER);
        let directory = directory.with_context(|| format!("cannot create a directory in {FOLDER}"))?;
        let engine =
            (engine_type.open)(directory.path()).with_context(|| format!("cannot open {}", engine_type.name))?;
        Ok(Self { engine, directory })
    }

    /// Writes entries, `batch` in a transaction.
    ///
    /// # Errors
    /// If a transaction fails.
    pub fn write(&self, entries: &[Entry<'_>], batch: usize) -> anyhow::Result<()> {
        entries.chunks(batch).try_for_each(|entries| self.engine.commit(entries))
    }

    /// The directory of its files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Bytes of its files while it is open.
    ///
    /// # Errors
    /// If its directory cannot be read.
    pub fn file_bytes(&self) -> anyhow::Result<u64> {
        Ok(file_bytes(self.directory())?)
    }

    /// Makes its files as small as the store can.
    ///
    /// # Errors
    /// If the store fails.
    pub fn compact(self) -> anyhow::Result<Self> {
        let Self { engine, directory } = self;
        Ok(Self { engine: engine.compact(directory.path())?, directory })
    }

    /// Closes the store and returns the bytes of its files.
    ///
    /// # Errors
    /// If its directory cannot be read.
    pub fn close(self) -> anyhow::Result<u64> {
        let Self { engine, directory } = self;
        drop(engine);
        Ok(file_bytes(directory.path())?)
    }
}

impl std::fmt::Debug for OpenStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenStore").field("directory", &self.directory).finish_non_exhaustive()
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
    fn all_stores_contain_the_same_after_each_operation_of_redb_s_program() {
        let records = Records::new(KEYS);
        let appended = Records::new(2 * KEYS);
        let entries = records.in_order(1);
        let keys: Vec<&[u8]> = entries.iter().map(|&(key, _)| key).collect();
        let run = |engine_type| {
            let mut store = OpenStore::create(engine_type).unwrap();
            let engine = &*store.engine;
            engine.commit_each_later(&records.updates(50, 8)).unwrap();
            store.write(&records.shuffled(1), 300).unwrap();
            engine.append(&appended.in_order(4)[KEYS..]).unwrap();
            let mut found = vec![engine.count().unwrap()];
            let all = |engine: &dyn Engine| engine.scan(&[b"0"], usize::MAX).unwrap();
            let shared = engine.get_in_threads(&[&keys[..400], &keys[400..]]).unwrap();
            assert_eq!(shared, engine.get(&keys).unwrap(), "{}", engine_type.name);
            found.push(engine.remove(&keys[..100]).unwrap());
            found.push(engine.retain_every_other().unwrap());
            found.push(engine.extract_every_other(b"0000000000000200", b"0000000000000900").unwrap());
            found.push(engine.pop_ends(11).unwrap());
            let totals = all(engine);
            store = store.compact().unwrap();
            assert_eq!(all(&*store.engine), totals, "{}", engine_type.name);
            store.write(&records.updates(1, 5), 1).unwrap();
            found.push(store.engine.count().unwrap());
            (found, totals)
        };
        let (expected, totals) = run(OURS);
        assert!(expected[0] == 2 * KEYS as u64 && expected[4] == 11 && totals.entries() < 900, "{expected:?}");
        for engine_type in &ENGINES[1..] {
            assert_eq!(run(*engine_type), (expected.clone(), totals), "{}", engine_type.name);
        }
    }

    #[test]
    fn files_are_counted_when_the_store_is_closed() {
        let records = Records::new(KEYS);
        for engine_type in ENGINES {
            let store = OpenStore::create(engine_type).unwrap();
            store.write(&records.in_order(1), KEYS).unwrap();
            let open_bytes = store.file_bytes().unwrap();
            assert!(open_bytes > 0, "{}", engine_type.name);
            assert!(store.close().unwrap() > records.live_bytes() as u64, "{}", engine_type.name);
        }
    }
}
