//! No write is missed in a real run: four threads write while a saver copies the ranges of `dirty`.
//! At each barrier, after one more save, the copy must equal the memory word for word.
//!
//! Meanwhile the process forks. After each era the memory is unmapped and tracked again, sometimes
//! at another address. Each mechanism runs three seconds, or `FIELDSTONE_STRESS_SECONDS`. The test
//! must detect savers that are broken on purpose.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control; forks")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
#![allow(clippy::single_range_in_vec_init, reason = "one range is what is expected")]
mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{PAGE, TestRandom, alone, forked, write};
use fieldstone_pages::{Error, Mechanism, Memory, Tracking};

const PAGES: usize = 300;
const WORDS: usize = PAGES * PAGE / 8;
const WRITERS: usize = 4;
/// Rounds of an era; each ends at a barrier.
const ROUNDS: usize = 6;
const WRITES: usize = 4000;

/// The saver's order of operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saver {
    /// Reads a range after `dirty` has returned it.
    Correct,
    /// Reads dirty ranges before the call that makes them clean.
    ReadsFirst,
    /// Takes one range and leaks the iterator, so that the other ranges stay clean.
    LeaksTheIterator,
}

/// What happened during a run.
#[derive(Debug, Default)]
struct StressCounts {
    saved: AtomicUsize,
    rounds: AtomicUsize,
    forks: AtomicUsize,
    eras: usize,
    moved: usize,
}

fn copy(from: &[AtomicU64], to: &[AtomicU64], bytes: std::ops::Range<usize>) {
    for word in bytes.start / 8..bytes.end / 8 {
        to[word].store(from[word].load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn save(tracking: &Tracking, replica: &[AtomicU64], saver: Saver, counts: &StressCounts) {
    let memory = tracking.memory().words();
    if saver == Saver::ReadsFirst {
        for range in tracking.peek().unwrap() {
            copy(memory, replica, range.unwrap());
        }
    }
    let mut look = tracking.dirty().unwrap();
    while let Some(range) = look.next() {
        let range = range.unwrap();
        counts.saved.fetch_add(range.len() / PAGE, Ordering::Relaxed);
        if saver != Saver::ReadsFirst {
            copy(memory, replica, range);
        }
        if saver == Saver::LeaksTheIterator {
            std::mem::forget(look);
            return;
        }
    }
}

/// Writes unique numbers, each to a word of this writer, and to the model.
fn writer(number: usize, sequence: &AtomicU64, memory: &[AtomicU64], model: &[AtomicU64], barrier: &Barrier) {
    let mut random = TestRandom(0x9E37_79B9_7F4A_7C15 + number as u64);
    for _ in 0..ROUNDS {
        for write in 0..WRITES {
            // Most writes go to a few pages, so that they are written and saved repeatedly.
            let span = if write % 4 == 0 { WORDS } else { 8 * PAGE / 8 };
            let word = random.below(span) / WRITERS * WRITERS + number;
            let value = sequence.fetch_add(1, Ordering::Relaxed);
            memory[word].store(value, Ordering::Relaxed);
            model[word].store(value, Ordering::Relaxed);
        }
        barrier.wait();
        barrier.wait();
    }
}

/// The child has a copy, gets errors from the parent's tracking, and can track on its own.
fn child(tracking: &Tracking, mechanism: Mechanism) -> bool {
    tracking.memory().words().iter().step_by(PAGE / 8).for_each(|word| word.store(0, Ordering::Relaxed));
    assert!(matches!(tracking.dirty(), Err(Error::Forked)) && matches!(tracking.mark(0..PAGE), Err(Error::Forked)));
    let own = Tracking::with(Memory::anonymous(4 * PAGE).unwrap(), mechanism).unwrap();
    write(own.memory(), 2 * PAGE, 1);
    let dirty: Vec<_> = own.dirty().unwrap().map(Result::unwrap).collect();
    dirty == vec![2 * PAGE..3 * PAGE]
}

/// One era: rounds of writes and saves, with a fork in the middle. Returns the first difference.
fn era(tracking: &Tracking, model: &[AtomicU64], saver: Saver, counts: &StressCounts) -> Result<(), String> {
    static SEQUENCE: AtomicU64 = AtomicU64::new(1);
    let (memory, barrier, writing) = (tracking.memory().words(), Barrier::new(WRITERS + 1), AtomicBool::new(true));
    let replica: Vec<AtomicU64> = model.iter().map(|word| AtomicU64::new(word.load(Ordering::Relaxed))).collect();
    let mechanism = tracking.mechanism();
    std::thread::scope(|scope| {
        for number in 0..WRITERS {
            let barrier = &barrier;
            scope.spawn(move || writer(number, &SEQUENCE, memory, model, barrier));
        }
        let forker = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(2));
            let status = forked(|| child(tracking, mechanism));
            counts.forks.fetch_add(1, Ordering::Relaxed);
            status
        });
        let mut result = Ok(());
        for _ in 0..ROUNDS {
            writing.store(true, Ordering::Relaxed);
            let arrived = scope.spawn(|| {
                barrier.wait();
                writing.store(false, Ordering::Relaxed);
            });
            while writing.load(Ordering::Relaxed) {
                save(tracking, &replica, saver, counts);
            }
            arrived.join().unwrap();
            // A correct save: what a broken saver missed before must show.
            save(tracking, &replica, Saver::Correct, counts);
            if result.is_ok() {
                result = compare(memory, model, &replica);
            }
            counts.rounds.fetch_add(1, Ordering::Relaxed);
            barrier.wait();
        }
        let status = forker.join().unwrap();
        assert_eq!(status, 0, "{mechanism}: the forked child, as of waitpid");
        result
    })
}

fn compare(memory: &[AtomicU64], model: &[AtomicU64], replica: &[AtomicU64]) -> Result<(), String> {
    let load = |words: &[AtomicU64], at: usize| words[at].load(Ordering::Relaxed);
    for word in 0..WORDS {
        let (is, written, saved) = (load(memory, word), load(model, word), load(replica, word));
        assert_eq!(is, written, "word {word}: the memory is not what was written");
        if saved != is {
            return Err(format!("page {}: {saved} was saved, {is} is in memory", word * 8 / PAGE));
        }
    }
    Ok(())
}

fn seconds() -> Duration {
    let requested = std::env::var("FIELDSTONE_STRESS_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(requested.unwrap_or(3))
}

fn stress(mechanism: Mechanism, saver: Saver) -> Result<StressCounts, String> {
    let (start, mut counts) = (Instant::now(), StressCounts::default());
    let model: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let mut tracking =
        Tracking::with(Memory::anonymous(PAGES * PAGE).unwrap(), mechanism).map_err(|e| e.to_string())?;
    while start.elapsed() < seconds() || counts.eras < 4 {
        era(&tracking, &model, saver, &counts)?;
        counts.eras += 1;
        let before = tracking.memory().start();
        let new = if counts.eras % 2 == 0 {
            // While the old memory exists, so that the new one has another address.
            let new = Memory::anonymous(PAGES * PAGE).unwrap();
            drop(tracking);
            new
        } else {
            drop(tracking);
            Memory::anonymous(PAGES * PAGE).unwrap()
        };
        copy(&model, new.words(), 0..PAGES * PAGE);
        tracking = Tracking::with(new, mechanism).map_err(|e| e.to_string())?;
        counts.moved += usize::from(tracking.memory().start() != before);
    }
    Ok(counts)
}

fn no_write_is_missed(mechanism: Mechanism) {
    let counts = stress(mechanism, Saver::Correct).unwrap();
    println!("{mechanism}: {counts:?}");
    let forks = counts.forks.load(Ordering::Relaxed);
    assert!(forks == counts.eras && counts.moved > 0 && counts.saved.load(Ordering::Relaxed) > counts.eras * PAGES);
}

#[test]
fn pagemap_scan() {
    alone("pagemap_scan", || no_write_is_missed(Mechanism::Scan));
}

#[test]
fn userfaultfd_thread() {
    alone("userfaultfd_thread", || no_write_is_missed(Mechanism::UserfaultThread));
}

#[test]
fn userfaultfd_signal() {
    alone("userfaultfd_signal", || no_write_is_missed(Mechanism::UserfaultSignal));
}

#[test]
fn mprotect_thread() {
    alone("mprotect_thread", || no_write_is_missed(Mechanism::ProtectThread));
}

#[test]
fn mprotect_signal() {
    alone("mprotect_signal", || no_write_is_missed(Mechanism::ProtectSignal));
}

#[test]
fn broken_savers_are_detected() {
    alone("broken_savers_are_detected", || {
        for (mechanism, saver) in [
            (Mechanism::Scan, Saver::ReadsFirst),
            (Mechanism::UserfaultSignal, Saver::ReadsFirst),
            (Mechanism::ProtectSignal, Saver::ReadsFirst),
            (Mechanism::Scan, Saver::LeaksTheIterator),
        ] {
            let found = stress(mechanism, saver);
            assert!(found.as_ref().is_err_and(|difference| difference.contains("was saved")), "{mechanism}: {found:?}");
        }
    });
}
