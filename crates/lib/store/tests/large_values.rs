//! Values that are too large for a page.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tests")]

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use fieldstone_store::{ErrorKind, Store, Table};
use tempfile::TempDir;

const VALUES: Table<u64, [u8]> = Table::new("values");
const SIZES: [usize; 9] = [0, 1_016, 1_017, 4_095, 4_096, 4_097, 70_000, 1 << 20, 5 << 20];

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.store");
    (folder, path)
}

/// A value whose bytes say what it is.
fn value(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| (index.wrapping_mul(seed * 2 + 1) >> 5) as u8).collect()
}

fn put(store: &Store, key: u64, value: &[u8]) {
    store.write(|tx| tx.table(VALUES)?.insert(&key, value)).unwrap();
}

fn assert_all(store: &Store) {
    let now = store.read().unwrap();
    let table = now.table(VALUES).unwrap();
    for (key, bytes) in (0..).zip(SIZES) {
        assert!(table.get(&key).unwrap() == Some(&value(key, bytes)[..]), "{bytes} bytes");
    }
    assert_eq!(table.iter().unwrap().map(|entry| entry.unwrap().1.len()).collect::<Vec<_>>(), SIZES);
    let back: Vec<_> = table.iter().unwrap().rev().map(|entry| entry.unwrap().1.len()).collect();
    assert!(back.iter().rev().eq(&SIZES));
}

#[test]
fn values_of_all_sizes_are_read_as_they_were_written() {
    let (folder, path) = folder();
    let store = Store::open(&path).unwrap();
    store
        .write(|tx| {
            for (key, bytes) in (0..).zip(SIZES) {
                let mut table = tx.table(VALUES)?;
                table.insert(&key, &value(key, bytes))?;
                assert!(table.get(&key)? == Some(&value(key, bytes)[..]), "the transaction reads its own");
            }
            Ok(())
        })
        .unwrap();
    assert_all(&store);
    store.backup(folder.path().join("copy")).unwrap();
    drop(store);
    assert_all(&Store::open(&path).unwrap());
    assert_all(&Store::open(folder.path().join("copy")).unwrap());
}

#[test]
fn a_large_value_is_written_once() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let before = std::fs::metadata(&path).unwrap().blocks() * 512;
    let written = |()| {
        let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
        line.parse::<u64>().unwrap()
    };
    let start = written(());
    put(&store, 1, &value(1, 32 << 20));
    let bytes = written(()) - start;
    assert!((32 << 20..34 << 20).contains(&bytes), "{bytes} bytes were written for a value of 32 MiB");
    drop(store);
    let grown = std::fs::metadata(&path).unwrap().blocks() * 512 - before;
    assert!(grown < 35 << 20, "the file takes {grown} bytes more");
}

#[test]
fn a_snapshot_keeps_large_values_that_were_replaced() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    put(&store, 1, &value(1, 300_000));
    put(&store, 2, &value(2, 300_000));
    let before = store.read().unwrap();
    let lent = before.table(VALUES).unwrap().get(&1).unwrap().unwrap();
    for round in 3..40 {
        put(&store, 1, &value(round, 300_000));
        put(&store, 2, &value(round + 100, 290_000));
        put(&store, 1000 + round, &[9; 900]);
    }
    store.write(|tx| tx.table(VALUES)?.remove_range(..1000)).unwrap();
    // The second one is read from the file only now.
    assert!(lent == value(1, 300_000));
    assert!(before.table(VALUES).unwrap().get(&2).unwrap().unwrap() == value(2, 300_000));
    assert_eq!(store.read().unwrap().table(VALUES).unwrap().get(&1).unwrap(), None);
}

#[test]
fn the_room_of_replaced_values_is_used_again() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    put(&store, 1, &value(1, 1 << 20));
    let before = std::fs::metadata(&path).unwrap().len();
    for round in 0..50 {
        put(&store, 1, &value(round, 1 << 20));
    }
    let after = std::fs::metadata(&path).unwrap().len();
    assert!(after - before <= 3 << 20, "the file grew by {} bytes", after - before);
}

#[test]
fn rolled_back_and_dropped_values_leave_nothing() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    put(&store, 1, &value(1, 50_000));
    let mut tx = store.begin().unwrap();
    tx.table(VALUES).unwrap().insert(&2, &value(2, 60_000)).unwrap();
    let mark = tx.savepoint();
    tx.table(VALUES).unwrap().insert(&1, &value(3, 70_000)).unwrap();
    tx.table(VALUES).unwrap().insert(&2, &value(4, 70_000)).unwrap();
    tx.rollback_to(mark);
    assert!(tx.table(VALUES).unwrap().get(&1).unwrap().unwrap() == value(1, 50_000));
    assert!(tx.table(VALUES).unwrap().get(&2).unwrap().unwrap() == value(2, 60_000));
    // Takes the pages of what was rolled back.
    tx.table(VALUES).unwrap().insert(&3, &value(5, 70_000)).unwrap();
    tx.commit().unwrap();
    let mut dropped = store.begin().unwrap();
    dropped.table(VALUES).unwrap().insert(&1, &value(6, 90_000)).unwrap();
    drop(dropped);
    let expected = [(1, value(1, 50_000)), (2, value(2, 60_000)), (3, value(5, 70_000))];
    let check = |store: &Store| {
        let now = store.read().unwrap();
        let all: Vec<_> = now.table(VALUES).unwrap().iter().unwrap().map(|entry| entry.unwrap()).collect();
        assert!(all.iter().map(|(key, value)| (*key, value.to_vec())).eq(expected.iter().cloned()));
    };
    check(&store);
    drop(store);
    check(&Store::open(&path).unwrap());
}

#[test]
fn a_damaged_large_value_is_an_error_and_the_others_are_read() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    put(&store, 1, &value(1, 50_000));
    put(&store, 2, &[0x5A; 50_000]);
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(50_000).position(|window| window == [0x5A; 50_000]).unwrap();
    bytes[at + 33_333] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let store = Store::open(&path).unwrap();
    let now = store.read().unwrap();
    let table = now.table(VALUES).unwrap();
    assert!(table.get(&1).unwrap().unwrap() == value(1, 50_000));
    let error = table.get(&2).unwrap_err();
    assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, u32::try_from(at / 4096).ok()), "{error}");
    // It can be removed and replaced.
    put(&store, 2, &value(2, 50_000));
    assert!(store.read().unwrap().table(VALUES).unwrap().get(&2).unwrap().unwrap() == value(2, 50_000));
}

#[test]
fn a_value_larger_than_a_group_of_pages_is_refused() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let mut tx = store.begin().unwrap();
    let error = tx.table(VALUES).unwrap().insert(&1, &vec![1; 128 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    tx.table(VALUES).unwrap().insert(&1, &vec![1; 127 << 20]).unwrap();
    tx.table(VALUES).unwrap().insert(&2, &vec![2; 127 << 20]).unwrap();
    tx.commit().unwrap();
    drop(store);
    let store = Store::open(&path).unwrap();
    let now = store.read().unwrap();
    let value = now.table(VALUES).unwrap().get(&2).unwrap().unwrap();
    assert!(value.len() == 127 << 20 && value.iter().all(|&byte| byte == 2));
}
