//! What concerns tables as a whole: their list, their removal, and all of their entries.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use fieldstone_store::{ErrorKind, RawTable, Scope, Store, Table, check};
use tempfile::TempDir;

const NUMBERS: Table<u64, [u8]> = Table::new("numbers");
const NAMES: Table<str, str> = Table::new("names");

static LARGE: [u8; 20_000] = [7; 20_000];

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.store");
    (folder, path)
}

/// A table of several levels, with a large value in some places.
fn fill(store: &Store) {
    store
        .write(|tx| {
            let mut table = tx.table(NUMBERS)?;
            for number in 0..20_000 {
                table.insert(&number, if number % 1000 == 0 { &LARGE } else { &[1; 40] })?;
            }
            Ok(())
        })
        .unwrap();
}

fn names(tables: &[RawTable]) -> Vec<&str> {
    tables.iter().map(|table| table.name.as_str()).collect()
}

fn assert_is_whole(path: &Path) {
    let mut findings = Vec::new();
    check(path, Scope::All, |finding| findings.push(finding)).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
}

#[test]
fn a_snapshot_lists_its_tables_with_their_types() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let before = store.read().unwrap();
    store.write(|tx| tx.table(NUMBERS)?.insert(&1, &[1])).unwrap();
    store.write(|tx| tx.table(NAMES)?.insert("a", "b")).unwrap();
    let table = |name: &str, key_type: &str, value_type: &str| RawTable {
        name: name.to_owned(),
        key_type: key_type.to_owned(),
        value_type: value_type.to_owned(),
    };
    let expected = [table("names", "text", "text"), table("numbers", "u64", "bytes")];
    assert_eq!(store.read().unwrap().tables().unwrap(), expected);
    assert_eq!(before.tables().unwrap(), []);
}

#[test]
fn the_tables_of_objects_are_not_in_the_list_and_cannot_be_removed() {
    fieldstone_store::stored! { struct Point { x: u64 } }
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    store
        .write(|tx| {
            let point = tx.alloc(Point { x: 5 })?;
            tx.set_root("point", point)
        })
        .unwrap();
    assert_eq!(store.read().unwrap().tables().unwrap(), []);
    let refused = store.write(|tx| tx.remove_table("fieldstone.roots")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Type, "{refused}");
    assert_eq!(store.read().unwrap().root::<Point>("point").unwrap().x, 5);
}

#[test]
fn a_removed_table_leaves_its_room_and_its_name() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    store.write(|tx| tx.table(NAMES)?.insert("a", "b")).unwrap();
    fill(&store);
    let before = store.read().unwrap();
    assert!(store.write(|tx| tx.remove_table("numbers")).unwrap());
    assert!(!store.write(|tx| tx.remove_table("numbers")).unwrap());
    let now = store.read().unwrap();
    assert_eq!(names(&now.tables().unwrap()), ["names"]);
    assert!(now.table(NUMBERS).unwrap().iter().unwrap().next().is_none());
    assert_eq!(before.table(NUMBERS).unwrap().iter().unwrap().count(), 20_000);
    assert_eq!(before.table(NUMBERS).unwrap().get(&3000).unwrap(), Some(&LARGE[..]));
    drop((before, now));
    // Another table has the name now, with other types, and the room.
    let full = std::fs::metadata(&path).unwrap().len();
    store.write(|tx| tx.table(Table::<str, u64>::new("numbers"))?.insert("one", &1)).unwrap();
    store.write(|tx| tx.remove_table("numbers")).unwrap();
    fill(&store);
    let again = std::fs::metadata(&path).unwrap().len();
    assert!(again < full + full / 4, "{full} bytes, then {again}");
    drop(store);
    assert_is_whole(&path);
}

#[test]
fn the_removal_of_a_table_can_be_undone() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    fill(&store);
    let mut tx = store.begin().unwrap();
    let savepoint = tx.savepoint();
    assert!(tx.remove_table("numbers").unwrap());
    assert_eq!(tx.table(NUMBERS).unwrap().get(&5).unwrap(), None);
    tx.rollback_to(savepoint);
    assert_eq!(tx.table(NUMBERS).unwrap().get(&3000).unwrap(), Some(&LARGE[..]));
    tx.commit().unwrap();
    let mut dropped = store.begin().unwrap();
    assert!(dropped.remove_table("numbers").unwrap());
    drop(dropped);
    assert_eq!(store.read().unwrap().table(NUMBERS).unwrap().iter().unwrap().count(), 20_000);
    drop(store);
    assert_is_whole(&path);
}

#[test]
fn all_entries_of_a_table_of_text_are_read_and_removed_without_a_range() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let mut tx = store.begin().unwrap();
    let mut table = tx.table(NAMES).unwrap();
    table.insert("b", "2").unwrap();
    table.insert("a", "1").unwrap();
    let all: Vec<_> = table.iter().unwrap().map(Result::unwrap).collect();
    assert_eq!(all, [("a".to_owned(), "1"), ("b".to_owned(), "2")]);
    assert_eq!(table.clear().unwrap(), 2);
    assert!(table.iter().unwrap().next().is_none());
    tx.commit().unwrap();
    assert_eq!(names(&store.read().unwrap().tables().unwrap()), ["names"]);
}
