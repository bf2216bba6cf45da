//! Threads and forks.

#![allow(unsafe_code, reason = "frees objects, forks")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes in tests are small"
)]

mod common;

use std::alloc::Layout;
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use common::*;
use fieldstone_guard::{Kind, Slots, Trace};

/// An object that another thread may free.
#[derive(PartialEq, Eq, Hash)]
struct Owned(NonNull<u8>);

// SAFETY: any thread may use and free an object.
unsafe impl Send for Owned {}

#[test]
fn threads_allocate_and_free_each_others_objects() {
    let slots = Slots::builder().memory(64 << 20).quarantine(32).build().unwrap();
    let live = Mutex::new(HashSet::new());
    thread::scope(|scope| {
        let mut senders: Vec<mpsc::Sender<Owned>> = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..4 {
            let (sender, receiver) = mpsc::channel();
            senders.push(sender);
            receivers.push(receiver);
        }
        for (number, receiver) in receivers.into_iter().enumerate() {
            let next = senders[(number + 1) % 4].clone();
            let (slots, live) = (&slots, &live);
            scope.spawn(move || {
                for round in 0..4000 {
                    let bytes = 1 + (round * 37 + number * 1000) % 6000;
                    let frames = [round % 50, number];
                    let trace = Trace { thread: 0, frames: &frames };
                    let object = slots.alloc_traced(Layout::from_size_align(bytes, 8).unwrap(), trace).unwrap();
                    assert!(live.lock().unwrap().insert(object.addr()), "one object at an address");
                    assert_eq!((read(object, 0), read(object, bytes - 1)), (0, 0));
                    write(object, 0, 1);
                    // The other thread may have ended.
                    let _ = next.send(Owned(object));
                    if let Ok(Owned(object)) = receiver.try_recv() {
                        assert!(live.lock().unwrap().remove(&object.addr()));
                        free(slots, object);
                    }
                }
                drop(next);
            });
        }
    });
    let stats = slots.stats();
    assert_eq!((stats.allocated, stats.refused, stats.unprotected), (16_000, 0, 0));
    assert_eq!(stats.live, live.lock().unwrap().len());
    assert_eq!(stats.stacks, 200);
}

#[test]
fn of_two_frees_at_the_same_time_one_is_a_double_free() {
    let slots = Slots::builder().quarantine(4).build().unwrap();
    let (round, object) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let findings = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for turn in 1..=2000 {
                    while round.load(Ordering::Acquire) != turn {
                        std::hint::spin_loop();
                        thread::yield_now();
                    }
                    let object = NonNull::new(std::ptr::with_exposed_provenance_mut(object.load(Ordering::Relaxed)));
                    // SAFETY: no thread uses the object any more.
                    if let Err(finding) = unsafe { slots.free(object.unwrap()) } {
                        assert_eq!(finding.kind, Kind::DoubleFree);
                        findings.fetch_add(1, Ordering::Relaxed);
                    }
                    findings.fetch_add(1 << 32, Ordering::Release);
                }
            });
        }
        for turn in 1..=2000 {
            object.store(alloc(&slots, 48).as_ptr().expose_provenance(), Ordering::Relaxed);
            round.store(turn, Ordering::Release);
            while findings.load(Ordering::Acquire) >> 32 != 2 * turn {
                thread::yield_now();
            }
        }
    });
    assert_eq!(findings.load(Ordering::Relaxed) & 0xffff_ffff, 2000);
    assert_eq!(slots.stats().live, 0);
}

#[test]
fn a_child_frees_objects_of_its_parent_and_keeps_their_guards() {
    let slots = Slots::builder().build().unwrap();
    let objects: Vec<_> = (0..100).map(|_| alloc(&slots, 40)).collect();
    let gone = alloc(&slots, 40);
    write(objects[0], 0, 42);
    free(&slots, gone);
    slots.before_fork();
    assert_eq!(slots.alloc(layout(8, 8)), None, "only until the fork is over");
    free(&slots, objects[99]);
    let status = in_child(|| {
        slots.after_fork_child();
        assert_eq!(read(objects[0], 0), 42);
        assert!(!is_accessible(gone.as_ptr().expose_provenance()));
        assert_eq!(slots.explain(gone.as_ptr().expose_provenance()).unwrap().kind, Kind::UseAfterFree);
        objects[..99].iter().for_each(|&object| free(&slots, object));
        assert!(objects.iter().all(|object| !is_accessible(object.as_ptr().expose_provenance())));
        let own = alloc(&slots, 40);
        assert!(!is_accessible((own.as_ptr().expose_provenance() & !(PAGE - 1)) + PAGE));
    });
    slots.after_fork_parent();
    assert_eq!(status, 0);
    assert_eq!(read(objects[0], 0), 42, "the child's frees are its own");
    objects[..99].iter().for_each(|&object| free(&slots, object));
    let _ = alloc(&slots, 8);
}

#[test]
fn a_fork_while_another_thread_allocates_leaves_the_child_usable() {
    let slots = Slots::builder().quarantine(16).build().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                round += 1;
                let frames = [round];
                let trace = Trace { thread: 0, frames: &frames };
                // The parent may be forking.
                let Some(object) = slots.alloc_traced(layout(1 + round % 9000, 8), trace) else { continue };
                free(&slots, object);
            }
        });
        for _ in 0..200 {
            slots.before_fork();
            let status = in_child(|| {
                slots.after_fork_child();
                for bytes in [10, 5000] {
                    let object = alloc(&slots, bytes);
                    free(&slots, object);
                }
            });
            slots.after_fork_parent();
            if status != 0 {
                done.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The lock's owner does not exist in such a child. It must not wait forever.
#[test]
fn a_child_of_a_fork_that_was_not_announced_does_not_hang() {
    let slots = Slots::builder().build().unwrap();
    let object = alloc(&slots, 8);
    slots.before_fork();
    let status = in_child(|| {
        assert_eq!(slots.alloc(layout(8, 8)), None);
        free(&slots, object);
    });
    slots.after_fork_parent();
    assert_eq!(status, 0);
}
