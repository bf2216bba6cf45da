//! Advice, and bounds that change while threads use the memory.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use fieldstone_paging::Advice::{Cold, Drop, Soon};
use fieldstone_paging::{Lz4, Paged};

use crate::fixture::{Kind, MIB, PAGE, WORDS, build, check, fill, passes_alone};

fn memory() -> Option<Paged> {
    build(Paged::builder(4 * MIB).resident(2 * MIB).store(Lz4::limit(4 * MIB)))
}

#[test]
fn cold_pages_leave_memory_and_soon_brings_them_back() {
    let Some(memory) = memory() else { return };
    let words = memory.as_slice::<AtomicU64>();
    words[..128 * WORDS].iter().enumerate().for_each(|(index, word)| word.store(index as u64 / 9 + 1, Relaxed));
    assert_eq!(memory.resident(0..128 * PAGE), Ok(128));
    memory.advise(10 * PAGE + 1..100 * PAGE - 1, Cold).unwrap();
    assert_eq!(memory.resident(0..128 * PAGE), Ok(38));
    assert_eq!(memory.resident(10 * PAGE..100 * PAGE), Ok(0), "pages that the range covers in part left, too");
    let faults = memory.stats().faults;
    memory.advise(20 * PAGE..100 * PAGE, Soon).unwrap();
    assert_eq!(memory.resident(10 * PAGE..100 * PAGE), Ok(80));
    let value = |page: usize| words[page * WORDS].load(Relaxed);
    (20..100).for_each(|page| assert_eq!(value(page), (page * WORDS) as u64 / 9 + 1));
    assert_eq!(memory.stats().faults, faults, "their accesses are no faults");
    memory.advise(200 * PAGE..300 * PAGE, Soon).unwrap();
    assert_eq!(memory.resident(200 * PAGE..300 * PAGE), Ok(0), "pages without contents stay missing");
}

#[test]
fn dropped_pages_read_as_zeros_and_leave_the_stores() {
    let Some(memory) = memory() else { return };
    fill(&memory, Kind::Text);
    assert!(memory.stats().stores[0].bytes > 0, "{}", memory.stats());
    memory.advise(0..memory.len(), Drop).unwrap();
    let stats = memory.stats();
    assert_eq!((memory.resident(0..memory.len()), stats.resident), (Ok(0), 0), "{stats}");
    assert_eq!(stats.stores[0].bytes, 0, "{stats}");
    check(&memory, Kind::Zeros);
}

#[test]
fn pages_are_dropped_evicted_and_written_by_several_threads() {
    let Some(memory) = memory() else { return };
    let words = memory.as_slice::<AtomicU64>();
    // Each thread has a range of its own, so it knows its contents.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let memory = &memory;
            scope.spawn(move || {
                let range = thread * 256 * PAGE..(thread + 1) * 256 * PAGE;
                for round in 1..40_u64 {
                    let pages = || range.clone().step_by(PAGE);
                    pages().for_each(|at| words[at / 8].store(round * 1000 + (at / PAGE) as u64, Relaxed));
                    memory.advise(range.clone(), if round % 2 == 0 { Cold } else { Soon }).unwrap();
                    pages().for_each(|at| assert_eq!(words[at / 8].load(Relaxed), round * 1000 + (at / PAGE) as u64));
                    memory.advise(range.clone(), Drop).unwrap();
                    pages().for_each(|at| assert_eq!(words[at / 8].load(Relaxed), 0, "round {round}, page {at:x}"));
                }
            });
        }
    });
    assert_eq!(memory.stats().lost, 0);
}

#[test]
fn the_bound_changes_while_the_memory_is_used() {
    let Some(memory) = memory() else { return };
    fill(&memory, Kind::Text);
    assert!(memory.stats().resident > MIB as u64);
    memory.set_resident(512 << 10).unwrap();
    assert!(memory.stats().resident <= 512 << 10, "{}", memory.stats());
    check(&memory, Kind::Text);
    assert!(memory.stats().resident <= 512 << 10, "{}", memory.stats());
    memory.set_resident(8 * MIB).unwrap();
    check(&memory, Kind::Text);
    assert_eq!(memory.resident(0..memory.len()), Ok(4 * MIB / PAGE), "{}", memory.stats());
    check(&memory, Kind::Text);
}

/// The address and the number of words of the memory that the handler of a signal accesses.
static OF_HANDLER: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn access(_: libc::c_int) {
    let [address, count] = OF_HANDLER.each_ref().map(|place| place.load(Relaxed));
    let index = HANDLED.fetch_add(1, Relaxed) * 31 * WORDS % count;
    let word = std::ptr::with_exposed_provenance::<AtomicU64>(address).wrapping_add(index);
    // SAFETY: the memory lives until the signals have ended.
    unsafe { &*word }.fetch_add(1, Relaxed);
}

#[test]
#[ignore = "runs in a process of its own"]
fn interrupted() {
    let Some(memory) = memory() else { return };
    let words = memory.as_slice::<AtomicU64>();
    OF_HANDLER[0].store(words.as_ptr().expose_provenance(), Relaxed);
    OF_HANDLER[1].store(words.len(), Relaxed);
    // SAFETY: the handler is a function that only uses atomics.
    unsafe { libc::signal(libc::SIGUSR1, access as *const () as libc::sighandler_t) };
    // SAFETY: the call has no argument.
    let thread = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while HANDLED.load(Relaxed) < 300 {
                // SAFETY: the thread waits for this one at the end of the scope.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        });
        while HANDLED.load(Relaxed) < 300 {
            memory.advise(0..memory.len(), Cold).unwrap();
            memory.advise(0..memory.len(), Soon).unwrap();
        }
    });
    let sum: u64 = words.iter().map(|word| word.load(Relaxed)).sum();
    assert_eq!(sum, HANDLED.load(Relaxed) as u64);
}

#[test]
fn a_signal_handler_accesses_the_memory_during_advice() {
    passes_alone("advice::interrupted");
}
