//! A save is the memory as of one instant, while threads write.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::thread::scope;
use std::time::Duration;

use fieldstone_checkpoint::{Checkpointer, Directory, Error};

use crate::fixture::{MIB, WORDS, filled, words};

#[test]
fn two_counters_on_far_pages_are_saved_together() {
    static COUNTING: Mutex<u64> = Mutex::new(0);
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(8 * MIB);
    let (first, last) = (0, words(&memory).len() - 1);
    let pair = |words: &[AtomicU64]| (words[first].load(Relaxed), words[last].load(Relaxed));
    [first, last].iter().for_each(|&at| words(&memory)[at].store(0, Relaxed));
    let mut saver = Checkpointer::builder([&memory]).build().unwrap();
    let ends = AtomicBool::new(false);
    scope(|threads| {
        threads.spawn(|| {
            let mut at = 12345_usize;
            while !ends.load(Relaxed) {
                let mut count = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
                *count += 1;
                words(&memory)[first].store(*count, Relaxed);
                // Other pages, so that each save has something to do.
                at = at.wrapping_mul(25_214_903_917).wrapping_add(11);
                words(&memory)[1 + at % (last - 2)].store(*count, Relaxed);
                words(&memory)[last].store(*count, Relaxed);
                drop(count);
                // Other threads get the lock, and the pages do not all change at once.
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        let mut before = 0;
        for _ in 0..20 {
            let save = saver.begin(&saves, || {
                let count = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
                let value = *count;
                (count, value)
            });
            let report = save.unwrap().wait();
            let saved = saves.last().unwrap();
            let (restored, value) = (saved.restore().unwrap(), saved.value());
            assert!(report.is_ok(), "{report:?}");
            assert_eq!(pair(words(&restored[0])), (value, value));
            assert!(value > before, "the program writes on: {value} after {before}");
            before = value;
        }
        ends.store(true, Relaxed);
    });
}

#[test]
fn a_writer_that_does_not_wait_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(4 * MIB);
    let mut saver = Checkpointer::builder([&memory]).build().unwrap();
    saver.save(&saves, || ((), 1)).unwrap();
    let (ends, runs) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut found = 0;
    scope(|threads| {
        threads.spawn(|| {
            let mut count = 0;
            while !ends.load(Relaxed) {
                count += 1;
                words(&memory)[0].store(count, Relaxed);
                words(&memory)[300 * WORDS].store(count, Relaxed);
                runs.store(true, SeqCst);
            }
        });
        for _ in 0..50 {
            runs.store(false, SeqCst);
            let wait = || {
                // The instant comes while the writer runs.
                while !runs.load(SeqCst) {
                    std::hint::spin_loop();
                }
                ((), 2)
            };
            match saver.save(&saves, wait) {
                Err(Error::WriterRan) => found += 1,
                Ok(_) => {
                    // It did not get the processor during the stop: what was saved is of one instant.
                    let restored = saves.last().unwrap().restore().unwrap();
                    let (first, second) =
                        (words(&restored[0])[0].load(Relaxed), words(&restored[0])[300 * WORDS].load(Relaxed));
                    assert!(first == second || first == second + 1, "{first} and {second}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        ends.store(true, Relaxed);
    });
    assert!(found > 0, "no save was refused");
    // What a refused save had copied is part of the next one.
    saver.save(&saves, || ((), 3)).unwrap();
    let restored = saves.last().unwrap().restore().unwrap();
    assert!(crate::fixture::contents(&restored[0]) == crate::fixture::contents(&memory));
}

#[test]
fn a_program_that_writes_too_fast_is_an_error_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(64 * MIB);
    let mut saver = Checkpointer::builder([&memory]).stop_limit(Duration::from_micros(1)).build().unwrap();
    let ends = AtomicBool::new(false);
    scope(|threads| {
        threads.spawn(|| {
            let mut count = 0;
            while !ends.load(Relaxed) {
                count += 1;
                words(&memory).iter().step_by(WORDS).for_each(|word| word.store(count, Relaxed));
            }
        });
        let error = saver.save(&saves, || ((), 1)).unwrap_err();
        assert!(matches!(error, Error::Outrun { .. } | Error::WriterRan), "{error}");
        assert!(matches!(saves.last(), Err(Error::NoSave(_))));
        ends.store(true, Relaxed);
    });
    saver.save(&saves, || ((), 1)).unwrap();
    let restored = saves.last().unwrap().restore().unwrap();
    assert!(crate::fixture::contents(&restored[0]) == crate::fixture::contents(&memory));
}

#[test]
fn one_save_runs_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    let mut saver = Checkpointer::builder([&memory]).build().unwrap();
    static HOLD: AtomicBool = AtomicBool::new(true);
    static BEGUN: AtomicBool = AtomicBool::new(false);
    let save = saver
        .begin(&saves, || {
            BEGUN.store(true, SeqCst);
            while HOLD.load(SeqCst) {
                std::thread::yield_now();
            }
            ((), 4)
        })
        .unwrap();
    while !BEGUN.load(SeqCst) {
        std::thread::yield_now();
    }
    assert!(matches!(saver.begin(&saves, || ((), 5)), Err(Error::Busy)));
    assert!(matches!(saver.save(&saves, || ((), 5)), Err(Error::Busy)));
    assert!(!save.is_finished());
    HOLD.store(false, SeqCst);
    save.wait().unwrap();
    assert_eq!(saves.last().unwrap().value(), 4);
}
