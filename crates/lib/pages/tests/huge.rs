//! Huge pages: those of the hugetlb pool are trapped, tracked and filled whole; transparent ones
//! are split, and no write is missed.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control; changes the process")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
mod common;

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{PAGE, TRAPS, read, write};
use fieldstone_pages::{Error, Fault, Filling, Mechanism, Memory, Outcome, Tracking, Trapping, Watch};

const HUGE: usize = 2 << 20;
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// The hugetlb pool with a number of free pages, for one test of this machine at a time; restored
/// on drop.
struct HugetlbReserve {
    before: u64,
    _alone: File,
}

impl HugetlbReserve {
    /// `None` after a SKIP line if the pool cannot be set.
    fn with_free(pages: u64) -> Option<Self> {
        let path = std::env::temp_dir().join("fieldstone-hugetlb.lock");
        let file = File::open(&path).or_else(|_| File::options().create(true).append(true).open(&path)).unwrap();
        file.lock().unwrap();
        let (Some(total), Some(free)) = (number("nr_hugepages"), number("free_hugepages")) else {
            println!("SKIP no hugetlb pool");
            return None;
        };
        let promised = number("resv_hugepages").unwrap_or(0);
        let this = Self { before: total - number("surplus_hugepages").unwrap_or(0), _alone: file };
        if fs::write(format!("{POOL}/nr_hugepages"), (total - free + promised + pages).to_string()).is_err() {
            println!("SKIP not root: the hugetlb pool cannot be changed");
            return None;
        }
        if number("free_hugepages") != Some(promised + pages) {
            println!("SKIP not enough memory for a hugetlb pool of {pages} pages");
            return None;
        }
        Some(this)
    }
}

impl Drop for HugetlbReserve {
    fn drop(&mut self) {
        let _ = fs::write(format!("{POOL}/nr_hugepages"), self.before.to_string());
    }
}

fn number(name: &str) -> Option<u64> {
    fs::read_to_string(format!("{POOL}/{name}")).ok()?.trim().parse().ok()
}

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
