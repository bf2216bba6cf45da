//! Tables, snapshots and transactions through the public interface.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::Bound;
use std::path::PathBuf;

use fieldstone_store::{Error, ErrorKind, Savepoint, Snapshot, Store, Table, Transaction, Value};
use tempfile::TempDir;

const NUMBERS: Table<u64, [u8]> = Table::new("numbers");
const NAMES: Table<str, str> = Table::new("names");

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.store");
    (folder, path)
}

#[test]
fn what_was_committed_is_there_after_reopening() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    for round in 0..50_u64 {
        store
            .write(|tx| {
                for number in 0..200 {
                    tx.table(NUMBERS)?.insert(&(number * 50 + round), &round.to_le_bytes())?;
                }
                Ok(())
            })
            .unwrap();
    }
    drop(store);
    let store = Store::open(&path).unwrap();
    let now = store.read().unwrap();
    let all = now.table(NUMBERS).unwrap().iter().unwrap().map(|entry| entry.unwrap());
    let mut count = 0;
    for (expected, (number, value)) in (0_u64..).zip(all) {
        assert_eq!((number, value), (expected, &(expected % 50).to_le_bytes()[..]));
        count += 1;
    }
    assert_eq!(count, 10_000);
}

#[test]
fn a_snapshot_stays_as_it_is() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let put = |value: &str| store.write(|tx| tx.table(NAMES)?.insert("a", value)).unwrap();
    assert!(store.read().unwrap().table(NAMES).unwrap().get("a").unwrap().is_none());
    put("first");
    let before = store.read().unwrap();
    let lent = before.table(NAMES).unwrap().get("a").unwrap();
    for round in 0..100 {
        put(&format!("later {round}"));
    }
    assert_eq!((lent, before.table(NAMES).unwrap().get("a").unwrap()), (Some("first"), Some("first")));
    let now = store.read().unwrap();
    assert_eq!(now.table(NAMES).unwrap().get("a").unwrap(), Some("later 99"));
}

#[test]
fn an_error_a_panic_and_a_dropped_transaction_change_nothing() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    store.write(|tx| tx.table(NAMES)?.insert("kept", "1")).unwrap();
    let failed = store.write(|tx| {
        tx.table(NAMES)?.insert("a", "1")?;
        tx.table(NAMES)?.insert(&"k".repeat(600), "1")
    });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::TooLarge);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.write(|tx| {
            tx.table(NAMES)?.insert("b", "1")?;
            if tx.table(NAMES)?.get("b")?.is_some() { panic!("as intended") } else { Ok(()) }
        })
    }));
    assert!(panicked.is_err());
    let mut dropped = store.begin().unwrap();
    dropped.table(NAMES).unwrap().insert("c", "1").unwrap();
    drop(dropped);
    let now = store.read().unwrap();
    let names: Vec<_> = now.table(NAMES).unwrap().iter().unwrap().map(|entry| entry.unwrap().0).collect();
    assert_eq!(names, ["kept"]);
}

#[test]
fn a_savepoint_undoes_what_came_behind_it() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let mut tx = store.begin().unwrap();
    let fill = |tx: &mut Transaction, from: u64| {
        for number in from..from + 1000 {
            tx.table(NUMBERS).unwrap().insert(&number, &[7; 100]).unwrap();
        }
    };
    let count = |tx: &mut Transaction| tx.table(NUMBERS).unwrap().range::<u64>(..).unwrap().count();
    fill(&mut tx, 0);
    let mark = tx.savepoint();
    fill(&mut tx, 5000);
    let later = tx.savepoint();
    assert_eq!(tx.table(NUMBERS).unwrap().remove_range(..900).unwrap(), 900);
    assert_eq!(count(&mut tx), 1100);
    tx.rollback_to(later);
    assert_eq!(count(&mut tx), 2000);
    fill(&mut tx, 9000);
    tx.rollback_to(mark);
    assert_eq!(count(&mut tx), 1000);
    fill(&mut tx, 3000);
    tx.commit().unwrap();
    assert_eq!(store.read().unwrap().table(NUMBERS).unwrap().iter().unwrap().count(), 2000);
}

/// Whether a rollback panics with a message about the savepoint.
fn is_refused(tx: &mut Transaction, savepoint: Savepoint) -> bool {
    let rolled_back = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tx.rollback_to(savepoint)));
    rolled_back.is_err_and(|panic| panic.downcast_ref::<&str>().is_some_and(|text| text.contains("has ended or is of")))
}

#[test]
fn a_savepoint_that_has_ended_or_is_of_another_transaction_is_refused() {
    let (folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let mut tx = store.begin().unwrap();
    let first = tx.savepoint();
    let ended = tx.savepoint();
    tx.rollback_to(first);
    // It would have the number of the one that has ended.
    let later = tx.savepoint();
    tx.table(NUMBERS).unwrap().insert(&1, &[1]).unwrap();
    assert!(is_refused(&mut tx, ended));
    let other = Store::open(folder.path().join("other.store")).unwrap();
    let mut tx_of_other = other.begin().unwrap();
    let own = tx_of_other.savepoint();
    assert!(is_refused(&mut tx_of_other, first) && is_refused(&mut tx, own));
    assert!(tx.table(NUMBERS).unwrap().get(&1).unwrap().is_some(), "a refused rollback has changed something");
    tx.rollback_to(later);
    assert!(tx.table(NUMBERS).unwrap().get(&1).unwrap().is_none());
    tx.rollback_to(first);
    tx.commit().unwrap();
}

#[test]
fn ranges_have_the_entries_of_their_bounds_from_either_end() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let numbers: Vec<u64> = (0..3000).map(|number| number * 3).collect();
    store
        .write(|tx| numbers.iter().try_for_each(|number| tx.table(NUMBERS)?.insert(number, &[1; 40]).map(drop)))
        .unwrap();
    let now = store.read().unwrap();
    let table = now.table(NUMBERS).unwrap();
    for from in [0, 1, 2, 3, 299, 300, 4500, 8996, 8997, 8998, 20_000] {
        for to in [0, 1, 3, 301, 4502, 8997, 8998, 20_000] {
            for bounds in [
                (Bound::Included(from), Bound::Included(to)),
                (Bound::Excluded(from), Bound::Excluded(to)),
                (Bound::Included(from), Bound::Excluded(to)),
                (Bound::Excluded(from), Bound::Unbounded),
            ] {
                let is_in = |number: &&u64| std::ops::RangeBounds::contains(&bounds, *number);
                let expected: Vec<u64> = numbers.iter().filter(is_in).copied().collect();
                let key = |entry: fieldstone_store::Result<(u64, &[u8])>| entry.unwrap().0;
                assert_eq!(table.range(bounds).unwrap().map(key).collect::<Vec<_>>(), expected, "{bounds:?}");
                let mut back: Vec<u64> = table.range(bounds).unwrap().rev().map(key).collect();
                back.reverse();
                assert_eq!(back, expected, "{bounds:?} from the back");
            }
        }
    }
    let mut ends = table.iter().unwrap();
    for index in 0..1500 {
        assert_eq!(ends.next().unwrap().unwrap().0, index * 3);
        assert_eq!(ends.next_back().unwrap().unwrap().0, (2999 - index) * 3);
    }
    assert!(ends.next().is_none() && ends.next_back().is_none());
}

#[test]
fn a_second_opening_and_wrong_types_are_refused() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let busy = Store::open(&path).unwrap_err();
    assert_eq!((busy.kind(), busy.path()), (ErrorKind::Busy, path.as_path()));
    store.write(|tx| tx.table(NAMES).map(drop)).unwrap();
    let other: Table<u32, str> = Table::new("names");
    let error = store.read().unwrap().table(other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Type);
    assert!(error.to_string().contains("has keys of type text and values of type text, not u32 and text"), "{error}");
    let mut tx = store.begin().unwrap();
    assert_eq!(tx.table(other).unwrap_err().kind(), ErrorKind::Type);
    tx.table(NAMES).unwrap().insert("a", "b").unwrap();
    tx.commit().unwrap();
}

/// Bytes of a type with a name.
macro_rules! named_bytes {
    ($type:ident, $name:literal) => {
        #[derive(Debug)]
        struct $type;

        impl Value for $type {
            type Lent<'a> = &'a [u8];
            const TYPE: &'static str = $name;

            fn encode(&self, _bytes: &mut Vec<u8>) {}

            fn decode(bytes: &[u8]) -> Option<&[u8]> {
                Some(bytes)
            }
        }
    };
}

named_bytes!(ZeroInside, "bytes\0x");
named_bytes!(ZeroOnly, "\0");

#[test]
fn a_zero_byte_in_the_name_of_a_type_is_refused() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let assert_refused = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Type, "{error}");
        assert!(error.to_string().contains("cannot open the table other: the name") && error.remedy().is_some());
    };
    let table: Table<u32, ZeroInside> = Table::new("other");
    assert_refused(store.read().unwrap().table(table).unwrap_err());
    assert_refused(store.begin().unwrap().table(table).unwrap_err());
    assert_refused(store.begin().unwrap().table(Table::<u32, ZeroOnly>::new("other")).unwrap_err());
    assert!(store.read().unwrap().tables().unwrap().is_empty());
}

#[test]
fn removed_entries_make_room_for_others() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let mut bytes = Vec::new();
    for round in 0..6_u8 {
        store
            .write(|tx| {
                for number in 0..5000_u64 {
                    let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    tx.table(NUMBERS)?.insert(&key, &[round; 60])?;
                }
                Ok(())
            })
            .unwrap();
        store
            .write(|tx| {
                let keys: Vec<u64> = tx
                    .table(NUMBERS)?
                    .range::<u64>(..)?
                    .map(|entry| entry.map(|entry| entry.0))
                    .collect::<Result<_, _>>()?;
                keys.iter().try_for_each(|key| tx.table(NUMBERS)?.remove(key).map(|was| assert!(was)))
            })
            .unwrap();
        assert_eq!(store.read().unwrap().table(NUMBERS).unwrap().iter().unwrap().count(), 0);
        bytes.push(std::fs::metadata(&path).unwrap().len());
    }
    assert_eq!(bytes[0], bytes[5], "{bytes:?}");
}

#[test]
fn damage_is_an_error_that_names_the_page() {
    let (_folder, path) = folder();
    let store = Store::builder(&path).log_bytes(64 << 10).open().unwrap();
    for block in 0..100_u64 {
        store
            .write(|tx| {
                (0..20).try_for_each(|number| tx.table(NUMBERS)?.insert(&(block * 20 + number), &[9; 100]).map(drop))
            })
            .unwrap();
    }
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    let read_all = |store: &Store| {
        let now = store.read()?;
        let count = now.table(NUMBERS)?.iter()?.try_fold(0, |count, entry| entry.map(|_| count + 1))?;
        Ok::<_, fieldstone_store::Error>(count)
    };
    let log_end = 2 * 4096 + (64 << 10);
    let mut found = 0;
    for at in (log_end..whole.len()).step_by(997) {
        let mut changed = whole.clone();
        changed[at] ^= 0x40;
        std::fs::write(&path, &changed).unwrap();
        match Store::open(&path).and_then(|store| read_all(&store)) {
            Ok(count) => assert_eq!(count, 2000, "byte {at} is in an unused page"),
            Err(error) => {
                assert_eq!(
                    (error.kind(), error.page()),
                    (ErrorKind::Corrupt, u32::try_from(at / 4096).ok()),
                    "{error}"
                );
                found += 1;
            }
        }
    }
    assert!(found > 50, "{found}");
    for bytes in (0..whole.len()).step_by(70_001) {
        std::fs::write(&path, &whole[..bytes]).unwrap();
        if let Ok(store) = Store::open(&path) {
            assert!(read_all(&store).is_ok_and(|count| count == 2000) || read_all(&store).is_err());
        }
    }
    for offset in [0, 4096] {
        let mut changed = whole.clone();
        changed[offset + 20] ^= 1;
        std::fs::write(&path, &changed).unwrap();
        // One whole copy of the header suffices.
        assert_eq!(read_all(&Store::open(&path).unwrap()).unwrap(), 2000);
    }
}

#[test]
fn a_backup_has_what_was_committed_and_is_a_store() {
    let (folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let add = |numbers: std::ops::Range<u64>| {
        store
            .write(|tx| {
                numbers.into_iter().try_for_each(|number| tx.table(NUMBERS)?.insert(&number, &[5; 200]).map(drop))
            })
            .unwrap();
    };
    add(0..3000);
    let before = store.read().unwrap();
    add(3000..4000);
    let [early, now] = ["early", "now"].map(|name| folder.path().join(name));
    before.backup(&early).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (4000..4050).for_each(|number| add(number..number + 1)));
        store.backup(&now).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(store.backup(&now).unwrap_err().kind(), ErrorKind::Exists);
    let count = |path| {
        let copy = Store::open(path).unwrap();
        copy.write(|tx| tx.table(NUMBERS)?.insert(&u64::MAX, &[]).map(drop)).unwrap();
        copy.read()
            .unwrap()
            .table(NUMBERS)
            .unwrap()
            .iter()
            .unwrap()
            .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.1.len() == 200))
            .count()
    };
    assert_eq!(count(&early), 3000);
    assert!((4000..=4050).contains(&count(&now)));
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 3, "temporary files are left");
}

#[test]
fn users_may_be_shared_between_threads() {
    fn check<T: Send + Sync + 'static>() {}
    fn check_send<T: Send + 'static>() {}
    check::<Store>();
    check::<Snapshot>();
    check_send::<Transaction>();
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let store = store.clone();
            scope.spawn(move || {
                for round in 0..100 {
                    store.write(|tx| tx.table(NUMBERS)?.insert(&(thread * 1000 + round), &[1])).unwrap();
                    let now = store.read().unwrap();
                    assert!(now.table(NUMBERS).unwrap().iter().unwrap().count() as u64 > round);
                }
            });
        }
    });
    assert_eq!(store.read().unwrap().table(NUMBERS).unwrap().iter().unwrap().count(), 400);
}

#[test]
fn a_transaction_can_be_had_without_waiting_only_if_no_other_one_is_open() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let first = store.begin().unwrap();
    assert!(store.try_begin().unwrap().is_none());
    drop(first);
    let mut second = store.try_begin().unwrap().unwrap();
    second.table(NAMES).unwrap().insert("a", "1").unwrap();
    second.commit().unwrap();
    assert_eq!(store.read().unwrap().table(NAMES).unwrap().get("a").unwrap(), Some("1"));
}

#[test]
fn an_error_of_the_caller_leaves_the_store_as_it_was_and_returns() {
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let add = |id: &str| {
        store.write_or::<_, Box<dyn std::error::Error>>(|tx| {
            tx.table(NUMBERS)?.insert(&0, b"before")?;
            tx.table(NUMBERS)?.insert(&id.parse()?, b"parsed")?;
            Ok(())
        })
    };
    assert!(add("seven").unwrap_err().is::<std::num::ParseIntError>());
    assert!(store.read().unwrap().table(NUMBERS).unwrap().iter().unwrap().next().is_none());
    add("7").unwrap();
    assert_eq!(store.read().unwrap().table(NUMBERS).unwrap().get(&7).unwrap(), Some(&b"parsed"[..]));
}

#[test]
fn an_error_has_the_number_of_the_failed_call() {
    let (folder, path) = folder();
    let error = Store::open(folder.path().join("absent").join("a.store")).unwrap_err();
    assert_eq!((error.kind(), error.os_error()), (ErrorKind::Io, Some(2)), "{error}");
    let store = Store::open(&path).unwrap();
    let large = store.write(|tx| tx.table(NAMES)?.insert(&"k".repeat(600), "1")).unwrap_err();
    assert_eq!((large.kind(), large.os_error()), (ErrorKind::TooLarge, None));
}

#[test]
fn a_store_that_is_to_be_there_is_not_made() {
    let (_folder, path) = folder();
    let error = Store::builder(&path).create(false).open().unwrap_err();
    assert!(error.kind() == ErrorKind::Absent && error.remedy().is_some(), "{error}");
    assert!(!path.exists());
    Store::open(&path).unwrap();
    Store::builder(&path).create(false).open().unwrap();
}
