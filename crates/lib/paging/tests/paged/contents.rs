//! Contents are right after pages have left memory.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use fieldstone_paging::{Lz4, Paged, PagedBuilder, TempFile};

use crate::fixture::{Kind, MIB, PAGE, WORDS, build, check, fill, word};

fn stays_right(name: &str, builder: PagedBuilder, kind: Kind) {
    let Some(memory) = build(builder.resident(MIB)) else { return };
    fill(&memory, kind);
    check(&memory, kind);
    let stats = memory.stats();
    assert!(stats.evicted > 1000 && stats.lost == 0, "{name}: {stats}");
    assert!(stats.resident_peak <= stats.resident_limit, "{name}: {stats}");
    let loaded: u64 = stats.stores.iter().map(|store| store.loaded).sum();
    let is_stored = !matches!(kind, Kind::Zeros);
    assert_eq!(loaded > 0, is_stored, "{name}: {stats}");
}

#[test]
fn pages_come_back_from_each_store() {
    for kind in [Kind::Text, Kind::Noise, Kind::Zeros] {
        stays_right("lz4 and file", Paged::builder(8 * MIB).store(Lz4::limit(4 * MIB)).store(file()), kind);
        stays_right("file", Paged::builder(8 * MIB).store(file()), kind);
        stays_right("default", Paged::builder(8 * MIB), kind);
        stays_right("small lz4", Paged::builder(8 * MIB).store(Lz4::limit(64 << 10)).store(file()), kind);
    }
    for kind in [Kind::Text, Kind::Zeros] {
        stays_right("lz4", Paged::builder(8 * MIB).store(Lz4::limit(8 * MIB)), kind);
    }
}

fn file() -> TempFile {
    TempFile::in_dir(std::env::temp_dir()).unwrap()
}

#[test]
fn eight_threads_change_random_pages_with_a_bound_of_a_tenth() {
    const THREADS: u64 = 8;
    let pages = 4000;
    let Some(memory) = build(Paged::builder(pages * PAGE).resident(pages / 10 * PAGE)) else { return };
    let words = memory.as_slice::<AtomicU64>();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut state = word(Kind::Noise, thread as usize) | 1;
                for _ in 0..5000 {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    // Each page counts its changes in two words, at its start and at its end.
                    let page = state as usize % pages * WORDS;
                    words[page].fetch_add(1, Relaxed);
                    words[page + WORDS - 1].fetch_add(1, Relaxed);
                }
            });
        }
    });
    let sum = |at: usize| (0..pages).map(|page| words[page * WORDS + at].load(Relaxed)).sum::<u64>();
    assert_eq!((sum(0), sum(WORDS - 1)), (THREADS * 5000, THREADS * 5000), "{}", memory.stats());
    assert!(memory.stats().resident_peak <= memory.stats().resident_limit, "{}", memory.stats());
}

#[test]
fn memory_one_page_larger_than_the_bound_is_right() {
    for above in [0, 1, 2] {
        let builder = Paged::builder(MIB + above * PAGE).resident(MIB);
        let Some(memory) = build(builder) else { return };
        for _ in 0..3 {
            fill(&memory, Kind::Text);
            check(&memory, Kind::Text);
        }
        let stats = memory.stats();
        assert!(stats.resident_peak <= MIB as u64 && stats.lost == 0, "{above}: {stats}");
        assert!(stats.evicted > 0 || above == 0, "{above}: {stats}");
    }
}

#[test]
fn memory_larger_than_ram_takes_what_is_used() {
    let bytes = 64 << 30;
    let Some(memory) = build(Paged::builder(bytes).resident(MIB).store(Lz4::limit(MIB))) else { return };
    let words = memory.as_slice::<AtomicU64>();
    let step = words.len() / 1000;
    (0..1000).for_each(|index| words[index * step].store(index as u64 + 1, Relaxed));
    (0..1000).for_each(|index| assert_eq!(words[index * step].load(Relaxed), index as u64 + 1));
    assert_eq!(words[step / 2].load(Relaxed), 0, "a first access reads zeros");
    assert_eq!(memory.stats().bytes, bytes as u64);
    assert!(memory.stats().resident_peak <= MIB as u64, "{}", memory.stats());
}

#[test]
fn system_calls_access_pages_that_are_not_resident() {
    let Some(memory) = build(Paged::builder(4 * MIB).resident(MIB)) else { return };
    if !memory.stats().has_kernel_faults {
        println!("SKIP no userfaultfd for faults of the kernel");
        return;
    }
    fill(&memory, Kind::Noise);
    let mut pipe = [0; 2];
    // SAFETY: the array has two places.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    assert_eq!(memory.resident(0..PAGE), Ok(0), "the oldest page has left");
    let mut back = [0_u8; 64];
    // SAFETY: the bytes are inside the memory and the array.
    let (written, read) = unsafe {
        let written = libc::write(pipe[1], memory.as_ptr().as_ptr().cast(), 64);
        (written, libc::read(pipe[0], back.as_mut_ptr().cast(), 64))
    };
    assert_eq!((written, read), (64, 64));
    let expected: Vec<u8> = (0..8).flat_map(|index| word(Kind::Noise, index).to_le_bytes()).collect();
    assert_eq!(back[..], expected);
    // SAFETY: both descriptors are this test's own.
    unsafe { pipe.iter().for_each(|&end| _ = libc::close(end)) };
}

#[cfg(feature = "zstd")]
#[test]
fn pages_come_back_from_zstd_and_take_less_than_with_lz4() {
    use fieldstone_paging::Zstd;

    for kind in [Kind::Text, Kind::Zeros] {
        stays_right("zstd", Paged::builder(8 * MIB).store(Zstd::limit(8 * MIB)), kind);
    }
    stays_right("zstd and file", Paged::builder(8 * MIB).store(Zstd::limit(MIB)).store(file()), Kind::Noise);
    let stored = |builder: PagedBuilder| {
        let memory = build(builder.resident(MIB))?;
        let words = memory.as_slice::<AtomicU64>();
        words.iter().enumerate().for_each(|(index, place)| place.store(word(Kind::Noise, index) % 1000, Relaxed));
        Some(memory.stats().stores[0].bytes)
    };
    let (Some(zstd), Some(lz4)) = (
        stored(Paged::builder(8 * MIB).store(Zstd::limit(8 * MIB))),
        stored(Paged::builder(8 * MIB).store(Lz4::limit(8 * MIB))),
    ) else {
        return;
    };
    assert!(zstd > 0 && zstd < lz4, "{zstd} {lz4}");
}
