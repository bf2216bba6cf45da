//! Stores that are larger than their memory.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tests")]

use std::path::Path;

use fieldstone_store::{Store, Table};

const NUMBERS: Table<u64, [u8]> = Table::new("numbers");
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
    let taken = resident() - before;
    // The bound, the pages of two halves of the log, and records of frames.
    assert!(taken < 5 * MEMORY, "{} KiB were taken", taken >> 10);
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

/// Loads 10 GiB, then reads (95 of 100) and writes entries, a few of them most of the time, as the workload
/// B of YCSB does.
#[test]
#[ignore = "needs 12 GiB of disk and some minutes: `make soak-store`"]
fn a_store_of_10_gib_is_loaded_and_served_under_a_limit_of_1_gib() {
    const ENTRIES: u64 = 10_000_000;
    let Some(_group) = Group::enter(1 << 30) else {
        return println!("SKIP no memory control group of version 1 can be made here");
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.store");
    let start = std::time::Instant::now();
    let value = |key: u64, round: u64| [(key ^ round).to_le_bytes(); 125].concat();
    let store = Store::open(&path).unwrap();
    for block in 0..ENTRIES / 2000 {
        let keys = block * 2000..(block + 1) * 2000;
        let insert = |tx: &mut fieldstone_store::Transaction| {
            keys.into_iter().try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &value(key, 0)).map(drop))
        };
        store.write(insert).unwrap();
    }
    let loaded = start.elapsed();
    assert!(std::fs::metadata(&path).unwrap().len() > 10 << 30);
    let mut rounds = std::collections::HashMap::new();
    let mut random = 1_u64;
    let start = std::time::Instant::now();
    for step in 1..=300_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let skewed = ((random >> 11) as f64 / (1_u64 << 53) as f64).powi(6);
        let key = ((skewed * ENTRIES as f64) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % ENTRIES;
        if step % 20 == 0 {
            store.write(|tx| tx.table(NUMBERS)?.insert(&key, &value(key, step))).unwrap();
            rounds.insert(key, step);
        } else {
            let now = store.read().unwrap();
            let found = now.table(NUMBERS).unwrap().get(&key).unwrap().unwrap();
            assert!(*found == value(key, rounds.get(&key).copied().unwrap_or(0)), "key {key}");
        }
    }
    let served = start.elapsed();
    drop(store);
    println!("loaded in {loaded:.1?}, 300,000 operations in {served:.1?}");
    let store = Store::open(&path).unwrap();
    let now = store.read().unwrap();
    for (&key, &round) in &rounds {
        assert!(*now.table(NUMBERS).unwrap().get(&key).unwrap().unwrap() == value(key, round));
    }
}
