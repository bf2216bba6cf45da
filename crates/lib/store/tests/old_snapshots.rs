//! Snapshots that are older than the versions of pages that are kept.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fieldstone_store::{ErrorKind, Snapshot, Store, Table};

const NUMBERS: Table<u64, [u8]> = Table::new("numbers");
const FILL: Table<u64, [u8]> = Table::new("fill");
/// Entries, each in a page of its own.
const ENTRIES: u64 = 400;

fn open(path: &Path) -> Store {
    Store::builder(path).log_bytes(1 << 20).memory_bytes(64 << 20).old_version_bytes(1 << 20).open().unwrap()
}

/// Sets all entries to a number, in transactions of ten.
fn set(store: &Store, number: u64) {
    for start in (0..ENTRIES).step_by(10) {
        let value: Vec<u8> = number.to_le_bytes().repeat(120);
        let keys = start..start + 10;
        store
            .write(|tx| keys.into_iter().try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &value).map(drop)))
            .unwrap();
    }
}

fn get(now: &Snapshot, key: u64) -> fieldstone_store::Result<&[u8]> {
    Ok(now.table(NUMBERS)?.get(&key)?.unwrap())
}

/// Resident memory of this process that belongs to no file.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Held by each test, since one measures the memory of the process.
static PROCESS: Mutex<()> = Mutex::new(());

#[test]
fn a_snapshot_that_sleeps_becomes_too_old_and_keeps_what_it_was_lent() {
    let _process = PROCESS.lock();
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("old.store"));
    set(&store, 1);
    set(&store, 2);
    let sleeping = store.read().unwrap();
    let expected = 2_u64.to_le_bytes().repeat(120);
    let lent: Vec<&[u8]> = (0..50).map(|key| get(&sleeping, key).unwrap()).collect();
    set(&store, 3);
    assert_eq!(get(&sleeping, 50).unwrap(), expected, "the versions of one round are within the bound");
    let before = resident();
    for number in 4..40 {
        set(&store, number);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 6 << 20, "{grown} bytes more, and {} bytes of pages were replaced", 36 * ENTRIES * 4096);
    let error = get(&sleeping, 200).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooOld, "{error}");
    assert!(error.to_string().contains("\ntry: a new snapshot"), "{error}");
    assert_eq!(sleeping.backup(folder.path().join("copy")).unwrap_err().kind(), ErrorKind::TooOld);
    assert!(!folder.path().join("copy").exists());
    // It takes all free frames, and fills them.
    let mut large = store.begin().unwrap();
    assert!((0..3000).all(|key| large.table(FILL).unwrap().insert(&key, &[0; 1000]).unwrap()));
    drop(large);
    assert!(lent.iter().all(|value| *value == expected));
    let now = store.read().unwrap();
    assert!((0..ENTRIES).all(|key| get(&now, key).unwrap() == 39_u64.to_le_bytes().repeat(120)));
    drop(sleeping);
    // The frames that it was lent are used again.
    let before = resident();
    (40..45).for_each(|number| set(&store, number));
    assert!(resident().saturating_sub(before) < 2 << 20);
}

#[test]
fn readers_see_one_version_or_are_too_old_while_others_write() {
    let _process = PROCESS.lock();
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("busy.store"));
    set(&store, 1);
    let (is_over, written, mut rounds) = (AtomicBool::new(false), AtomicU64::new(1), [0_u32; 2]);
    std::thread::scope(|scope| {
        let readers = [1, 7].map(|step| {
            let (store, is_over, written) = (&store, &is_over, &written);
            scope.spawn(move || {
                let (mut whole, mut too_old) = (0, 0);
                while !is_over.load(Ordering::Relaxed) {
                    let (now, begin) = (store.read().unwrap(), written.load(Ordering::Relaxed));
                    let waits = (whole + too_old) % 4 == 3;
                    let mut lent: Vec<&[u8]> = Vec::new();
                    let read = (0..ENTRIES).step_by(step).try_for_each(|key| {
                        // In the middle, all entries are replaced twice, which is more than is kept.
                        while waits
                            && key >= ENTRIES / 2
                            && written.load(Ordering::Relaxed) < begin + 3
                            && !is_over.load(Ordering::Relaxed)
                        {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        get(&now, key).map(|value| lent.push(value))
                    });
                    std::thread::yield_now();
                    match read {
                        Ok(()) => whole += 1,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::TooOld, "{error}");
                            too_old += 1;
                        }
                    }
                    // Each value is of one round, and later keys are of the same or of the round before.
                    let numbers: Vec<&[u8]> = lent.iter().map(|value| &value[..8]).collect();
                    assert!(lent.iter().all(|value| value.chunks(8).all(|number| number == &value[..8])));
                    assert!(numbers.is_sorted_by(|first, second| first >= second), "{numbers:?}");
                }
                [whole, too_old]
            })
        });
        for number in 2..120 {
            set(&store, number);
            written.store(number, Ordering::Relaxed);
        }
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            let read = reader.join().unwrap();
            rounds = [rounds[0] + read[0], rounds[1] + read[1]];
        }
    });
    assert!(rounds[1] > 0, "no reader was too old: {rounds:?}");
}
