//! Increments in a directory: which are deleted, merged, and refused.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_checkpoint::{Checkpointer, Compression, Directory, Error, Sink, SinkWriter};
use fieldstone_pages::Memory;

use crate::fixture::{MIB, PAGE, WORDS, checkpointer, contents, filled, names};

fn restored(saves: &Directory) -> Vec<u64> {
    contents(&saves.last().unwrap().restore().unwrap()[0])
}

#[test]
fn only_saves_that_nothing_needs_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    let mut first = checkpointer(&memory);
    for _ in 0..3 {
        memory.words()[0].fetch_add(1, Relaxed);
        first.save(&saves, || ((), 0)).unwrap();
    }
    assert_eq!(saves.keep(1).unwrap(), 0, "the last save continues both others, which are small");
    drop(first);
    // Another checkpointer does not know what changed, so its first save is complete.
    let mut second = checkpointer(&memory);
    assert!(!second.save(&saves, || ((), 0)).unwrap().is_increment);
    memory.words()[0].fetch_add(1, Relaxed);
    assert!(second.save(&saves, || ((), 0)).unwrap().is_increment);
    assert_eq!(saves.keep(3).unwrap(), 0);
    assert_eq!(saves.keep(2).unwrap(), 3);
    assert_eq!(names(folder.path()), ["0000000004.save", "0000000005.save"]);
    assert!(restored(&saves) == contents(&memory));
}

#[test]
fn merged_saves_are_restored_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let (memory, other) = (filled(2 * MIB), filled(3 * PAGE));
    let mut saver = Checkpointer::builder([&memory, &other]).compression(Compression::Lz4).build().unwrap();
    let mut deleted = 0;
    let mut state = 7_u64;
    for round in 0..50_u64 {
        for _ in 0..40 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // What does not compress, so that increments have some size.
            let page = &memory.words()[(state >> 40) as usize % 512 * WORDS..][..WORDS];
            page.iter().enumerate().for_each(|(at, word)| word.store(state.rotate_left(at as u32), Relaxed));
        }
        // A page that has contents by turns.
        memory.words()[WORDS].store(round % 3, Relaxed);
        other.words()[round as usize % 3 * WORDS].store(round, Relaxed);
        let report = saver.save(&saves, || ((), round)).unwrap();
        assert_eq!(report.is_increment, round > 0, "an increment may continue a merged save");
        deleted += saves.keep(1 + round as usize % 4).unwrap();
        let last = Directory::open(folder.path()).unwrap().last().unwrap();
        assert_eq!(last.value(), round);
        let both = last.restore().unwrap();
        assert!(contents(&both[0]) == contents(&memory) && contents(&both[1]) == contents(&other), "round {round}");
    }
    let bytes: u64 = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(deleted > 20 && bytes < 12 << 20, "{deleted} were deleted, {bytes} bytes are left");
    // Saves that are not wanted any more are not needed to read those that are.
    assert!(names(folder.path()).len() < 50 - 20);
}

#[test]
fn what_is_restored_lazily_stays_readable_when_its_saves_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    let mut saver = checkpointer(&memory);
    saver.save(&saves, || ((), 0)).unwrap();
    memory.words()[0].store(1, Relaxed);
    saver.save(&saves, || ((), 0)).unwrap();
    let expected = contents(&memory);
    let lazy = match saves.last().unwrap().restore_lazily() {
        Ok(lazy) => lazy,
        Err(error) => return println!("SKIP no userfaultfd: {error}"),
    };
    memory.words().iter().for_each(|word| word.store(3, Relaxed));
    saver.save(&saves, || ((), 0)).unwrap();
    assert_eq!(saves.keep(1).unwrap(), 2);
    assert_eq!(names(folder.path()), ["0000000003.save"]);
    assert!(contents(lazy[0].memory()) == expected);
}

#[test]
fn two_processes_do_not_replace_saves_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let (one, other) = (filled(MIB), filled(2 * MIB));
    let (mut first, mut second) = (checkpointer(&one), checkpointer(&other));
    // By turns: each save is complete, since the last one is not its own.
    for round in 0..4 {
        assert!(!first.save(&saves, || ((), round)).unwrap().is_increment);
        assert!(!second.save(&saves, || ((), round)).unwrap().is_increment);
    }
    assert!(restored(&saves) == contents(&other));
    // At the same time: the number is taken when the first one finishes.
    let writer = saves.begin(5).unwrap();
    first.save(&saves, || ((), 9)).unwrap();
    let taken = writer.finish(&[]).unwrap_err();
    assert!(matches!(taken, Error::Taken(_)) && taken.to_string().contains("one process"), "{taken}");
    assert!(restored(&saves) == contents(&one));
    assert!(names(folder.path()).iter().all(|name| name.ends_with(".save")));
}

#[test]
fn a_cancelled_save_leaves_the_last_one_and_its_pages_are_saved_next() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory: Memory = filled(64 * MIB);
    let mut saver = checkpointer(&memory);
    saver.save(&saves, || ((), 1)).unwrap();
    let mut cancelled = 0;
    for round in 0..10 {
        memory.words().iter().step_by(WORDS).for_each(|word| _ = word.fetch_add(1, Relaxed));
        let before = names(folder.path());
        let save = saver.begin(&saves, || ((), 2)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(round));
        save.cancel();
        match save.wait() {
            Err(Error::Cancelled) => {
                cancelled += 1;
                assert_eq!(names(folder.path()), before);
            }
            other => _ = other.unwrap(),
        }
    }
    assert!(cancelled > 0, "each save was whole before it was cancelled");
    saver.save(&saves, || ((), 3)).unwrap();
    assert!(restored(&saves) == contents(&memory));
}

/// Two processes that save at the same time may continue the same save.
#[test]
fn keep_deletes_nothing_that_a_later_branch_needs() {
    /// A sink that lets another process finish a save before this one begins.
    struct Late<'a>(&'a Directory, &'a (dyn Fn() + Sync));
    impl Sink for Late<'_> {
        fn begin(&self, id: u64) -> fieldstone_checkpoint::Result<Box<dyn SinkWriter>> {
            (self.1)();
            self.0.begin(id)
        }
        fn continued(&self) -> fieldstone_checkpoint::Result<Option<(u64, u64)>> {
            self.0.continued()
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let (memory, other) = (filled(MIB), filled(MIB));
    let mut saver = checkpointer(&memory);
    saver.save(&saves, || ((), 1)).unwrap();
    memory.words()[0].store(77, Relaxed);
    let save_other = || _ = checkpointer(&other).save(&saves, || ((), 2)).unwrap();
    assert!(saver.save(&Late(&saves, &save_other), || ((), 3)).unwrap().is_increment);
    assert_eq!(saves.keep(2).unwrap(), 0);
    assert!(restored(&saves) == contents(&memory));
}

#[test]
fn a_save_is_complete_if_one_that_it_would_continue_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    let mut saver = checkpointer(&memory);
    for _ in 0..3 {
        memory.words()[0].fetch_add(1, Relaxed);
        saver.save(&saves, || ((), 0)).unwrap();
    }
    fs::remove_file(folder.path().join("0000000001.save")).unwrap();
    assert!(!saver.save(&saves, || ((), 0)).unwrap().is_increment);
    assert!(restored(&saves) == contents(&memory));
}

#[test]
fn other_files_are_no_saves_and_stay() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    checkpointer(&memory).save(&saves, || ((), 0)).unwrap();
    let others = [
        "+5.save",
        "18446744073709551615.save",
        "5.save",
        "0000000001.save.new-2024-11-28",
        "0000000001.save.new-4000000",
        "heap",
    ];
    others.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
    checkpointer(&memory).save(&saves, || ((), 0)).unwrap();
    assert!(restored(&saves) == contents(&memory));
    assert_eq!(saves.keep(1).unwrap(), 1);
    let left = names(folder.path());
    assert!(others.iter().all(|name| left.iter().any(|other| other == name)), "{left:?}");
}

#[test]
fn files_of_ended_saves_are_removed_and_those_of_running_ones_stay() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    // Of a process whose number another one has now.
    let left = folder.path().join(format!("0000000001.save.new-{}-0123456789abcdef", std::process::id()));
    fs::write(&left, "").unwrap();
    // Of another name space, where this number is unused.
    let running = folder.path().join("0000000001.save.new-4194303-fedcba9876543210");
    let file = fs::File::create(&running).unwrap();
    file.lock().unwrap();
    checkpointer(&memory).save(&saves, || ((), 0)).unwrap();
    assert_eq!((left.exists(), running.exists()), (false, true));
}

#[test]
fn cancelling_an_ended_save_leaves_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Directory::open(folder.path()).unwrap();
    let memory = filled(MIB);
    let mut saver = checkpointer(&memory);
    let ended = saver.begin(&saves, || ((), 1)).unwrap();
    while !ended.is_finished() {
        std::thread::yield_now();
    }
    let next = loop {
        match saver.begin(&saves, || ((), 2)) {
            Err(Error::Busy) => std::thread::yield_now(),
            begun => break begun.unwrap(),
        }
    };
    ended.cancel();
    assert_eq!(next.wait().unwrap().value, 2);
}
