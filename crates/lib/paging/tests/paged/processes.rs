//! Forks, and programs that close descriptors.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_paging::Advice::Cold;
use fieldstone_paging::{Error, Paged};

use crate::fixture::{Kind, MIB, WORDS, build, check, dies_alone, fill, in_child, passes_alone, word};

#[test]
#[ignore = "runs in a process of its own"]
fn forked() {
    let Some(memory) = build(Paged::builder(4 * MIB).resident(MIB)) else { return };
    fill(&memory, Kind::Noise);
    let words = memory.as_slice::<AtomicU64>();
    for round in 0..5_u64 {
        let code = in_child(|| {
            let is_right = (1..words.len()).all(|index| words[index].load(Relaxed) == word(Kind::Noise, index));
            words.iter().for_each(|word| word.store(3, Relaxed));
            let is_own = words.iter().all(|word| word.load(Relaxed) == 3);
            let is_refused = memory.advise(0..MIB, Cold) == Err(Error::Forked)
                && memory.set_resident(MIB) == Err(Error::Forked)
                && memory.resident(0..MIB) == Err(Error::Forked);
            i32::from(!is_right) | i32::from(!is_own) << 1 | i32::from(!is_refused) << 2
        });
        let expected = if memory.stats().has_fork_copies { 0 } else { -libc::SIGSEGV };
        assert_eq!(code, expected, "round {round}: {}", memory.stats());
        words[0].store(round, Relaxed);
    }
    words[0].store(word(Kind::Noise, 0), Relaxed);
    check(&memory, Kind::Noise);
}

#[test]
fn a_forked_child_gets_plain_memory_with_the_same_contents() {
    passes_alone("processes::forked");
}

#[test]
#[ignore = "runs in a process of its own"]
fn forked_drop() {
    let Some(memory) = build(Paged::builder(4 * MIB).resident(MIB)) else { return };
    fill(&memory, Kind::Text);
    let mut memory = Some(memory);
    let code = in_child(|| {
        let address = memory.as_ref().map_or(0, Paged::address);
        drop(memory.take());
        // A child may have paged memory of its own.
        let own = Paged::builder(4 * MIB).resident(MIB).build().unwrap();
        fill(&own, Kind::Noise);
        check(&own, Kind::Noise);
        drop(own);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        i32::from(maps.contains(&format!("{address:x}-")))
    });
    assert_eq!(code, 0, "the child drops its copy");
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
