//! Tests in which the thread that writes pages is stopped in the middle, and of the pages that are used again.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::check_tests::{disk, findings};
use crate::crash::{Hook, HookedDisk, OnDisk, TABLES, empty, open, open_on};
use crate::lock::lock;
use crate::object::ObjectOptions;
use crate::page::PAGE;
use crate::{Result, Store};

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_closed: bool,
    /// Whether the thread that writes pages waits.
    is_stopped: bool,
    /// Writes of other threads that are not durable when they return.
    others: usize,
}

impl Gate {
    fn set(&self, is_closed: bool) {
        lock(&self.state).is_closed = is_closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let is_flusher = std::thread::current().name() == Some("fs-store");
        let mut state = lock(&self.state);
        if !is_flusher {
            state.others += 1;
            self.changed.notify_all();
            return;
        }
        while state.is_closed {
            state.is_stopped = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_stopped = false;
    }

    /// Waits until the other threads have written more often than this, or for a while.
    fn wait_for_others(&self, before: usize) -> bool {
        let state = lock(&self.state);
        let waited = self.changed.wait_timeout_while(state, Duration::from_millis(300), |state| state.others <= before);
        waited.is_ok_and(|(state, _)| state.others > before)
    }
}

impl Hook for Arc<Gate> {
    fn before_write(&self) {
        self.pass();
    }
}

/// A store whose thread is stopped while it writes the first half of the log.
fn open_stopped() -> Result<(Store, Arc<Gate>)> {
    let gate = Arc::<Gate>::default();
    let storage = HookedDisk(OnDisk(disk(&empty(16))), Arc::clone(&gate));
    let store = open_on(Box::new(storage), 64 * PAGE, ObjectOptions::DEFAULT)?;
    gate.set(true);
    let epoch = || {
        let writer = store.0.shared.take_writer();
        let epoch = writer.epoch;
        store.0.shared.return_writer(writer);
        epoch
    };
    let (first, mut key) = (epoch(), 0);
    while epoch() == first {
        put(&store, key % 50)?;
        key += 1;
    }
    let state = gate.changed.wait_while(lock(&gate.state), |state| !state.is_stopped);
    drop(state.unwrap_or_else(PoisonError::into_inner));
    Ok((store, gate))
}

fn put(store: &Store, key: u32) -> Result<bool> {
    store.write(|tx| tx.table(TABLES[0])?.insert(&key, &[key as u8; 100]))
}

#[test]
fn commits_go_on_while_pages_are_written() {
    let (store, gate) = open_stopped().unwrap();
    for key in 100..110 {
        put(&store, key).unwrap();
        assert!(store.read().unwrap().table(TABLES[0]).unwrap().get(&key).unwrap().is_some());
    }
    assert!(lock(&gate.state).is_stopped);
    gate.set(false);
}

#[test]
fn a_large_transaction_waits_until_the_pages_of_the_log_are_written() {
    let (store, gate) = open_stopped().unwrap();
    let before = lock(&gate.state).others;
    std::thread::scope(|scope| {
        let large = scope.spawn(|| {
            store.write(|tx| (0..600).try_for_each(|key| tx.table(TABLES[1])?.insert(&key, &[1; 300]).map(drop)))
        });
        let is_early = gate.wait_for_others(before);
        gate.set(false);
        large.join().unwrap().unwrap();
        assert!(!is_early, "its changes are written where the thread may still write pages");
    });
    assert!(lock(&gate.state).others > before, "the transaction was not large");
}

#[test]
fn the_file_is_cut_after_the_pages_of_the_log_are_written() {
    let (store, gate) = open_stopped().unwrap();
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| store.begin()?.cut());
        std::thread::sleep(Duration::from_millis(300));
        let is_early = cut.is_finished();
        gate.set(false);
        cut.join().unwrap().unwrap();
        assert!(!is_early, "the thread may still write pages behind the end");
    });
}

#[test]
fn an_extent_takes_no_page_that_the_log_contains() {
    let disk = disk(&empty(512));
    let store = open(&disk).unwrap();
    for round in 0..4_u8 {
        store
            .write(|tx| (0..200).try_for_each(|key| tx.table(TABLES[0])?.insert(&key, &[round; 900]).map(drop)))
            .unwrap();
        // The pages are free, and the log has what they contained.
        store.write(|tx| tx.table(TABLES[0])?.remove_range::<u32>(..)).unwrap();
        store.write(|tx| tx.table(TABLES[1])?.insert(&u32::from(round), &vec![round; 20 * PAGE])).unwrap();
    }
    let killed = lock(&disk).cached().into_owned();
    assert_eq!(findings(&killed), []);
    let recovered = crate::check_tests::disk(&killed);
    let store = open(&recovered).unwrap();
    let now = store.read().unwrap();
    for round in 0..4_u8 {
        let value = now.table(TABLES[1]).unwrap().get(&round.into()).unwrap().unwrap();
        assert!(value.len() == 20 * PAGE && value.iter().all(|&byte| byte == round), "value {round}");
    }
}

#[test]
fn a_snapshot_reads_pages_that_one_later_transaction_has_freed_and_used_again() {
    const KEYS: u32 = 200;
    let disk = disk(&empty(16));
    let fill = |table: &mut crate::TableWrite<'_, u32, [u8]>, round: u8| {
        (0..KEYS).try_for_each(|key| table.insert(&key, &[round; 900]).map(drop))
    };
    open(&disk).unwrap().write(|tx| fill(&mut tx.table(TABLES[0])?, 1)).unwrap();
    // Its memory is a third of the pages.
    let store = open(&disk).unwrap();
    let now = store.read().unwrap();
    let pages = store.0.shared.published().1;
    let replaced = store.write(|tx| {
        let mut table = tx.table(TABLES[0])?;
        table.remove_range::<u32>(..)?;
        fill(&mut table, 2)
    });
    replaced.unwrap();
    assert!(store.0.shared.published().1 < pages + 10, "the pages were not used again");
    // The new contents come to their places.
    (0..200).for_each(|key| put(&store, key % 50 + 1000).map(drop).unwrap());
    let table = now.table(TABLES[0]).unwrap();
    for key in 0..KEYS {
        assert_eq!(table.get(&key).unwrap(), Some(&[1; 900][..]), "key {key}");
    }
}
