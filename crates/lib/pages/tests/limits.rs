//! The largest numbers of guards, regions and faults.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control; changes the process")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
mod common;

use std::fs;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{PAGE, TestRandom, alone, read, write};
use fieldstone_pages::{Error, GuardMechanism, Mechanism, Memory, Outcome, Trapping, Watch};

/// Whether the kernel can write a byte there.
fn is_open(memory: &Memory, at: usize) -> bool {
    let zero = fs::File::open("/dev/zero").unwrap();
    // SAFETY: the kernel writes a byte to the memory, or fails with EFAULT.
    let got = unsafe { libc::read(zero.as_raw_fd(), memory.as_ptr().add(at).cast(), 1) };
    assert!(got == 1 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT));
    got == 1
}

#[test]
fn two_hundred_thousand_guards_work() {
    alone("two_hundred_thousand_guards_work", || {
        const GUARDS: usize = 200_000;
        let memory = Memory::anonymous(2 * GUARDS * PAGE).unwrap();
        for guard in 0..GUARDS {
            let start = 2 * guard * PAGE;
            if memory.guard(start..start + PAGE).unwrap() == GuardMechanism::Protect {
                println!("SKIP this kernel has no guard markers");
                return;
            }
        }
        let mut random = TestRandom(7);
        for page in (0..1000).map(|_| random.below(2 * GUARDS)).chain([0, 1, 2 * GUARDS - 2, 2 * GUARDS - 1]) {
            assert_eq!(is_open(&memory, page * PAGE), page % 2 == 1, "page {page}");
        }
        memory.unguard(0..2 * GUARDS * PAGE).unwrap();
        assert!(is_open(&memory, 0) && is_open(&memory, 2 * (GUARDS - 1) * PAGE));
    });
}

#[test]
fn guards_by_mprotect_end_at_the_limit_with_an_error() {
    alone("guards_by_mprotect_end_at_the_limit_with_an_error", || {
        let limit: usize = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
        if limit > 1 << 20 {
            println!("SKIP vm.max_map_count is above a million");
            return;
        }
        let memory = Memory::anonymous((2 * limit + 2) * PAGE).unwrap();
        let guard = |number: usize| {
            let start = 2 * number * PAGE;
            memory.guard_with(start..start + PAGE, GuardMechanism::Protect)
        };
        let (number, error) = (0..=limit).find_map(|number| guard(number).err().map(|error| (number, error))).unwrap();
        assert!(error.errno() == Some(libc::ENOMEM) && error.to_string().contains("vm.max_map_count"), "{error}");
        assert!(number > limit / 3, "each takes two mappings: {number} of {limit}");
        assert!(
            !is_open(&memory, 2 * (number - 1) * PAGE) && is_open(&memory, 2 * number * PAGE),
            "the other guards remain"
        );
        assert!(matches!(guard(number), Err(Error::System { .. })), "still no more");
        memory.unguard(0..memory.bytes()).unwrap();
        guard(number).unwrap();
    });
}

/// Each region faults to its own handler, also after half of them are dropped.
fn many_regions(mechanism: Mechanism) {
    const REGIONS: usize = 10_000;
    let last = Arc::new(AtomicUsize::new(usize::MAX));
    let region = |number: usize| {
        let last = last.clone();
        // SAFETY: the handler only stores a number and makes a system call, which is
        // async-signal-safe.
        let trapping = unsafe {
            Trapping::with(Memory::anonymous(PAGE).unwrap(), Watch::Writes, mechanism, move |fault| {
                last.store(number, Ordering::Relaxed);
                if fault.unprotect().is_err() { Outcome::Chain } else { Outcome::Resolved }
            })
        };
        trapping.unwrap()
    };
    let mut regions: Vec<(usize, Trapping)> = (0..REGIONS).map(|number| (number, region(number))).collect();
    let mut random = TestRandom(11);
    let touch = |regions: &[(usize, Trapping)]| {
        for (number, trapping) in regions {
            trapping.protect(0..PAGE).unwrap();
            write(trapping.memory(), 3, 9);
            assert_eq!((last.load(Ordering::Relaxed), read(trapping.memory(), 3)), (*number, 9), "{mechanism}");
        }
    };
    touch(&regions);
    while regions.len() > REGIONS / 2 {
        drop(regions.swap_remove(random.below(regions.len())));
    }
    touch(&regions);
    while !regions.is_empty() {
        drop(regions.swap_remove(random.below(regions.len())));
    }
}

#[test]
fn ten_thousand_regions_of_userfaultfd_work() {
    many_regions(Mechanism::UserfaultThread);
}

#[test]
fn ten_thousand_regions_of_mprotect_work() {
    many_regions(Mechanism::ProtectSignal);
}

/// The given number of faults by the given number of threads, each with its own pages.
fn many_faults(mechanism: Mechanism, threads: usize, faults: usize) {
    const PAGES: usize = 500;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    // SAFETY: the handler only counts and makes a system call, which is async-signal-safe.
    let trapping = unsafe {
        Trapping::with(Memory::anonymous(threads * PAGES * PAGE).unwrap(), Watch::Writes, mechanism, move |fault| {
            counted.fetch_add(1, Ordering::Relaxed);
            if fault.unprotect().is_err() { Outcome::Chain } else { Outcome::Resolved }
        })
    };
    let trapping = trapping.unwrap();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let trapping = &trapping;
            scope.spawn(move || {
                let own = thread * PAGES * PAGE..(thread + 1) * PAGES * PAGE;
                for round in 0..faults / threads / PAGES {
                    trapping.protect(own.clone()).unwrap();
                    let value = u8::try_from(round % 251).unwrap();
                    own.clone().step_by(PAGE).for_each(|at| write(trapping.memory(), at, value));
                    assert!(own.clone().step_by(PAGE).all(|at| read(trapping.memory(), at) == value));
                }
            });
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), faults, "{mechanism}");
}

#[test]
fn a_million_faults_in_signals_are_served() {
    many_faults(Mechanism::UserfaultSignal, 1, 1_000_000);
}

#[test]
fn faults_of_four_threads_are_served() {
    many_faults(Mechanism::UserfaultThread, 4, 100_000);
    many_faults(Mechanism::ProtectThread, 4, 100_000);
    many_faults(Mechanism::ProtectSignal, 4, 100_000);
}
