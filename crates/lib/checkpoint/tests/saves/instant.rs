//! A save is the memory as of one instant, while threads write.

use std::io::Read;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::thread::scope;
use std::time::{Duration, Instant};

use fieldstone_checkpoint::{Checkpointer, Directory, Error};
use fieldstone_pages::Memory;

use crate::fixture::{EndOnDrop, MIB, PAGE, WORDS, filled};

#[test]
fn two_counters_on_far_pages_are_saved_together() {
    static COUNTING: Mutex<u64> = Mutex::new(0);
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(8 * MIB);
    let (first, last) = (0, memory.words().len() - 1);
    let pair = |words: &[AtomicU64]| (words[first].load(Relaxed), words[last].load(Relaxed));
    [first, last].iter().for_each(|&at| memory.words()[at].store(0, Relaxed));
    let mut saver = Checkpointer::builder([&memory]).build().unwrap();
    let ends = AtomicBool::new(false);
    scope(|threads| {
        let _ends = EndOnDrop(&ends);
        threads.spawn(|| {
            let mut at = 12345_usize;
            while !ends.load(Relaxed) {
                let mut count = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
                *count += 1;
                memory.words()[first].store(*count, Relaxed);
                // Other pages, so that each save has something to do.
                at = at.wrapping_mul(25_214_903_917).wrapping_add(11);
                memory.words()[1 + at % (last - 2)].store(*count, Relaxed);
                memory.words()[last].store(*count, Relaxed);
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
            assert_eq!(pair(restored[0].words()), (value, value));
            assert!(value > before, "the program writes on: {value} after {before}");
            before = value;
        }
    });
}

/// Saves while a thread writes without any lock, `saves` times and until `fallbacks` of them copied pages
/// before writes; what is restored is passed to `check`.
fn save_beside(
    memory: &Memory,
    stop_limit: Duration,
    (saves, fallbacks): (usize, usize),
    write: impl Fn(u64) + Sync,
    check: impl Fn(&[AtomicU64]),
) {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    let builder = Checkpointer::builder([memory]).stop_limit(stop_limit).memory_limit(8 * MIB);
    let mut saver = builder.build().unwrap();
    let (ends, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut saved, mut fell_back) = (0, 0);
    let give_up = Instant::now() + Duration::from_secs(60);
    scope(|threads| {
        let _ends = EndOnDrop(&ends);
        threads.spawn(|| {
            for count in 1.. {
                write(count);
                written.store(count, SeqCst);
                if ends.load(Relaxed) {
                    break;
                }
            }
        });
        while saved < saves || fell_back < fallbacks {
            assert!(Instant::now() < give_up, "{fell_back} of {saved} saves copied before writes");
            saved += 1;
            // The writer runs at the instant, if it gets a processor.
            let before = written.load(SeqCst);
            let runs = || {
                let end = Instant::now() + Duration::from_millis(200);
                while written.load(SeqCst) == before && Instant::now() < end {
                    std::hint::spin_loop();
                }
                ((), 1)
            };
            let report = saver.save(&directory, runs).unwrap();
            fell_back += usize::from(report.fell_back);
            assert!(report.peak_buffer_bytes <= 8 * MIB as u64, "{report}");
            check(directory.last().unwrap().restore().unwrap()[0].words());
        }
    });
    // What is written afterwards is part of the next save.
    memory.words()[0].store(1 << 40, Relaxed);
    saver.save(&directory, || ((), 3)).unwrap();
    let restored = directory.last().unwrap().restore().unwrap();
    assert!(crate::fixture::contents(&restored[0]) == crate::fixture::contents(memory));
}

#[test]
fn a_writer_that_does_not_wait_is_saved_as_of_one_instant() {
    let memory = filled(4 * MIB);
    let far = 600 * WORDS;
    [0, far].iter().for_each(|&at| memory.words()[at].store(0, Relaxed));
    let write = |count| {
        memory.words()[0].store(count, Relaxed);
        memory.words()[far].store(count, Relaxed);
    };
    save_beside(&memory, Duration::from_millis(5), (40, 1), write, |words| {
        let (first, second) = (words[0].load(Relaxed), words[far].load(Relaxed));
        assert!(first == second || first == second + 1, "{first} and {second}");
    });
}

#[test]
fn a_program_that_writes_too_fast_is_saved_as_of_one_instant() {
    let memory = filled(32 * MIB);
    memory.words().iter().step_by(WORDS).for_each(|word| word.store(0, Relaxed));
    let write = |count| memory.words().iter().step_by(WORDS).for_each(|word| word.store(count, Relaxed));
    save_beside(&memory, Duration::from_micros(1), (5, 5), write, |words| {
        let counts: Vec<_> = words.iter().step_by(WORDS).map(|word| word.load(Relaxed)).collect();
        // The pages before the writer's place have the new number, all others the old one.
        assert!(counts.is_sorted_by(|before, after| before >= after), "{counts:?}");
        assert!(counts[0] - counts[counts.len() - 1] <= 1);
    });
}

#[test]
fn system_calls_into_memory_that_is_being_saved_succeed() {
    let memory = filled(16 * MIB);
    let pages = memory.bytes() / PAGE;
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    let start = memory.start();
    let write = |count: u64| {
        let page = usize::try_from(count).unwrap() * 7919 % pages;
        // SAFETY: the page is inside the memory; its words are accessed as atomics, or by the kernel here.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(start + page * PAGE), PAGE)
        };
        (&zeros).read_exact(bytes).unwrap();
        memory.words()[0].store(count, Relaxed);
    };
    save_beside(&memory, Duration::from_micros(1), (10, 1), write, |_| ());
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

#[test]
fn the_safe_point_holds_until_the_rest_is_copied() {
    /// Writes when the instant is over.
    struct Held<'a>(&'a AtomicU64);
    impl Drop for Held<'_> {
        fn drop(&mut self) {
            self.0.store(2, Relaxed);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    let mut saver = Checkpointer::builder([&memory]).build().unwrap();
    saver.save(&saves, || ((), 0)).unwrap();
    let word = &memory.words()[100 * WORDS];
    for _ in 0..20 {
        let report = saver
            .save(&saves, || {
                word.store(1, Relaxed);
                (Held(word), 0)
            })
            .unwrap();
        assert!(!report.fell_back);
        let restored = saves.last().unwrap().restore().unwrap();
        assert_eq!(restored[0].words()[100 * WORDS].load(Relaxed), 1);
    }
}
