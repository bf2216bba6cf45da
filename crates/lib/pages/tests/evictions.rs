//! Evicted pages are missing again, whether or not writes to them were recorded.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
mod common;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{PAGE, alone, read, write};
use fieldstone_pages::{Fault, Filling, Mechanism, Memory, Outcome};

const PAGES: usize = 8;

/// Fills from a static, not from the stack.
fn nines(fault: &Fault<'_>) -> Outcome {
    static NINES: [u8; PAGE] = [9; PAGE];
    if fault.fill(&NINES).is_err() { Outcome::Chain } else { Outcome::Resolved }
}

fn filling(tracked: bool, mechanism: Mechanism) -> Filling {
    // SAFETY: the handler copies from a static, which is async-signal-safe.
    unsafe { Filling::with(Memory::shared(PAGES * PAGE).unwrap(), tracked, mechanism, nines) }.unwrap()
}

/// Each mechanism, and whether it tracks.
const ALL: [(bool, Mechanism); 6] = [
    (false, Mechanism::UserfaultThread),
    (false, Mechanism::UserfaultSignal),
    (false, Mechanism::ProtectThread),
    (false, Mechanism::ProtectSignal),
    (true, Mechanism::ProtectThread),
    (true, Mechanism::ProtectSignal),
];

#[test]
fn readers_never_read_an_unfilled_page() {
    for (tracked, mechanism) in ALL {
        let filling = filling(tracked, mechanism);
        let (done, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for reader in 0..2 {
                let (filling, done, reads) = (&filling, &done, &reads);
                scope.spawn(move || {
                    for at in (reader..).map(|at| at % PAGES * PAGE) {
                        let found = read(filling.memory(), at);
                        assert_eq!(found, 9, "{mechanism}, tracked {tracked}: page {at:#x}");
                        reads.fetch_add(1, Ordering::Relaxed);
                        if done.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(300) && !done.load(Ordering::Relaxed) {
                filling.evict(0..PAGES * PAGE).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(reads.into_inner() > 2, "{mechanism}");
    }
}

/// A concurrent write may be lost, but not the page.
#[test]
fn a_concurrent_writer_finds_filled_pages() {
    for mechanism in [Mechanism::ProtectThread, Mechanism::ProtectSignal] {
        let (filling, done) = (filling(true, mechanism), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    (0..PAGES).for_each(|page| write(filling.memory(), page * PAGE + 1, 1));
                }
            });
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(500) {
                filling.evict(0..PAGES * PAGE).unwrap();
                assert!(filling.dirty().unwrap().all(|range| range.is_ok()));
            }
            done.store(true, Ordering::Relaxed);
        });
        let firsts: Vec<_> = (0..PAGES).map(|page| read(filling.memory(), page * PAGE)).collect();
        assert_eq!(firsts, [9; PAGES], "{mechanism}");
    }
}

static WATCHED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static ALARMS: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_alarm(_signal: i32) {
    let at = ALARMS.fetch_add(1, Ordering::Relaxed) % PAGES * PAGE;
    // SAFETY: the address is inside the memory, which the interrupted thread owns.
    let found = unsafe { WATCHED.load(Ordering::Relaxed).add(at).read_volatile() };
    WRONG.fetch_add(usize::from(found != 9), Ordering::Relaxed);
}

/// The interrupted thread is the one that fills and evicts: another thread's handler would not find
/// its own locks held, and might outlive the memory.
#[test]
fn a_signal_handler_accesses_pages_while_they_are_filled_and_evicted() {
    alone("a_signal_handler_accesses_pages_while_they_are_filled_and_evicted", || {
        // SAFETY: the handler only reads and counts, which is async-signal-safe.
        unsafe { libc::signal(libc::SIGALRM, on_alarm as *const () as usize) };
        for (tracked, mechanism) in ALL {
            let filling = filling(tracked, mechanism);
            WATCHED.store(filling.memory().as_ptr(), Ordering::Relaxed);
            let before = ALARMS.load(Ordering::Relaxed);
            // SAFETY: pthread_self takes no argument and cannot fail.
            let (this, done) = (unsafe { libc::pthread_self() }, AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        // SAFETY: the thread waits for this one, so it exists.
                        unsafe { libc::pthread_kill(this, libc::SIGALRM) };
                        std::thread::sleep(Duration::from_micros(200));
                    }
                });
                while ALARMS.load(Ordering::Relaxed) < before + 500 {
                    (0..PAGES).for_each(|page| filling.fill(page * PAGE, &[9; PAGE]).unwrap());
                    filling.evict(0..PAGES * PAGE).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
            assert_eq!(WRONG.load(Ordering::Relaxed), 0, "{mechanism}, tracked {tracked}");
        }
    });
}

#[test]
fn a_page_is_filled_from_another_missing_page() {
    for (tracked, mechanism) in ALL {
        let filling = filling(tracked, mechanism);
        // SAFETY: a page of the memory, which is filled at the read.
        let other = unsafe { std::slice::from_raw_parts(filling.memory().as_ptr().add(3 * PAGE), PAGE) };
        write(filling.memory(), 3 * PAGE + 1, 4);
        filling.evict(0..PAGE).unwrap();
        filling.fill(0, other).unwrap();
        let found = [0, 1].map(|at| read(filling.memory(), at));
        assert_eq!(found, [9, 4], "{mechanism}: a copy, not the handler's contents");
        filling.evict(0..PAGES * PAGE).unwrap();
        filling.fill(0, other).unwrap();
        assert_eq!(
            (read(filling.memory(), 1), read(filling.memory(), 3 * PAGE)),
            (9, 9),
            "{mechanism}: the source was filled first"
        );
    }
}

#[test]
fn a_written_page_that_is_evicted_is_clean_and_filled_again() {
    let fill = |fault: &Fault<'_>| if fault.fill(&[9; PAGE]).is_err() { Outcome::Chain } else { Outcome::Resolved };
    for mechanism in [Mechanism::Scan, Mechanism::ProtectThread] {
        // SAFETY: the mechanism runs the handler in a thread, where any code is permitted.
        let filling = unsafe { Filling::with(Memory::shared(4 * PAGE).unwrap(), true, mechanism, fill) }.unwrap();
        for page in [0, 1, 3] {
            write(filling.memory(), page * PAGE, 1);
        }
        filling.evict(PAGE..3 * PAGE).unwrap();
        let dirty: Vec<_> = filling.dirty().unwrap().flat_map(|range| range.unwrap().step_by(PAGE)).collect();
        assert_eq!(dirty, [0, 3 * PAGE], "{mechanism}: evicted pages are not dirty");
        assert_eq!((read(filling.memory(), PAGE), read(filling.memory(), 0)), (9, 1), "{mechanism}: filled again");
        write(filling.memory(), PAGE, 2);
        assert_eq!(filling.dirty().unwrap().count(), 1, "{mechanism}: recorded again");
    }
}

/// Fills a page, and evicts the one behind it.
fn nines_and_eviction(fault: &Fault<'_>) -> Outcome {
    let next = fault.page().end % (PAGES * PAGE);
    if fault.evict_others(next..next + PAGE).is_err() {
        return Outcome::Chain;
    }
    nines(fault)
}

#[test]
fn a_handler_evicts_other_pages_than_its_own() {
    for (tracked, mechanism) in ALL {
        // SAFETY: the handler calls madvise(2) and copies from a static, which is async-signal-safe.
        let filling =
            unsafe { Filling::with(Memory::shared(PAGES * PAGE).unwrap(), tracked, mechanism, nines_and_eviction) };
        let filling = filling.unwrap();
        for page in [3, 4, 2, 3] {
            assert_eq!(read(filling.memory(), page * PAGE), 9, "{mechanism}, tracked {tracked}: page {page}");
        }
        // The last fill, of page 3, has evicted page 4.
        filling.fill(4 * PAGE, &[7; PAGE]).unwrap();
        assert_eq!([3, 4].map(|page| read(filling.memory(), page * PAGE)), [9, 7], "{mechanism}, tracked {tracked}");
    }
}
