//! What is saved is restored: by each sink, as a whole and by increments.

use std::sync::atomic::Ordering::Relaxed;

use fieldstone_checkpoint::{Checkpointer, Compression, Directory, File};
use fieldstone_pages::Memory;

use crate::fixture::{MIB, PAGE, WORDS, checkpointer, contents, filled, names};

#[test]
fn a_file_has_the_last_save() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::at(folder.path().join("heap.save"));
    let memory = filled(4 * MIB);
    let mut saver = checkpointer(&memory);
    for round in 1..=3 {
        memory.words()[round].store(77, Relaxed);
        let report = saver.save(&file, || ((), round as u64)).unwrap();
        assert!(!report.is_increment && report.pages >= 512 && report.bytes > 2 << 20, "{report}");
        assert_eq!(report.value, round as u64);
        let last = file.last().unwrap();
        assert_eq!((last.value(), last.sizes()), (round as u64, vec![4 * MIB]));
        assert!(contents(&last.restore().unwrap()[0]) == contents(&memory));
    }
    assert_eq!(names(folder.path()), ["heap.save"]);
}

#[test]
fn an_increment_has_what_changed_and_restores_all() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(4 * MIB);
    let mut saver = checkpointer(&memory);
    assert!(!saver.save(&saves, || ((), 1)).unwrap().is_increment);
    for round in 2..6 {
        memory.words()[round * 10 * WORDS].store(round as u64, Relaxed);
        // A page that becomes zeros again, and one that was never touched.
        memory.words()[100 * WORDS..101 * WORDS].iter().for_each(|word| word.store(0, Relaxed));
        memory.words()[(round * 2 + 1) * WORDS].store(5, Relaxed);
        let report = saver.save(&saves, || ((), round as u64)).unwrap();
        assert!(report.is_increment && (3..8).contains(&report.pages), "{report}");
        let last = Directory::open(folder.path()).unwrap().last().unwrap();
        assert_eq!(last.value(), round as u64);
        assert!(contents(&last.restore().unwrap()[0]) == contents(&memory), "round {round}");
    }
    assert_eq!(names(folder.path()).len(), 5);
}

#[test]
fn several_memories_of_all_kinds_are_one_save() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::at(folder.path().join("heap"));
    let huge = Memory::anonymous(8 * MIB).unwrap();
    huge.advise_huge();
    huge.words().iter().step_by(100).for_each(|word| word.store(3, Relaxed));
    let empty = Memory::anonymous(2 << 30).unwrap();
    empty.words()[(1 << 30) / 8].store(9, Relaxed);
    let small = filled(PAGE);
    let mut saver = Checkpointer::builder([&huge, &empty, &small]).compression(Compression::Lz4).build().unwrap();
    let report = saver.save(&file, || ((), 0)).unwrap();
    assert!(report.bytes < MIB as u64, "the pages compress: {report}");
    let restored = file.last().unwrap().restore().unwrap();
    assert!(contents(&restored[0]) == contents(&huge) && contents(&restored[2]) == contents(&small));
    assert_eq!(restored[1].words()[(1 << 30) / 8].load(Relaxed), 9);
}

#[test]
fn each_compression_is_restored_with_any_limit_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(10 * MIB);
    // Pages that do not compress.
    let mut state = 1_u64;
    for word in &memory.words()[..100 * WORDS] {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        word.store(state, Relaxed);
    }
    let mut sizes = Vec::new();
    let compressions = [
        Compression::None,
        Compression::Lz4,
        #[cfg(feature = "zstd")]
        Compression::Zstd,
    ];
    for compression in compressions {
        for limit in [1, 64 * MIB, 256 * MIB] {
            let builder = Checkpointer::builder([&memory]).compression(compression).memory_limit(limit);
            let report = builder.build().unwrap().save(&saves, || ((), 0)).unwrap();
            assert!(report.peak_buffer_bytes <= limit.max(4 * MIB) as u64, "{report}");
            assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
            sizes.push(report.bytes);
        }
    }
    assert!(sizes.chunks(3).all(|same| same[0] == same[1] && same[1] == same[2]), "{sizes:?}");
    assert!(sizes.chunks(3).is_sorted_by(|one, next| one[0] > next[0]), "{sizes:?}");
}

#[test]
fn pages_are_restored_at_their_first_access() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(4 * MIB);
    let mut saver = Checkpointer::builder([&memory]).compression(Compression::Lz4).build().unwrap();
    saver.save(&saves, || ((), 1)).unwrap();
    memory.words()[40 * WORDS].store(1, Relaxed);
    saver.save(&saves, || ((), 2)).unwrap();
    let restored = match saves.last().unwrap().restore_lazily() {
        Ok(restored) => restored,
        Err(error) => return println!("SKIP no userfaultfd: {error}"),
    };
    let lazy = restored[0].memory().words();
    assert_eq!(lazy[40 * WORDS].load(Relaxed), 1);
    lazy[WORDS].store(6, Relaxed);
    memory.words()[WORDS].store(6, Relaxed);
    assert!(contents(restored[0].memory()) == contents(&memory));
}

#[test]
fn swapped_and_locked_pages_are_saved() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::at(folder.path().join("heap"));
    let memory = filled(MIB);
    let half = memory.bytes() / 2;
    // SAFETY: the range is inside the memory; neither call changes contents.
    unsafe {
        libc::mlock(memory.as_ptr().cast(), half);
        // Swap space may be missing: then the pages stay.
        libc::madvise(memory.as_ptr().add(half).cast(), half, libc::MADV_PAGEOUT);
    }
    checkpointer(&memory).save(&file, || ((), 0)).unwrap();
    assert!(contents(&file.last().unwrap().restore().unwrap()[0]) == contents(&memory));
}
