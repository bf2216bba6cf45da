//! Stores that are larger than their memory.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tests")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fieldstone_store::{RecoveryProgress, Store, Table, Transaction};
use rustix::fs::{Advice, fadvise};

const NUMBERS: Table<u64, [u8]> = Table::new("numbers");
const BULK: Table<u64, [u8]> = Table::new("bulk");
const ENTRIES: u64 = 60_000;
const MEMORY: usize = 2 << 20;

fn value(key: u64, round: u64) -> [u8; 400] {
    let mut value = [round as u8; 400];
    value[..8].copy_from_slice(&key.wrapping_mul(round | 1).to_le_bytes());
    value
}

/// Resident memory of this process that belongs to no file.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn fill(path: &Path) -> Store {
    let store = Store::builder(path).log_bytes(512 << 10).memory_bytes(MEMORY).open().unwrap();
    for block in 0..ENTRIES / 500 {
        let keys = block * 500..(block + 1) * 500;
        store
            .write(|tx| keys.into_iter().try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &value(key, 0)).map(drop)))
            .unwrap();
    }
    store
}

fn key_of(step: u64) -> u64 {
    step.wrapping_mul(0x9E37_79B9_7F4A_7C15) % ENTRIES
}

/// One test, since it measures the memory of the process.
#[test]
fn a_store_twelve_times_its_memory_is_read_written_and_copied_within_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("large.store"), folder.path().join("copy.store"));
    let before = resident();
    let store = fill(&path);
    assert!(std::fs::metadata(&path).unwrap().len() > 12 * MEMORY as u64);
    let mut rounds = vec![0_u64; ENTRIES as usize];
    for step in 0..16_000 {
        let key = key_of(step);
        if step % 8 == 0 {
            rounds[key as usize] = step;
            store.write(|tx| tx.table(NUMBERS)?.insert(&key, &value(key, step))).unwrap();
        }
        let now = store.read().unwrap();
        let found = now.table(NUMBERS).unwrap().get(&key).unwrap().unwrap();
        assert!(*found == value(key, rounds[key as usize]), "key {key} at step {step}");
    }
    store.backup(&copy).unwrap();
    // Transactions that are larger than the bound take the same memory, one after the other.
    let bulk = |rounds: std::ops::Range<u64>| {
        for block in rounds {
            let mut keys = (block + 100) * ENTRIES..(block + 100) * ENTRIES + 6000;
            let insert =
                |tx: &mut Transaction| keys.try_for_each(|key| tx.table(BULK)?.insert(&key, &[1; 400]).map(drop));
            store.write(insert).unwrap();
        }
        resident()
    };
    let (few, many) = (bulk(0..3), bulk(3..15));
    assert!(many < few + MEMORY / 2, "{} KiB after 3 transactions, {} KiB after 15", few >> 10, many >> 10);
    let taken = few - before;
    // The bound, the pages of two halves of the log and of the largest transaction, and records of frames.
    assert!(taken < 8 * MEMORY, "{} KiB were taken", taken >> 10);
    drop(store);
    for path in [path, copy] {
        let store = Store::builder(path).memory_bytes(MEMORY).open().unwrap();
        let now = store.read().unwrap();
        let table = now.table(NUMBERS).unwrap();
        let mut lent = Vec::new();
        for (key, entry) in (0..ENTRIES).zip(table.iter().unwrap()) {
            let (found, contents) = entry.unwrap();
            assert!(found == key && *contents == value(key, rounds[key as usize]));
            lent.push(contents);
        }
        // What one snapshot was lent stays, although all of it is more than the bound.
        assert!((0..).zip(&lent).all(|(key, contents)| **contents == value(key, rounds[key as usize])));
        assert_eq!(lent.len() as u64, ENTRIES);
    }
    reading_again_in_one_snapshot_or_transaction_takes_no_more_memory(&folder.path().join("copy.store"));
}

/// Reads all pages of a store several times in one snapshot, and in one transaction; then large values.
fn reading_again_in_one_snapshot_or_transaction_takes_no_more_memory(path: &Path) {
    let store = Store::builder(path).memory_bytes(MEMORY).open().unwrap();
    let assert_same = |what: &str, read: &mut dyn FnMut()| {
        (0..2).for_each(|_| read());
        let twice = resident();
        (0..6).for_each(|_| read());
        let often = resident();
        assert!(often < twice + MEMORY, "{what}: {} KiB after two rounds, {} after eight", twice >> 10, often >> 10);
    };
    let now = store.read().unwrap();
    assert_same("a snapshot", &mut || assert_eq!(now.table(NUMBERS).unwrap().iter().unwrap().count() as u64, ENTRIES));
    drop(now);
    large_values_of_one_transaction_are_evicted(&store);
    let mut tx = store.begin().unwrap();
    assert_same("a transaction", &mut || {
        let table = tx.table(NUMBERS).unwrap();
        (0..ENTRIES).step_by(10).for_each(|key| assert!(table.get(&key).unwrap().is_some()));
    });
    for key in 0..40 {
        tx.table(BULK).unwrap().insert(&key, &vec![key as u8; 300_000]).unwrap();
    }
    tx.commit().unwrap();
    let now = store.read().unwrap();
    let large = now.table(BULK).unwrap();
    assert_same("large values", &mut || {
        (0..40).for_each(|key| assert_eq!(large.get(&key).unwrap().unwrap()[9], key as u8))
    });
}

/// Writes large values in one transaction, and reads each of them in it.
fn large_values_of_one_transaction_are_evicted(store: &Store) {
    let value = |key: u64| vec![key as u8; 200 << 10];
    let before = resident();
    let mut tx = store.begin().unwrap();
    let mut table = tx.table(BULK).unwrap();
    (0..200).for_each(|key| assert!(table.insert(&key, &value(key)).unwrap()));
    let taken = resident().saturating_sub(before);
    assert!(taken < 4 * MEMORY, "{} KiB were taken by 40,000 KiB", taken >> 10);
    (0..200).for_each(|key| assert_eq!(table.get(&key).unwrap(), Some(&value(key)[..])));
}

/// A group with a limit of memory, which this process enters.
struct Group(std::path::PathBuf);

impl Group {
    fn enter(limit: u64) -> Option<Self> {
        let path = Path::new("/sys/fs/cgroup/memory").join(format!("fieldstone-test-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let group = Self(path);
        std::fs::write(group.0.join("memory.limit_in_bytes"), limit.to_string()).ok()?;
        std::fs::write(group.0.join("cgroup.procs"), std::process::id().to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::write("/sys/fs/cgroup/memory/cgroup.procs", std::process::id().to_string());
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Entries of the large store.
const MANY: u64 = 10_000_000;
/// The path of the large store, in the process that is killed.
const PATH: &str = "FIELDSTONE_STORE_TEST";
/// How many bytes of each value it replaces.
const BYTES: &str = "FIELDSTONE_STORE_TEST_BYTES";

fn large_value(key: u64, round: u64) -> Vec<u8> {
    [(key ^ round).to_le_bytes(); 125].concat()
}

/// Random keys, a few of them most of the time.
struct Keys(u64);

impl Keys {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let skewed = ((self.0 >> 11) as f64 / (1_u64 << 53) as f64).powi(6);
        ((skewed * MANY as f64) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % MANY
    }
}

fn load_many(store: &Store) {
    for block in 0..MANY / 2000 {
        let mut keys = block * 2000..(block + 1) * 2000;
        let insert = |tx: &mut Transaction| {
            keys.try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &large_value(key, 0)).map(drop))
        };
        store.write(insert).unwrap();
    }
}

/// Reads 95 of 100 entries and writes the others, as the workload B of YCSB does. Returns what it has written.
fn serve(store: &Store) -> HashMap<u64, u64> {
    let (mut rounds, mut keys) = (HashMap::new(), Keys(1));
    for step in 1..=300_000_u64 {
        let key = keys.next();
        if step % 20 == 0 {
            store.write(|tx| tx.table(NUMBERS)?.insert(&key, &large_value(key, step))).unwrap();
            rounds.insert(key, step);
        } else {
            let now = store.read().unwrap();
            let found = now.table(NUMBERS).unwrap().get(&key).unwrap().unwrap();
            assert!(*found == large_value(key, rounds.get(&key).copied().unwrap_or(0)), "key {key}");
        }
    }
    rounds
}

/// Fills the log with commits of 20 entries at random places until it is killed. It replaces `BYTES` bytes of each.
/// Prints a line for each.
#[test]
fn writer() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let bytes = std::env::var(BYTES).unwrap().parse().unwrap();
    let store = Store::open(path).unwrap();
    let first = u64::from(std::process::id()) << 32;
    for step in first.. {
        let write = |tx: &mut Transaction| {
            (0..20).try_for_each(|entry| {
                let key = (step * 20 + entry).wrapping_mul(0x9E37_79B9_7F4A_7C15) % MANY;
                let mut table = tx.table(NUMBERS)?;
                let mut value = table.get(&key)?.unwrap().to_vec();
                value[..bytes].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                table.insert(&key, &value).map(drop)
            })
        };
        store.write(write).unwrap();
        println!("committed {step}");
    }
}

/// Kills a process after some of its commits, and opens the store. Returns how long that took, and its progress.
fn recover(path: &Path, commits: usize, bytes: usize) -> (Duration, Vec<RecoveryProgress>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["writer", "--exact", "--nocapture"])
        .env(PATH, path)
        .env(BYTES, bytes.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let lines = output.lines().map_while(Result::ok).filter(|line| line.contains("committed "));
    assert_eq!(lines.take(commits).count(), commits);
    child.kill().unwrap();
    child.wait().unwrap();
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let (all, start) = (Arc::clone(&reports), Instant::now());
    let builder = Store::builder(path).on_recovery(move |progress| all.lock().unwrap().push(progress));
    drop(builder.open().unwrap());
    let time = start.elapsed();
    let reports = std::mem::take(&mut *reports.lock().unwrap());
    (time, reports)
}

#[test]
#[ignore = "needs 12 GiB of disk and some minutes: `make soak-store`"]
fn a_store_of_10_gib_is_loaded_served_and_recovered_under_a_limit_of_1_gib() {
    let Some(_group) = Group::enter(1 << 30) else {
        return println!("SKIP no memory control group of version 1 can be made here");
    };
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("large.store");
    let start = Instant::now();
    let store = Store::open(&path).unwrap();
    load_many(&store);
    assert!(std::fs::metadata(&path).unwrap().len() > 10 << 30);
    let loaded = start.elapsed();
    let rounds = serve(&store);
    println!("loaded in {loaded:.1?}, 300,000 operations in {:.1?}", start.elapsed() - loaded);
    drop(store);
    let store = Store::open(&path).unwrap();
    let now = store.read().unwrap();
    for (&key, &round) in &rounds {
        assert!(*now.table(NUMBERS).unwrap().get(&key).unwrap().unwrap() == large_value(key, round));
    }
    drop((now, store));
    let mut largest = 0;
    for round in 0..16 {
        // All lines of the values, or one of them: then the log has more pages.
        let bytes = if round % 2 == 0 { 1000 } else { 8 };
        let (time, reports) = recover(&path, 150 + round * 100, bytes);
        let last = reports.last().expect("a recovery reports its progress");
        println!("recovered {} commits, {} pages in {time:.2?}, {} reports", last.commits, last.pages, reports.len());
        assert!(time < Duration::from_secs(2) && last.written_pages == last.pages);
        assert!(reports.is_sorted_by_key(|report| report.written_pages) && reports.len() > 2);
        largest = largest.max(last.pages);
    }
    assert!(largest > 5000, "{largest} pages");
}
