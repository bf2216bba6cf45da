//! A process that is killed while it commits: all commits that returned are there, and none in part.

#![allow(unsafe_code, reason = "forks")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fieldstone_store::{ErrorKind, Store, Table};

const COUNTS: Table<u32, u64> = Table::new("counts");
/// Entries of a transaction.
const ENTRIES: u32 = 7;

/// The entry of the second thread.
const SECOND: u32 = 1_000_000;

/// The path of the store, in the process that is killed.
const PATH: &str = "FIELDSTONE_STORE_TEST";

/// Sets all entries to the same number, one transaction after the other, and prints what has returned.
#[test]
fn child() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let store = Store::builder(path).log_bytes(64 << 10).open().unwrap_or_else(|error| panic!("{error}"));
    let read = |key: u32| store.read().unwrap().table(COUNTS).unwrap().get(&key).unwrap().unwrap_or(0);
    let (first, second) = (read(0) + 1, read(SECOND) + 1);
    let other = store.clone();
    std::thread::spawn(move || {
        for number in second.. {
            other.write(|tx| tx.table(COUNTS)?.insert(&SECOND, &number)).unwrap();
            println!("second {number}");
        }
    });
    for number in first.. {
        // Entries far apart are in different pages.
        store
            .write(|tx| {
                for entry in 0..ENTRIES {
                    tx.table(COUNTS)?.insert(&(entry * 1000), &number)?;
                    tx.table(COUNTS)?.insert(&(entry * 1000 + (number % 900) as u32 + 1), &number)?;
                }
                Ok(())
            })
            .unwrap();
        println!("{number}");
    }
}

/// Reads what the snapshot of the parent has in memory, and nothing else. Locks that threads of the parent hold do
/// not stop it.
#[test]
fn a_forked_child_reads_what_is_in_memory_and_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("fork.store")).unwrap();
    store.write(|tx| tx.table(COUNTS)?.insert(&1, &2)).unwrap();
    let (open, now) = (store.begin().unwrap(), store.read().unwrap());
    assert_eq!(now.table(COUNTS).unwrap().get(&1).unwrap(), Some(2));
    // SAFETY: the child uses memory, files and _exit(2) only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let read = now.table(COUNTS).and_then(|table| table.get(&1));
        let is_refused =
            |result: fieldstone_store::Result<()>| result.is_err_and(|error| error.kind() == ErrorKind::Forked);
        let are_refused = is_refused(store.begin().map(drop)) && is_refused(store.read().map(drop));
        let is_right = matches!(read, Ok(Some(2))) && are_refused;
        drop((open, now, store));
        // SAFETY: nothing is left to do in the child.
        unsafe { libc::_exit(i32::from(!is_right)) }
    }
    let mut status = 0;
    // SAFETY: the child was just forked; the number is written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(open);
    store.write(|tx| tx.table(COUNTS)?.insert(&1, &3)).unwrap();
}

/// Opens the store after a kill. A child of another test, which was just forked, may still have its lock.
fn open(path: &Path) -> Store {
    let start = Instant::now();
    loop {
        match Store::open(path) {
            Err(error) if error.kind() == ErrorKind::Busy && start.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap_or_else(|error| panic!("{error}")),
        }
    }
}

/// Kills the process in rounds until it has made enough commits, however busy the machine is.
#[test]
fn commits_that_returned_are_there_after_a_kill() {
    const LEAST_ROUNDS: u64 = 10;
    const LEAST_COMMITS: u64 = 40;
    const LIMIT: Duration = Duration::from_secs(300);
    let start = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kill.store");
    let (mut last, mut last_of_second) = (0, 0);
    let mut round = 0;
    while (round < LEAST_ROUNDS || last < LEAST_COMMITS) && start.elapsed() < LIMIT {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(PATH, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let (mut first, mut second) = (None, None);
            for line in output.lines().map_while(Result::ok) {
                match line.strip_prefix("second ") {
                    Some(number) => second = number.parse::<u64>().ok().or(second),
                    None => first = line.parse::<u64>().ok().or(first),
                }
            }
            (first, second)
        });
        // Later rounds are longer, for a machine on which no commit is made in the first ones.
        std::thread::sleep(Duration::from_millis(10 + round * 37 % 120 + round * 5));
        round += 1;
        child.kill().unwrap();
        child.wait().unwrap();
        let (first, second) = reader.join().unwrap();
        let (returned, second) = (first.unwrap_or(last), second.unwrap_or(last_of_second));
        let store = open(&path);
        let now = store.read().unwrap();
        let table = now.table(COUNTS).unwrap();
        let values: Vec<u64> = (0..ENTRIES).map(|entry| table.get(&(entry * 1000)).unwrap().unwrap_or(0)).collect();
        assert!(values.iter().all(|value| value == &values[0]), "{values:?}");
        assert!(values[0] == returned || values[0] == returned + 1, "{values:?}, {returned} returned");
        for entry in (0..ENTRIES).filter(|_| values[0] > 0) {
            assert_eq!(table.get(&(entry * 1000 + (values[0] % 900) as u32 + 1)).unwrap(), Some(values[0]));
        }
        last = values[0];
        last_of_second = table.get(&SECOND).unwrap().unwrap_or(0);
        assert!([second, second + 1].contains(&last_of_second), "{last_of_second}, {second} returned");
    }
    assert!(last >= LEAST_COMMITS, "{last} commits in {round} rounds and {} s", start.elapsed().as_secs());
}
