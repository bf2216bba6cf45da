//! Files that become smaller.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tests")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fieldstone_store::{Store, Table};
use tempfile::TempDir;

const NUMBERS: Table<u64, [u8]> = Table::new("numbers");
const OTHERS: Table<u64, [u8]> = Table::new("others");
const LARGE: Table<u64, [u8]> = Table::new("values that are large");

const KEYS: u64 = 12_000;

/// A folder in memory, if there is one: what is written need not be durable here.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn bytes(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; 50 + key as usize % 200]
}

/// Fills two tables in turns, so that their pages are mixed.
fn fill(store: &Store, keys: std::ops::Range<u64>) {
    for start in keys.step_by(100) {
        store
            .write(|tx| {
                for key in start..start + 100 {
                    tx.table(NUMBERS)?.insert(&key, &value(key))?;
                    tx.table(OTHERS)?.insert(&key.reverse_bits(), &value(key))?;
                }
                Ok(())
            })
            .unwrap();
    }
}

fn assert_kept(store: &Store, kept: impl Fn(&u64) -> bool) {
    let now = store.read().unwrap();
    let expected: Vec<u64> = (0..KEYS).filter(kept).collect();
    let found = now.table(NUMBERS).unwrap().iter().unwrap().map(|entry| {
        let (key, contents) = entry.unwrap();
        assert_eq!(contents, value(key));
        key
    });
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let mut others: Vec<u64> =
        now.table(OTHERS).unwrap().iter().unwrap().map(|entry| entry.unwrap().0.reverse_bits()).collect();
    others.sort_unstable();
    assert_eq!(others, expected);
}

fn keep_some(store: &Store, kept: impl Fn(&u64) -> bool) {
    let removed: Vec<u64> = (0..KEYS).filter(|key| !kept(key)).collect();
    for keys in removed.chunks(500) {
        store
            .write(|tx| {
                for key in keys {
                    assert!(tx.table(NUMBERS)?.remove(key)? && tx.table(OTHERS)?.remove(&key.reverse_bits())?);
                }
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn the_file_becomes_as_small_as_what_it_contains() {
    let folder = folder();
    let (path, small) = (folder.path().join("large.store"), folder.path().join("small.store"));
    let store = Store::open(&path).unwrap();
    fill(&store, 0..KEYS);
    let full = bytes(&path);
    let kept = |key: &u64| *key >= KEYS / 10 * 9;
    keep_some(&store, kept);
    assert_eq!(bytes(&path), full);
    let smaller = store.compact().unwrap();
    assert_eq!(bytes(&path), full - smaller);
    assert_kept(&store, kept);
    let other = Store::open(&small).unwrap();
    fill(&other, KEYS / 10 * 9..KEYS);
    // Pages by 256, and nodes that are less full.
    assert!(bytes(&path) < bytes(&small) + (3 << 20), "{} and {} bytes", bytes(&path), bytes(&small));
    assert_eq!(store.compact().unwrap(), 0);
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_kept(&store, kept);
    fill(&store, 0..KEYS);
    assert_kept(&store, |_| true);
}

#[test]
fn others_read_and_write_while_the_file_becomes_smaller() {
    let folder = folder();
    let path = folder.path().join("busy.store");
    let store = Store::builder(&path).memory_bytes(1 << 20).old_version_bytes(1 << 30).open().unwrap();
    fill(&store, 0..KEYS);
    let before = store.read().unwrap();
    let kept = |key: &u64| key.is_multiple_of(10);
    keep_some(&store, kept);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            store.compact().unwrap();
            is_over.store(true, Ordering::Relaxed);
        });
        let mut rounds = 0;
        while !is_over.load(Ordering::Relaxed) || rounds < 10 {
            fill(&store, 0..200);
            keep_some_of(&store, 0..200, kept);
            assert_kept(&store, kept);
            rounds += 1;
        }
    });
    // Nothing was cut off or overwritten that the snapshot reads.
    assert_eq!(before.table(NUMBERS).unwrap().iter().unwrap().count() as u64, KEYS);
    assert!(
        before
            .table(OTHERS)
            .unwrap()
            .iter()
            .unwrap()
            .all(|entry| entry.is_ok_and(|(key, contents)| contents == value(key.reverse_bits())))
    );
    drop(before);
    let smaller = store.compact().unwrap();
    assert!(smaller > 1 << 20, "{smaller} bytes");
    assert_kept(&store, kept);
}

fn keep_some_of(store: &Store, keys: std::ops::Range<u64>, kept: impl Fn(&u64) -> bool) {
    store
        .write(|tx| {
            for key in keys.filter(|key| !kept(key)) {
                tx.table(NUMBERS)?.remove(&key)?;
                tx.table(OTHERS)?.remove(&key.reverse_bits())?;
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn large_values_at_either_end_stay_and_snapshots_keep_the_others() {
    // The first ones are in two groups of pages.
    for (kept, count) in [(31..34, 34), (0..3_u64, 12)] {
        let folder = folder();
        let path = folder.path().join("values.store");
        // Little memory: the values are read from the file.
        let store = Store::builder(&path).memory_bytes(1 << 20).open().unwrap();
        let value = |key: u64| vec![key as u8 + 1; (4 << 20) + key as usize];
        for key in 0..count {
            store.write(|tx| tx.table(LARGE)?.insert(&key, &value(key))).unwrap();
        }
        assert!(bytes(&path) > (count * 4) << 20);
        let before = store.read().unwrap();
        let removed = (0..count).filter(|key| !kept.contains(key));
        store.write(|tx| removed.into_iter().try_for_each(|key| tx.table(LARGE)?.remove(&key).map(drop))).unwrap();
        store.compact().unwrap();
        // More than half of the log: its changes are written behind the end of the file.
        store.write(|tx| (0..60_000).try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &[1; 100]).map(drop))).unwrap();
        assert!(bytes(&path) > (count * 4) << 20, "a snapshot may still read what was removed");
        let table = before.table(LARGE).unwrap();
        assert!((0..count).all(|key| table.get(&key).unwrap().unwrap() == value(key)), "{kept:?}");
        drop(before);
        store.compact().unwrap();
        assert!(bytes(&path) < 40 << 20, "{} bytes", bytes(&path));
        drop(store);
        let store = Store::open(&path).unwrap();
        let now = store.read().unwrap();
        let found: Vec<_> = now.table(LARGE).unwrap().iter().unwrap().map(|entry| entry.unwrap()).collect();
        assert!(found.iter().map(|(key, contents)| (*key, contents.to_vec())).eq(kept.map(|key| (key, value(key)))));
    }
}
