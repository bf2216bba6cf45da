//! Forks, and programs that close descriptors.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use fieldstone_paging::Advice::Cold;
use fieldstone_paging::{Error, Page, Paged, Store, StoreError, TempFile};

use crate::fixture::{Kind, MIB, PAGE, WORDS, build, check, dies_alone, fill, in_child, passes_alone};

#[test]
#[ignore = "runs in a process of its own"]
fn forked() {
    let Some(memory) = build(Paged::builder(4 * MIB).resident(MIB)) else { return };
    fill(&memory, Kind::Noise);
    let words = memory.as_slice::<AtomicU64>();
    for index in [0, words.len() - 1] {
        let code = in_child(|| i32::from(words[index].load(Relaxed) == 0));
        assert_eq!(code, -libc::SIGSEGV, "the oldest and the newest page");
    }
    let code = in_child(|| {
        let is_refused = memory.advise(0..MIB, Cold) == Err(Error::Forked)
            && memory.set_resident(MIB) == Err(Error::Forked)
            && memory.resident(0..MIB) == Err(Error::Forked);
        i32::from(!is_refused)
    });
    assert_eq!(code, 0, "operations are refused");
    check(&memory, Kind::Noise);
}

#[test]
fn a_forked_child_does_not_have_the_memory() {
    passes_alone("processes::forked");
}

#[test]
#[ignore = "runs in a process of its own"]
fn forked_drop() {
    let Some(memory) = build(Paged::builder(4 * MIB).resident(MIB)) else { return };
    fill(&memory, Kind::Text);
    let mut memory = Some(memory);
    let code = in_child(|| {
        // The memory of the child may be at the address of that of its parent.
        let own: Vec<_> = (0..4).map(|_| Paged::builder(4 * MIB).resident(MIB).build().unwrap()).collect();
        own.iter().for_each(|own| fill(own, Kind::Noise));
        drop(memory.take());
        own.iter().for_each(|own| check(own, Kind::Noise));
        0
    });
    assert_eq!(code, 0, "the child has memory of its own");
    let memory = memory.unwrap();
    check(&memory, Kind::Text);
    assert!(memory.stats().resident <= memory.stats().resident_limit, "{}", memory.stats());
}

#[test]
fn a_child_that_drops_the_memory_leaves_that_of_its_parent() {
    passes_alone("processes::forked_drop");
}

#[test]
#[ignore = "runs in a process of its own"]
fn outlived() {
    let Some(memory) = build(Paged::builder(4 * MIB).resident(MIB)) else { return };
    fill(&memory, Kind::Text);
    // The child keeps the descriptors of its parent while that drops the memory.
    // SAFETY: the child only sleeps and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the child ends here, without destructors of its parent.
        unsafe {
            libc::usleep(300_000);
            libc::_exit(0);
        }
    }
    drop(memory);
    let mut status = 0;
    // SAFETY: the status is a live local.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}

#[test]
fn memory_is_dropped_while_a_child_lives() {
    passes_alone("processes::outlived");
}

#[test]
#[ignore = "ends by SIGABRT"]
fn closed() {
    let Some(memory) = build(Paged::builder(4 * MIB).resident(MIB)) else { return };
    fill(&memory, Kind::Noise);
    // SAFETY: the test is about a program that closes descriptors that it does not own.
    unsafe { libc::close_range(3, u32::MAX, 0) };
    let words = memory.as_slice::<AtomicU64>();
    loop {
        words.iter().step_by(WORDS).for_each(|word| _ = word.load(Relaxed));
    }
}

#[test]
fn a_program_that_closes_the_descriptors_ends_with_a_message() {
    let errors = dies_alone("processes::closed", libc::SIGABRT);
    assert!(errors.is_empty() || errors.contains("do not close descriptors"), "{errors}");
}

/// A store that allocates, as fork(3) does not let other threads.
struct AllocatingStore(TempFile);

impl Store for AllocatingStore {
    fn put(&self, pages: &[&Page], keys: &mut [u32]) -> Result<usize, StoreError> {
        std::hint::black_box(pages.iter().map(|page| Box::new(**page)).collect::<Vec<_>>());
        self.0.put(pages, keys)
    }

    fn get(&self, keys: &[u32], pages: &mut [Page]) -> Result<(), StoreError> {
        std::hint::black_box(vec![1; keys.len() * PAGE]);
        self.0.get(keys, pages)
    }

    fn forget(&self, keys: &[u32]) {
        self.0.forget(keys);
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn forked_while_used() {
    let store = || AllocatingStore(TempFile::in_dir(std::env::temp_dir()).unwrap());
    let Some(memory) = build(Paged::builder(4 * MIB).resident(MIB).store(store())) else { return };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Relaxed) {
                fill(&memory, Kind::Noise);
                check(&memory, Kind::Noise);
            }
        });
        scope.spawn(|| {
            // Threads of the library begin and end.
            while !is_done.load(Relaxed) {
                drop(Paged::builder(MIB).store(store()).build().unwrap());
            }
        });
        for _ in 0..300 {
            assert_eq!(in_child(|| 0), 0);
        }
        is_done.store(true, Relaxed);
    });
}

#[test]
fn a_process_forks_while_its_memory_is_used() {
    passes_alone("processes::forked_while_used");
}
