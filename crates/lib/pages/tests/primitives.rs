//! Each primitive by each mechanism of this machine, on each supported kind of memory.

#![cfg(not(loom))]
#![allow(unsafe_code, reason = "touches memory under control")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
#![allow(clippy::cast_possible_truncation, reason = "numbers of few pages")]
#![allow(clippy::single_range_in_vec_init, reason = "one range is what is expected")]

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use fieldstone_pages::{
    Access, Error, Fault, Filling, GuardMechanism, Mechanism, Memory, Outcome, Tracking, Trapping, Watch,
};

const PAGE: usize = 4096;
const TRAPS: [Mechanism; 4] =
    [Mechanism::UserfaultThread, Mechanism::UserfaultSignal, Mechanism::ProtectThread, Mechanism::ProtectSignal];

fn write(memory: &Memory, at: usize, value: u8) {
    assert!(at < memory.bytes());
    // SAFETY: the assertion keeps the address inside the memory.
    unsafe { memory.as_ptr().add(at).write_volatile(value) };
}

fn read(memory: &Memory, at: usize) -> u8 {
    assert!(at < memory.bytes());
    // SAFETY: the assertion keeps the address inside the memory.
    unsafe { memory.as_ptr().add(at).read_volatile() }
}

/// A file whose pages begin with their number plus 1.
fn numbered(pages: usize) -> File {
    let file = tempfile::tempfile().unwrap();
    let contents: Vec<u8> =
        (0..pages * PAGE).map(|at| if at % PAGE == 0 { (at / PAGE) as u8 + 1 } else { 0 }).collect();
    std::io::Write::write_all(&mut &file, &contents).unwrap();
    file
}

fn kinds() -> Vec<(&'static str, Memory)> {
    vec![
        ("anonymous", Memory::anonymous(8 * PAGE).unwrap()),
        ("shared", Memory::shared(8 * PAGE).unwrap()),
        ("file", Memory::file(&numbered(8), 0, 8 * PAGE).unwrap()),
        ("private file", Memory::file_private(&numbered(8), 0, 8 * PAGE).unwrap()),
    ]
}

#[test]
fn a_protected_page_calls_the_handler_once_and_the_write_succeeds() {
    let mut tried = 0;
    for mechanism in TRAPS {
        for (kind, memory) in kinds() {
            let calls = Arc::new([const { AtomicUsize::new(0) }; 8]);
            let seen = calls.clone();
            let handler = move |fault: &Fault<'_>| {
                assert!(fault.access() == Access::Write && fault.address() % PAGE == 5 && fault.thread() != 0);
                seen[fault.offset() / PAGE].fetch_add(1, Ordering::Relaxed);
                fault.unprotect().unwrap();
                Outcome::Resolved
            };
            // SAFETY: the handler only counts and makes a system call, which is async-signal-safe.
            let trapping = match unsafe { Trapping::with(memory, Watch::Writes, mechanism, handler) } {
                Ok(trapping) => trapping,
                // userfaultfd supports few file systems.
                Err(Error::System { .. }) if kind.contains("file") => continue,
                Err(error) => panic!("{mechanism}, {kind}: {error}"),
            };
            tried += 1;
            let memory = trapping.memory();
            write(memory, 5, 1);
            trapping.protect(PAGE..6 * PAGE).unwrap();
            (0..8).for_each(|page| write(memory, page * PAGE + 5, 10 + page as u8));
            (0..8).for_each(|page| write(memory, page * PAGE + 5, 20 + page as u8));
            trapping.protect(2 * PAGE..4 * PAGE).unwrap();
            trapping.unprotect(3 * PAGE..4 * PAGE).unwrap();
            (0..8).for_each(|page| write(memory, page * PAGE + 5, 30 + page as u8));
            let counts: Vec<_> = calls.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            assert_eq!(counts, [0, 1, 2, 1, 1, 1, 0, 0], "{mechanism}, {kind}");
            assert!((0..8).all(|page| read(memory, page * PAGE + 5) == 30 + page as u8), "{mechanism}, {kind}");
        }
    }
    assert!(tried >= 12, "mprotect supports all kinds, userfaultfd memory: {tried}");
}

#[test]
fn reads_trap_where_accesses_are_watched() {
    for mechanism in [Mechanism::ProtectThread, Mechanism::ProtectSignal] {
        for (kind, memory) in kinds() {
            let accesses = Arc::new([const { AtomicUsize::new(0) }; 2]);
            let seen = accesses.clone();
            // SAFETY: the handler only counts and makes a system call, which is async-signal-safe.
            let trapping = unsafe {
                Trapping::with(memory, Watch::Accesses, mechanism, move |fault| {
                    seen[usize::from(fault.access() == Access::Write)].fetch_add(1, Ordering::Relaxed);
                    fault.unprotect().unwrap();
                    Outcome::Resolved
                })
            };
            let trapping = trapping.unwrap();
            let before = read(trapping.memory(), 2 * PAGE);
            trapping.protect(0..8 * PAGE).unwrap();
            assert_eq!(read(trapping.memory(), 2 * PAGE), before, "{kind}");
            write(trapping.memory(), 3 * PAGE, 9);
            assert_eq!(read(trapping.memory(), 3 * PAGE), 9);
            let counts: Vec<_> = accesses.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            let expected = if cfg!(target_arch = "x86_64") { vec![1, 1] } else { vec![2, 0] };
            assert_eq!(counts, expected, "{mechanism}, {kind}");
        }
    }
    // SAFETY: no page is protected, so the handler never runs.
    let refused = unsafe {
        let memory = Memory::anonymous(PAGE).unwrap();
        Trapping::with(memory, Watch::Accesses, Mechanism::UserfaultThread, |_| Outcome::Chain)
    };
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
}

/// The dirty ranges, joined; makes them clean.
fn dirty(tracking: &Tracking) -> Vec<Range<usize>> {
    joined(tracking.dirty().unwrap().map(Result::unwrap))
}

fn joined(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

#[test]
fn a_dirty_page_is_reported_once() {
    let mut tried = 0;
    for mechanism in TRAPS.into_iter().chain([Mechanism::Scan]) {
        for (kind, memory) in kinds() {
            write(&memory, PAGE, 1);
            let tracking = match Tracking::with(memory, mechanism) {
                Ok(tracking) => tracking,
                Err(Error::System { .. }) if kind.contains("file") && mechanism != Mechanism::Scan => continue,
                Err(error) => panic!("{mechanism}, {kind}: {error}"),
            };
            tried += 1;
            let memory = tracking.memory();
            let name = format!("{mechanism}, {kind}");
            assert_eq!(dirty(&tracking), [], "{name}: nothing was written since");
            assert_eq!(read(memory, 6 * PAGE), if kind.contains("file") { 7 } else { 0 }, "{name}: a read");
            assert_eq!(dirty(&tracking), [], "{name}: a read is no write");
            for page in [1, 3, 4, 7] {
                write(memory, page * PAGE + 7, 2);
            }
            let peeked = joined(tracking.peek().unwrap().map(Result::unwrap));
            let expected = [PAGE..2 * PAGE, 3 * PAGE..5 * PAGE, 7 * PAGE..8 * PAGE];
            assert_eq!(peeked, expected, "{name}");
            let part = joined(tracking.dirty_in(0..4 * PAGE).unwrap().map(Result::unwrap));
            assert_eq!(part, [PAGE..2 * PAGE, 3 * PAGE..4 * PAGE], "{name}");
            write(memory, PAGE, 3);
            let first = tracking.dirty().unwrap().next().unwrap().unwrap();
            assert_eq!(first.start, PAGE, "{name}");
            assert_eq!(dirty(&tracking), [4 * PAGE..5 * PAGE, 7 * PAGE..8 * PAGE], "{name}: untaken ranges stay dirty");
            assert_eq!(dirty(&tracking), [], "{name}");
            tracking.mark(2 * PAGE..3 * PAGE).unwrap();
            assert_eq!(dirty(&tracking), [2 * PAGE..3 * PAGE], "{name}");
            assert!(matches!(tracking.dirty_in(0..100), Err(Error::Range { .. })));
        }
    }
    assert!(tried >= 14, "{tried}");
}

#[test]
fn dirty_on_many_pages_equals_a_model() {
    use proptest::prelude::*;
    for mechanism in [Mechanism::Scan, Mechanism::UserfaultSignal, Mechanism::ProtectSignal] {
        let tracking = Tracking::with(Memory::anonymous(1000 * PAGE).unwrap(), mechanism).unwrap();
        proptest!(ProptestConfig::with_cases(30), |(pages in prop::collection::btree_set(0_usize..1000, 0..600))| {
            pages.iter().for_each(|&page| write(tracking.memory(), page * PAGE, 1));
            let expected = joined(pages.iter().map(|&page| page * PAGE..(page + 1) * PAGE));
            prop_assert_eq!(dirty(&tracking), expected);
        });
    }
}

fn fill_with_number(fault: &Fault<'_>) -> Outcome {
    /// Not on the stack: a signal stack may be small.
    static PAGES: [[u8; PAGE]; 8] = {
        let mut pages = [[0; PAGE]; 8];
        let mut page = 0;
        while page < 8 {
            pages[page][0] = page as u8 + 1;
            page += 1;
        }
        pages
    };
    fault.fill(&PAGES[fault.page().start / PAGE]).unwrap();
    Outcome::Resolved
}

#[test]
fn missing_pages_are_filled_and_can_be_evicted() {
    for mechanism in TRAPS {
        for private in [true, false] {
            let memory = if private { Memory::anonymous(8 * PAGE) } else { Memory::shared(8 * PAGE) }.unwrap();
            // SAFETY: the handler copies from a static, which is async-signal-safe.
            let filling = match unsafe { Filling::with(memory, false, mechanism, fill_with_number) } {
                Err(Error::Unsupported { .. }) if private && mechanism.name().starts_with("mprotect") => continue,
                filling => filling.unwrap(),
            };
            let memory = filling.memory();
            filling.fill(0, &[77; PAGE]).unwrap();
            filling.zero(PAGE).unwrap();
            filling.fill(0, &[78; PAGE]).unwrap();
            let firsts: Vec<_> = (0..8).map(|page| read(memory, page * PAGE)).collect();
            assert_eq!(firsts, [77, 0, 3, 4, 5, 6, 7, 8], "{mechanism}");
            write(memory, 3 * PAGE, 99);
            filling.evict(0..4 * PAGE).unwrap();
            write(memory, 5 * PAGE, 55);
            let firsts: Vec<_> = (0..8).map(|page| read(memory, page * PAGE)).collect();
            assert_eq!(firsts, [1, 2, 3, 4, 5, 55, 7, 8], "{mechanism}");
            assert!(matches!(filling.fill(0, &[1; 5]), Err(Error::Fill { .. })));
            assert!(matches!(filling.fill(8 * PAGE, &[1; PAGE]), Err(Error::Range { .. })));
            assert!(matches!(filling.dirty(), Err(Error::Unsupported { .. })));
        }
    }
}

#[test]
fn a_files_pages_are_not_filled() {
    let file = numbered(2);
    for mechanism in TRAPS {
        for memory in [Memory::file(&file, 0, 2 * PAGE).unwrap(), Memory::file_private(&file, 0, 2 * PAGE).unwrap()] {
            // SAFETY: the call fails, so the handler never runs.
            let refused = unsafe { Filling::with(memory, false, mechanism, |_| Outcome::Chain) };
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        }
    }
    assert_eq!(read(&Memory::file(&file, 0, 2 * PAGE).unwrap(), PAGE), 2);
}

#[test]
fn filled_pages_that_are_tracked_are_clean_until_written() {
    for (mechanism, memory) in [
        (Mechanism::Scan, Memory::anonymous(8 * PAGE).unwrap()),
        (Mechanism::Scan, Memory::shared(8 * PAGE).unwrap()),
        (Mechanism::ProtectThread, Memory::shared(8 * PAGE).unwrap()),
    ] {
        // SAFETY: the mechanism runs the handler in a thread, where any code is permitted.
        let filling = unsafe { Filling::with(memory, true, mechanism, fill_with_number) }.unwrap();
        let dirty = || joined(filling.dirty().unwrap().map(Result::unwrap));
        let memory = filling.memory();
        assert_eq!((read(memory, PAGE), read(memory, 2 * PAGE)), (2, 3));
        assert_eq!(dirty(), [], "{mechanism}: filled is not written");
        write(memory, PAGE + 1, 1);
        write(memory, 5 * PAGE + 1, 1);
        assert_eq!((read(memory, PAGE), read(memory, 5 * PAGE)), (2, 6), "{mechanism}: filled first");
        assert_eq!(dirty(), [PAGE..2 * PAGE, 5 * PAGE..6 * PAGE], "{mechanism}");
        filling.evict(PAGE..2 * PAGE).unwrap();
        assert_eq!((read(memory, PAGE), read(memory, PAGE + 1)), (2, 0), "{mechanism}: filled again");
        write(memory, PAGE + 1, 1);
        assert_eq!(dirty(), [PAGE..2 * PAGE], "{mechanism}");
        assert_eq!(dirty(), [], "{mechanism}");
    }
}

#[test]
fn a_page_is_filled_by_a_move() {
    for mechanism in [Mechanism::UserfaultThread, Mechanism::UserfaultSignal] {
        let staging = Memory::anonymous(PAGE).unwrap();
        write(&staging, 100, 42);
        let from = Arc::new(AtomicPtr::new(staging.as_ptr()));
        let take = from.clone();
        let handler = move |fault: &Fault<'_>| {
            // SAFETY: no code uses the staging page any more.
            unsafe { fault.move_from(take.swap(null_mut(), Ordering::Relaxed)) }.unwrap();
            Outcome::Resolved
        };
        // SAFETY: the handler only makes a system call, which is async-signal-safe.
        let filling =
            unsafe { Filling::with(Memory::anonymous(2 * PAGE).unwrap(), false, mechanism, handler) }.unwrap();
        assert_eq!((read(filling.memory(), PAGE + 100), read(&staging, 100)), (42, 0), "{mechanism}");
        assert!(from.load(Ordering::Relaxed).is_null());
    }
}

#[test]
fn memory_and_alias_are_the_same_pages() {
    let memory = Memory::shared(4 * PAGE).unwrap();
    let alias = memory.alias().unwrap();
    let trapping = Trapping::new(memory, Watch::Accesses, |fault| {
        fault.unprotect().unwrap();
        Outcome::Resolved
    });
    let trapping = trapping.unwrap();
    trapping.protect(0..4 * PAGE).unwrap();
    // SAFETY: the address is inside the alias, which is writable.
    unsafe { alias.as_ptr().add(PAGE).write_volatile(7) };
    assert_eq!(read(trapping.memory(), PAGE), 7);
    assert!(matches!(Memory::anonymous(1).unwrap().alias(), Err(Error::Unsupported { .. })));
    let file = numbered(2);
    let mapped = Memory::file(&file, 0, 2 * PAGE).unwrap();
    // SAFETY: the address is inside the alias, which is writable.
    unsafe { mapped.alias().unwrap().as_ptr().add(PAGE + 3).write_volatile(5) };
    let mut contents = Vec::new();
    std::io::Seek::rewind(&mut &file).unwrap();
    (&file).read_to_end(&mut contents).unwrap();
    assert_eq!((read(&mapped, PAGE + 3), contents[PAGE + 3]), (5, 5));
}

#[test]
fn guards_drop_private_contents_and_can_be_removed() {
    for memory in [Memory::anonymous(4 * PAGE).unwrap(), Memory::shared(4 * PAGE).unwrap()] {
        for mechanism in [GuardMechanism::Marker, GuardMechanism::Protect] {
            write(&memory, PAGE, 5);
            memory.guard_with(PAGE..3 * PAGE, mechanism).unwrap();
            let zero = File::open("/dev/zero").unwrap();
            // SAFETY: the kernel fails with EFAULT, or writes a byte to this test's memory.
            let got =
                unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&zero), memory.as_ptr().add(PAGE).cast(), 1) };
            assert_eq!((got, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
            memory.unguard(PAGE..3 * PAGE).unwrap();
            // Shared contents are not lost with this mapping.
            assert_eq!(read(&memory, PAGE), if memory.alias().is_ok() { 5 } else { 0 }, "{mechanism:?}");
            write(&memory, PAGE, 6);
            assert_eq!(read(&memory, PAGE), 6);
        }
        memory.guard(0..PAGE).unwrap();
        memory.guard(0..PAGE).unwrap();
        memory.unguard(0..PAGE).unwrap();
        write(&memory, 0, 1);
        assert!(matches!(memory.guard(1..PAGE), Err(Error::Range { .. })));
    }
}

#[test]
fn controlled_memory_refuses_guards_and_a_second_region() {
    let memory = Memory::anonymous(4 * PAGE).unwrap();
    let other = memory.share();
    let tracking = Tracking::new(memory).unwrap();
    assert!(matches!(tracking.memory().guard(0..PAGE), Err(Error::Unsupported { .. })));
    assert!(matches!(tracking.memory().unguard(0..PAGE), Err(Error::Unsupported { .. })));
    write(tracking.memory(), 0, 1);
    assert_eq!(dirty(&tracking), [0..PAGE], "its traps are as they were");
    assert!(matches!(Tracking::new(other.share()), Err(Error::Unsupported { .. })));
    drop(tracking);
    other.guard(0..PAGE).unwrap();
    other.unguard(0..PAGE).unwrap();
    assert!(Tracking::new(other).is_ok());
}

#[test]
fn a_file_is_not_mapped_past_its_end() {
    let (empty, short) = (tempfile::tempfile().unwrap(), numbered(1));
    for (file, offset, bytes) in [(&empty, 0, 0), (&empty, 0, 1), (&short, PAGE as u64, 0), (&short, PAGE as u64, 1)] {
        assert!(matches!(Memory::file(file, offset, bytes), Err(Error::Range { .. })), "{offset} {bytes}");
    }
    assert_eq!(Memory::file(&short, 0, 10).unwrap().bytes(), PAGE);
}
