//! SQLite in WAL mode with `synchronous=FULL`: each commit is durable.

use std::path::Path;

use anyhow::{Context, ensure};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::engine::{Engine, Entry, Totals, cache_bytes, sum_of_threads};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID";
const PUT: &str = "INSERT OR REPLACE INTO records VALUES (?1, ?2)";
const GET: &str = "SELECT value FROM records WHERE key = ?1";
const DELETE: &str = "DELETE FROM records WHERE key = ?1";
const KEYS: &str = "SELECT key FROM records WHERE key >= ?1 AND key < ?2 ORDER BY key";
const POP_FIRST: &str = "DELETE FROM records WHERE key = (SELECT key FROM records ORDER BY key LIMIT 1)";
const POP_LAST: &str = "DELETE FROM records WHERE key = (SELECT key FROM records ORDER BY key DESC LIMIT 1)";
const SCAN: &str = "SELECT value FROM records WHERE key >= ?1 ORDER BY key LIMIT ?2";

pub(super) struct Sqlite(Connection);

/// A connection with the cache and the durability of all of them.
fn connect(path: impl AsRef<Path>) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    let cache_kib = cache_bytes() >> 10;
    connection.execute_batch(&format!("PRAGMA cache_size = -{cache_kib}; PRAGMA journal_mode = WAL"))?;
    connection.execute_batch("PRAGMA synchronous = FULL")?;
    Ok(connection)
}

fn add(totals: &mut Totals, row: &Row<'_>) -> rusqlite::Result<()> {
    totals.add(row.get_ref(0)?.as_blob()?);
    Ok(())
}

impl Engine for Sqlite {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        let connection = connect(directory.join("records.sqlite"))?;
        connection.execute_batch(TABLE)?;
        let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
        let level: u32 = connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?;
        ensure!((mode.as_str(), level) == ("wal", 2), "SQLite refuses WAL mode or synchronous=FULL");
        Ok(Self(connection))
    }

    fn commit(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        let transaction = self.0.unchecked_transaction()?;
        let mut put = transaction.prepare_cached(PUT)?;
        for (key, value) in entries {
            put.execute(params![key, value])?;
        }
        drop(put);
        Ok(transaction.commit()?)
    }

    fn update(&self, key: &[u8], offset: usize, field: &[u8]) -> anyhow::Result<()> {
        let transaction = self.0.unchecked_transaction()?;
        let found = transaction.prepare_cached(GET)?.query_row([key], |row| row.get::<_, Vec<u8>>(0)).optional();
        let mut value = found?.context("the key to update is absent")?;
        value[offset..offset + field.len()].copy_from_slice(field);
        transaction.prepare_cached(PUT)?.execute(params![key, value])?;
        Ok(transaction.commit()?)
    }

    fn get(&self, keys: &[&[u8]]) -> anyhow::Result<Totals> {
        let transaction = self.0.unchecked_transaction()?;
        let mut get = transaction.prepare_cached(GET)?;
        let mut totals = Totals::default();
        for key in keys {
            get.query_row([key], |row| add(&mut totals, row)).optional()?;
        }
        Ok(totals)
    }

    fn scan(&self, starts: &[&[u8]], limit: usize) -> anyhow::Result<Totals> {
        let transaction = self.0.unchecked_transaction()?;
        let mut scan = transaction.prepare_cached(SCAN)?;
        // No limit is a negative one.
        let limit = i64::try_from(limit).unwrap_or(-1);
        let mut totals = Totals::default();
        for start in starts {
            let mut rows = scan.query(params![start, limit])?;
            while let Some(row) = rows.next()? {
                add(&mut totals, row)?;
            }
        }
        Ok(totals)
    }

    /// Each thread has a connection of its own.
    fn get_in_threads(&self, shards: &[&[&[u8]]]) -> anyhow::Result<Totals> {
        let path = self.0.path().context("the database is in a file")?.to_owned();
        sum_of_threads(shards, &|keys| Self(connect(&path)?).get(keys))
    }

    fn count(&self) -> anyhow::Result<u64> {
        let count: i64 = self.0.query_row("SELECT count(*) FROM records", [], |row| row.get(0))?;
        Ok(count.unsigned_abs())
    }

    fn commit_each_later(&self, entries: &[Entry<'_>]) -> anyhow::Result<()> {
        self.0.execute_batch("PRAGMA synchronous = OFF")?;
        entries.iter().try_for_each(|entry| self.commit(std::slice::from_ref(entry)))?;
        Ok(self.0.execute_batch("PRAGMA synchronous = FULL")?)
    }

    fn remove(&self, keys: &[&[u8]]) -> anyhow::Result<u64> {
        let transaction = self.0.unchecked_transaction()?;
        let mut delete = transaction.prepare_cached(DELETE)?;
        let mut removed = 0;
        for key in keys {
            removed += delete.execute(params![key])? as u64;
        }
        drop(delete);
        transaction.commit()?;
        Ok(removed)
    }

    fn extract_every_other(&self, from: &[u8], to: &[u8]) -> anyhow::Result<u64> {
        let mut select = self.0.prepare_cached(KEYS)?;
        let keys = select.query_map(params![from, to], |row| row.get::<_, Vec<u8>>(0))?;
        let keys = keys.skip(1).step_by(2).collect::<rusqlite::Result<Vec<_>>>()?;
        self.remove(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    fn pop_ends(&self, count: u64) -> anyhow::Result<u64> {
        let transaction = self.0.unchecked_transaction()?;
        let mut popped = 0;
        while popped < count {
            let pop = if popped % 2 == 0 { POP_FIRST } else { POP_LAST };
            if transaction.prepare_cached(pop)?.execute([])? == 0 {
                break;
            }
            popped += 1;
        }
        transaction.commit()?;
        Ok(popped)
    }

    fn compact(self: Box<Self>, _directory: &Path) -> anyhow::Result<Box<dyn Engine>> {
        self.0.execute_batch("VACUUM")?;
        // The pragma returns a row.
        self.0.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(self)
    }
}
