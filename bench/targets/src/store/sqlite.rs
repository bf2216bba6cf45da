//! SQLite in WAL mode with `synchronous=FULL`: each commit is durable.

use std::path::Path;

use anyhow::{Context, ensure};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::engine::{CACHE_BYTES, Engine, Entry, Totals};

const TABLE: &str = "CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID";
const PUT: &str = "INSERT OR REPLACE INTO records VALUES (?1, ?2)";
const GET: &str = "SELECT value FROM records WHERE key = ?1";
const SCAN: &str = "SELECT value FROM records WHERE key >= ?1 ORDER BY key LIMIT ?2";

pub(super) struct Sqlite(Connection);

fn add(totals: &mut Totals, row: &Row<'_>) -> rusqlite::Result<()> {
    totals.add(row.get_ref(0)?.as_blob()?);
    Ok(())
}

impl Engine for Sqlite {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        let connection = Connection::open(directory.join("records.sqlite"))?;
        let cache_kib = CACHE_BYTES >> 10;
        connection.execute_batch(&format!("PRAGMA cache_size = -{cache_kib}; PRAGMA journal_mode = WAL"))?;
        connection.execute_batch(&format!("PRAGMA synchronous = FULL; {TABLE}"))?;
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
}
