//! Options, refusals, and slices.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use fieldstone_paging::Advice::{Cold, Drop};
use fieldstone_paging::{Error, Lz4, Paged, TempFile};

use crate::fixture::{MIB, PAGE, build};

fn refusal(builder: fieldstone_paging::PagedBuilder) -> String {
    builder.build().unwrap_err().to_string()
}

#[test]
fn options_that_cannot_work_are_refused() {
    for bytes in [0, 1, (256 << 10) - 1] {
        let text = refusal(Paged::builder(4 * MIB).resident(bytes));
        assert_eq!(text, format!("cannot use {bytes} as resident: at least 256 KiB must be resident"));
    }
    assert_eq!(refusal(Paged::builder(0)), "cannot use 0 as builder: memory has at least one byte");
    assert!(refusal(Paged::builder(usize::MAX)).contains("no such address space"));
    let seven = (0..7).fold(Paged::builder(MIB), |builder, _| builder.store(Lz4::limit(MIB)));
    assert_eq!(refusal(seven), "cannot use 7 as store: at most 6 are possible");
    let error = TempFile::in_dir("/no such directory").unwrap_err();
    assert_eq!(error.to_string(), format!("cannot open the page store file: errno {}", libc::ENOENT));
}

#[test]
fn ranges_outside_the_memory_are_refused() {
    let Some(memory) = build(Paged::builder(10 * PAGE)) else { return };
    #[expect(clippy::reversed_empty_ranges, reason = "such a range is refused")]
    for range in [0..11 * PAGE, 5..4, usize::MAX - 1..usize::MAX] {
        assert!(matches!(memory.advise(range.clone(), Cold), Err(Error::Range { .. })), "{range:?}");
        assert!(memory.resident(range).is_err());
    }
    assert!(memory.advise(10 * PAGE..10 * PAGE, Cold).is_ok());
    assert!(memory.advise(0..100, Cold).is_ok());
    let error = memory.advise(0..100, Drop).unwrap_err();
    assert_eq!(error.to_string(), "cannot use bytes 0 to 100: they are not whole pages inside 40960 bytes");
    assert!(memory.set_resident(100).is_err());
}

#[test]
fn slices_have_words_of_one_size_while_they_are_shared() {
    let Some(mut memory) = build(Paged::builder(PAGE + 9)) else { return };
    assert_eq!((memory.len(), memory.is_empty(), memory.address() % PAGE), (PAGE + 9, false, 0));
    assert_eq!(memory.as_slice::<AtomicU64>().len(), PAGE / 8 + 1);
    assert_eq!(memory.as_slice::<[AtomicU64; 8]>().len(), PAGE / 64);
    memory.as_slice::<AtomicU64>()[0].store(0x0102, Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| memory.as_slice::<AtomicU32>().len())).is_err());
    assert_eq!(*memory.as_mut_slice::<AtomicU8>()[0].get_mut(), 2);
    assert_eq!(memory.as_slice::<AtomicU8>()[1].load(Relaxed), 1);
}

#[test]
fn memory_is_used_and_dropped_in_several_threads() {
    fn is_send_and_sync<T: Send + Sync>(_: &T) {}
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut addresses = Vec::new();
    for _ in 0..20 {
        let Some(memory) = build(Paged::builder(4 * MIB).resident(MIB)) else { return };
        is_send_and_sync(&memory);
        addresses.push(format!("{:x}-", memory.address()));
        let memory = std::thread::spawn(move || {
            memory.as_slice::<AtomicU64>().iter().for_each(|word| word.store(7, Relaxed));
            memory
        });
        let memory = memory.join().unwrap();
        std::thread::spawn(move || drop(memory)).join().unwrap();
    }
    let left = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "fs-paged"));
    // Other tests run at the same time, with threads of their own.
    assert!(left.count() < 20, "threads end");
    let maps = mappings();
    let kept = addresses.iter().filter(|address| maps.contains(address.as_str())).count();
    assert!(kept < 10, "{kept} of {} mappings are left", addresses.len());
}

#[test]
fn counts_print_themselves() {
    let Some(memory) = build(Paged::builder(4 * MIB).resident(MIB)) else { return };
    let text = memory.stats().to_string();
    assert!(text.lines().any(|line| line == "resident_limit: 1048576 bytes"), "{text}");
    assert!(text.lines().any(|line| line == "stores[0]: lz4, 0 bytes, 0 pages came back in 0 ns"), "{text}");
    let fields = format!("{:?}", memory.stats()).matches(": ").count();
    assert!(text.lines().count() >= fields - 8, "a line for each field: {text}");
}
