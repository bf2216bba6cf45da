//! Huge pages: those of the hugetlb pool are trapped, tracked and filled whole; transparent ones
//! are split, and no write is missed.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control; changes the process")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
mod common;
#[path = "common/hugetlb_reserve.rs"]
mod hugetlb_reserve;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{PAGE, TRAPS, read, write};
use fieldstone_pages::{Error, Fault, Filling, Mechanism, Memory, Outcome, Tracking, Trapping, Watch};
use hugetlb_reserve::HugetlbReserve;

const HUGE: usize = 2 << 20;
fn open(fault: &Fault<'_>) -> Outcome {
    if fault.unprotect().is_err() { Outcome::Chain } else { Outcome::Resolved }
}

fn dirty(tracking: &Tracking) -> Vec<usize> {
    let pages = tracking.dirty().unwrap().flat_map(|range| range.unwrap().step_by(tracking.memory().page_bytes()));
    pages.collect()
}

fn guards_are_set_and_removed(memory: &Memory) {
    memory.guard(HUGE..2 * HUGE).unwrap();
    write(memory, 0, 1);
    memory.unguard(0..4 * HUGE).unwrap();
    write(memory, HUGE, 1);
    assert_eq!((read(memory, 0), read(memory, HUGE + 1)), (1, 0));
}

#[test]
fn pages_of_the_pool_are_trapped_tracked_and_filled_whole() {
    let Some(_pool) = HugetlbReserve::with_free(4) else { return };
    let memory = || Memory::hugetlb(4 * HUGE).unwrap();
    assert!(matches!(memory().alias(), Err(Error::Unsupported { .. })));
    guards_are_set_and_removed(&memory());
    for mechanism in TRAPS {
        let faults = Arc::new(AtomicUsize::new(0));
        let counted = faults.clone();
        // SAFETY: the handler only counts and makes a system call, which is async-signal-safe.
        let trapping = unsafe {
            Trapping::with(memory(), Watch::Writes, mechanism, move |fault| {
                counted.fetch_add(1, Ordering::Relaxed);
                open(fault)
            })
        };
        let trapping = trapping.unwrap();
        assert!(matches!(trapping.protect(0..PAGE), Err(Error::Range { .. })), "half a page");
        trapping.protect(HUGE..3 * HUGE).unwrap();
        for at in [5, HUGE + 5, HUGE + 70_000, 2 * HUGE, 3 * HUGE] {
            write(trapping.memory(), at, 1);
        }
        assert_eq!(faults.load(Ordering::Relaxed), 2, "{mechanism}: one per huge page");
    }
    for mechanism in TRAPS.into_iter().chain([Mechanism::Scan]) {
        let tracking = Tracking::with(memory(), mechanism).unwrap();
        assert_eq!(dirty(&tracking), [], "{mechanism}");
        write(tracking.memory(), HUGE + 12345, 1);
        write(tracking.memory(), 3 * HUGE, 1);
        assert_eq!(dirty(&tracking), [HUGE, 3 * HUGE], "{mechanism}");
        write(tracking.memory(), HUGE, 2);
        assert_eq!((dirty(&tracking), dirty(&tracking)), (vec![HUGE], vec![]), "{mechanism}");
    }
    for mechanism in [Mechanism::UserfaultThread, Mechanism::UserfaultSignal] {
        static CONTENTS: [u8; HUGE] = [8; HUGE];
        let fill = |fault: &Fault<'_>| {
            let filled = if fault.offset() < HUGE { fault.fill(&CONTENTS) } else { fault.zero() };
            if filled.is_err() { Outcome::Chain } else { Outcome::Resolved }
        };
        // SAFETY: the handler copies from a static, which is async-signal-safe.
        let filling = unsafe { Filling::with(memory(), false, mechanism, fill) }.unwrap();
        assert_eq!((read(filling.memory(), HUGE - 1), read(filling.memory(), HUGE)), (8, 0), "{mechanism}");
        filling.evict(0..2 * HUGE).unwrap();
        assert_eq!((read(filling.memory(), 1), read(filling.memory(), 2 * HUGE - 1)), (8, 0), "{mechanism}");
    }
}

#[test]
fn no_write_is_missed_on_transparent_huge_pages() {
    const PAGES: usize = 4 * HUGE / PAGE;
    for mechanism in TRAPS.into_iter().chain([Mechanism::Scan]) {
        for before in [true, false] {
            let memory = Memory::anonymous(4 * HUGE).unwrap();
            memory.advise_huge();
            if before {
                memory.populate().unwrap();
            }
            let tracking = Tracking::with(memory, mechanism).unwrap();
            assert_eq!(dirty(&tracking), [], "{mechanism}");
            for page in [0, 1, PAGES / 2 + 3, PAGES - 1] {
                for _ in 0..2 {
                    write(tracking.memory(), page * PAGE + 9, 1);
                    let found = dirty(&tracking);
                    assert!(
                        found.contains(&(page * PAGE)),
                        "{mechanism}, populated {before}: {page} is not in {found:?}"
                    );
                    assert_eq!(dirty(&tracking), [], "{mechanism}: clean again");
                }
            }
        }
    }
}
