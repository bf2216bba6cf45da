//! Processes that are killed in each role: one that reads, writes, makes a copy, makes the file smaller, recovers, or
//! makes the store.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fieldstone_store::{RecoveryProgress, Scope, Store, Table, check};

use common::wait_and_open;

const NUMBERS: Table<u64, [u8]> = Table::new("numbers");
const ROLE: &str = "FIELDSTONE_STORE_ROLE";
const FOLDER: &str = "FIELDSTONE_STORE_FOLDER";
const ENTRIES: u64 = 2000;

fn open(folder: &Path) -> Store {
    wait_and_open(&Store::builder(folder.join("a.store")).log_bytes(64 << 10))
}

fn set(store: &Store, keys: std::ops::Range<u64>, value: u8) {
    store
        .write(|tx| keys.into_iter().try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &[value; 100]).map(drop)))
        .unwrap();
}

fn fill(store: &Store) {
    (0..ENTRIES).step_by(50).for_each(|start| set(store, start..start + 50, 1));
}

/// Does one thing until it is killed.
#[test]
fn child() {
    let (Ok(role), Some(folder)) = (std::env::var(ROLE), std::env::var_os(FOLDER)) else { return };
    let folder = PathBuf::from(folder);
    if role == "make" {
        println!("ready");
        for round in 0_u64.. {
            drop(Store::open(folder.join(format!("{round}.store"))).unwrap());
        }
    }
    if role == "recover" {
        println!("ready");
        loop {
            let _ = std::fs::copy(folder.join("killed.store"), folder.join("a.store"));
            drop(open(&folder));
        }
    }
    let store = open(&folder);
    let now = store.read().unwrap();
    println!("ready");
    for round in 0_u64.. {
        match role.as_str() {
            "read" => assert_eq!(now.table(NUMBERS).unwrap().iter().unwrap().count() as u64, ENTRIES),
            "write" => set(&store, round % 39 * 50..round % 39 * 50 + 50, round as u8),
            "back up" => store.backup(folder.join(format!("{}-{round}.copy", std::process::id()))).unwrap(),
            "compact" => {
                store.write(|tx| tx.table(NUMBERS)?.remove_range(100..)).unwrap();
                store.compact().unwrap();
                fill(&store);
            }
            other => panic!("no role {other}"),
        }
    }
}

fn start(role: &str, folder: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(ROLE, role)
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(output.any(|line| line.unwrap().ends_with("ready")));
    child
}

/// The bytes of the store while commits are in its log only.
fn killed(folder: &Path) -> Vec<u8> {
    let store = open(folder);
    fill(&store);
    set(&store, 0..50, 9);
    let image = std::fs::read(folder.join("a.store")).unwrap();
    drop(store);
    image
}

#[test]
fn a_kill_in_any_role_leaves_a_whole_store_and_no_lock() {
    for role in ["read", "write", "back up", "compact", "recover", "make"] {
        let folder = tempfile::tempdir().unwrap();
        let image = killed(folder.path());
        std::fs::write(folder.path().join("killed.store"), image).unwrap();
        for round in 0..5 {
            let mut child = start(role, folder.path());
            std::thread::sleep(Duration::from_millis(3 + round * 11));
            child.kill().unwrap();
            child.wait().unwrap();
            for entry in std::fs::read_dir(folder.path()).unwrap() {
                let path = entry.unwrap().path();
                // What is not whole has another name. The child may also be killed in the copy that it recovers.
                let name = path.file_name().unwrap().to_str().unwrap();
                let is_half = name.ends_with(".new") || (role == "recover" && name == "a.store");
                if !is_half {
                    assert_eq!(
                        check(&path, Scope::All, |finding| panic!("{role}: {name}: {finding:?}")).unwrap().findings,
                        0
                    );
                }
            }
        }
        if role == "recover" {
            continue;
        }
        // Nobody has the store open, and no page is kept for a reader that is gone.
        let store = open(folder.path());
        fill(&store);
        assert_eq!(store.read().unwrap().table(NUMBERS).unwrap().iter().unwrap().count() as u64, ENTRIES, "{role}");
        assert!(std::fs::metadata(folder.path().join("a.store")).unwrap().len() < 4 << 20, "{role}");
    }
}

#[test]
fn a_recovery_is_bounded_by_the_log_and_reports_its_progress() {
    let folder = tempfile::tempdir().unwrap();
    let (path, killed) = (folder.path().join("a.store"), folder.path().join("killed.store"));
    let log_bytes = 1 << 20;
    let store = Store::builder(&path).log_bytes(log_bytes).open().unwrap();
    // A store that is much larger than its log.
    (0..80_000).step_by(1000).for_each(|start| set(&store, start..start + 1000, 3));
    drop(store);
    let store = open(folder.path());
    // As many commits as half of the log has room for, each with another page.
    let commits = 100;
    (0..commits).for_each(|round| set(&store, round * 797..round * 797 + 1, 4));
    std::fs::copy(&path, &killed).unwrap();
    drop(store);
    let reports = Arc::new(Mutex::new(Vec::<RecoveryProgress>::new()));
    let report = {
        let reports = Arc::clone(&reports);
        move |progress| reports.lock().unwrap().push(progress)
    };
    drop(wait_and_open(&Store::builder(&killed).on_recovery(report.clone())));
    let seen = std::mem::take(&mut *reports.lock().unwrap());
    let (first, last) = (seen[0], seen[seen.len() - 1]);
    assert_eq!((first.commits, first.written_pages, last.written_pages), (commits, 0, last.pages), "{seen:?}");
    assert!(seen.is_sorted_by_key(|progress| progress.written_pages));
    // The first change of a page in a half of the log takes the whole page there.
    assert!(last.pages >= commits && last.pages <= log_bytes as u64 / 4096, "{last:?}");
    let pages = std::fs::metadata(&killed).unwrap().len() / 4096;
    assert!(pages > 10 * last.pages, "the store has {pages} pages");
    // A store that was recovered or closed has nothing to recover.
    drop(wait_and_open(&Store::builder(&killed).on_recovery(report)));
    assert!(reports.lock().unwrap().is_empty());
}
