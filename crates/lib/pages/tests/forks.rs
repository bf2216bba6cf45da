//! Forks during faults: the child has the plain memory, and creates its own regions.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control; changes the process")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
#![allow(clippy::single_range_in_vec_init, reason = "one range is what is expected")]
mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{PAGE, TRAPS, alone, forked, read, write};
use fieldstone_pages::{Error, Fault, Filling, Mechanism, Memory, Outcome, Tracking, Trapping, Watch};

const PAGES: usize = 64;
/// Pages that are not written after the start, so that a child can check the contents.
const UNCHANGED: usize = 8;
const FORKS: usize = 200;

fn open(fault: &Fault<'_>) -> Outcome {
    if fault.unprotect().is_err() { Outcome::Chain } else { Outcome::Resolved }
}

fn trapping(mechanism: Mechanism) -> Trapping {
    // SAFETY: the handler only makes a system call, which is async-signal-safe.
    unsafe { Trapping::with(Memory::anonymous(PAGES * PAGE).unwrap(), Watch::Writes, mechanism, open) }.unwrap()
}

/// New regions work in the child, and it may drop the old ones.
fn child(trapping_before: Trapping, tracking_before: Tracking, mechanism: Mechanism) -> bool {
    let unchanged = (0..UNCHANGED).all(|page| read(trapping_before.memory(), page * PAGE) == 100);
    assert!(unchanged, "the contents are the parent's");
    for page in 0..PAGES {
        write(trapping_before.memory(), page * PAGE, 1);
        write(tracking_before.memory(), page * PAGE, 1);
    }
    assert!(matches!(trapping_before.protect(0..PAGE), Err(Error::Forked)));
    assert!(matches!(trapping_before.unprotect(0..PAGE), Err(Error::Forked)));
    assert!(matches!(tracking_before.dirty(), Err(Error::Forked)));
    assert!(matches!(tracking_before.mark(0..PAGE), Err(Error::Forked)));
    drop((trapping_before, tracking_before));
    let new = trapping(mechanism);
    new.protect(0..PAGES * PAGE).unwrap();
    (0..PAGES).for_each(|page| write(new.memory(), page * PAGE, 2));
    let tracking = Tracking::with(Memory::anonymous(PAGES * PAGE).unwrap(), mechanism).unwrap();
    write(tracking.memory(), PAGE, 3);
    let dirty: Vec<_> = tracking.dirty().unwrap().map(Result::unwrap).collect();
    assert!(dirty.len() == 1 && dirty[0] == (PAGE..2 * PAGE) && read(new.memory(), 5 * PAGE) == 2);
    true
}

/// Threads fault continuously, and create and drop regions, while the process forks repeatedly.
fn forks_during_faults(mechanism: Mechanism) {
    let stop = AtomicBool::new(false);
    let (trapped, tracked) = (trapping(mechanism), Tracking::with(Memory::anonymous(PAGES * PAGE).unwrap(), mechanism));
    let tracked = tracked.unwrap();
    (0..UNCHANGED).for_each(|page| write(trapped.memory(), page * PAGE, 100));
    trapped.protect(0..UNCHANGED * PAGE).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                trapped.protect(UNCHANGED * PAGE..PAGES * PAGE).unwrap();
                (UNCHANGED..PAGES).for_each(|page| write(trapped.memory(), page * PAGE, 7));
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                (0..PAGES).for_each(|page| write(tracked.memory(), page * PAGE, 7));
                assert!(tracked.dirty().unwrap().all(|range| range.is_ok()));
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let passing = trapping(mechanism);
                passing.protect(0..PAGE).unwrap();
                write(passing.memory(), 0, 1);
            }
        });
        for fork in 0..FORKS {
            let status = forked(|| {
                // SAFETY: the child's copies, which only the child uses; the parent's are in
                // another process.
                let (trapped, tracked) =
                    unsafe { (std::ptr::read(&raw const trapped), std::ptr::read(&raw const tracked)) };
                child(trapped, tracked, mechanism)
            });
            if status != 0 {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0, "{mechanism}, fork {fork}: status as of waitpid");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!((0..UNCHANGED).all(|page| read(trapped.memory(), page * PAGE) == 100), "children write their own copies");
}

#[test]
fn userfaultfd_thread() {
    alone("userfaultfd_thread", || forks_during_faults(Mechanism::UserfaultThread));
}

#[test]
fn userfaultfd_signal() {
    alone("userfaultfd_signal", || forks_during_faults(Mechanism::UserfaultSignal));
}

#[test]
fn mprotect_thread() {
    alone("mprotect_thread", || forks_during_faults(Mechanism::ProtectThread));
}

#[test]
fn mprotect_signal() {
    alone("mprotect_signal", || forks_during_faults(Mechanism::ProtectSignal));
}

#[test]
fn a_child_has_filled_pages_and_zeros_elsewhere() {
    alone("a_child_has_filled_pages_and_zeros_elsewhere", || {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        for mechanism in TRAPS {
            static CONTENTS: [u8; PAGE] = [55; PAGE];
            let memory = Memory::shared(4 * PAGE).unwrap();
            // SAFETY: the handler only copies a page, which is async-signal-safe.
            let filling = unsafe {
                Filling::with(memory, false, mechanism, |fault| {
                    CALLS.fetch_add(1, Ordering::Relaxed);
                    if fault.fill(&CONTENTS).is_err() { Outcome::Chain } else { Outcome::Resolved }
                })
            };
            let filling = filling.unwrap();
            assert_eq!(read(filling.memory(), PAGE), 55);
            let before = CALLS.load(Ordering::Relaxed);
            let status = forked(|| {
                assert_eq!((read(filling.memory(), PAGE), read(filling.memory(), 2 * PAGE)), (55, 0));
                assert!(matches!(filling.fill(0, &CONTENTS), Err(Error::Forked)));
                assert!(matches!(filling.evict(0..PAGE), Err(Error::Forked)));
                CALLS.load(Ordering::Relaxed) == before
            });
            assert_eq!(status, 0, "{mechanism}");
        }
    });
}

#[test]
fn tracking_continues_after_a_fork() {
    alone("tracking_continues_after_a_fork", || {
        for mechanism in TRAPS.into_iter().chain([Mechanism::Scan]) {
            let tracking = Tracking::with(Memory::anonymous(4 * PAGE).unwrap(), mechanism).unwrap();
            write(tracking.memory(), 0, 1);
            for round in 0..20 {
                let status = forked(|| {
                    write(tracking.memory(), 3 * PAGE, 1);
                    let own = Tracking::with(Memory::anonymous(PAGE).unwrap(), mechanism).unwrap();
                    write(own.memory(), 0, 1);
                    own.dirty().unwrap().count() == 1
                });
                assert_eq!(status, 0, "{mechanism}, {round}");
                write(tracking.memory(), PAGE, round);
                let dirty: Vec<_> = tracking.dirty().unwrap().map(Result::unwrap).collect();
                let expected = if round == 0 { 0..2 * PAGE } else { PAGE..2 * PAGE };
                assert_eq!(dirty, vec![expected], "{mechanism}, {round}");
            }
        }
    });
}

#[test]
fn a_child_cannot_access_memory_that_is_closed_to_children() {
    alone("a_child_cannot_access_memory_that_is_closed_to_children", || {
        common::no_core_file();
        for mechanism in TRAPS {
            // SAFETY: the handler copies from a static, which is async-signal-safe.
            let filling =
                unsafe { Filling::with(Memory::shared(PAGES * PAGE).unwrap(), false, mechanism, ones) }.unwrap();
            filling.close_in_child();
            assert_eq!(read(filling.memory(), 0), 1);
            for page in [0, 1] {
                let status = forked(|| read(filling.memory(), page * PAGE) < 2);
                assert_eq!(common::ended_by(status), Some(libc::SIGSEGV), "{mechanism}: page {page}");
            }
            assert_eq!(forked(|| true), 0);
            assert_eq!(read(filling.memory(), PAGE), 1);
        }
    });
}

/// Fills from a static, not from the stack.
fn ones(fault: &Fault<'_>) -> Outcome {
    static ONES: [u8; PAGE] = [1; PAGE];
    if fault.fill(&ONES).is_err() { Outcome::Chain } else { Outcome::Resolved }
}
