//! Models of the structures that threads change without a lock, under loom, which runs every
//! interleaving with a few preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p fieldstone-guard --no-default-features --lib loom_model`

use loom::sync::Arc;
use loom::thread;

use crate::finding::{Event, StackId};
use crate::slots::model::{FreedStack, Phase, Placement, Record, StackTable};
use crate::sync::{AtomicU32, AtomicUsize, Ordering};

const fn placement(bytes: usize) -> Placement {
    Placement { bytes, alignment: 4, is_left: false }
}

const fn event(number: u32) -> Event {
    Event { stack: StackId(number), thread: number }
}

fn records(count: usize) -> Vec<Record> {
    (0..count).map(|_| Record::default()).collect()
}

#[test]
fn one_of_two_frees_succeeds() {
    loom::model(|| {
        let record = Arc::new(Record::default());
        assert!(record.allocate(placement(8), event(1)));
        let free = |record: Arc<Record>, number| {
            let view = record.view();
            record.free(&view, event(number))
        };
        let other = Arc::clone(&record);
        let thread = thread::spawn(move || free(other, 2));
        let own = free(Arc::clone(&record), 3);
        let theirs = thread.join().unwrap();
        assert!(own != theirs, "exactly one");
        assert_eq!(record.view().freed().map(|freed| freed.thread), Some(if own { 3 } else { 2 }));
    });
}

#[test]
fn a_view_never_mixes_two_objects() {
    loom::model(|| {
        let record = Arc::new(Record::default());
        assert!(record.allocate(placement(1), event(1)));
        let writer = Arc::clone(&record);
        let thread = thread::spawn(move || {
            let view = writer.view();
            assert!(writer.free(&view, event(1)) && writer.allocate(placement(2), event(2)));
        });
        let view = record.view();
        if view.phase() != Phase::Writing {
            let bytes = view.placement.bytes;
            assert_eq!(view.allocated, event(bytes as u32));
            assert!(view.freed().is_none_or(|freed| freed == event(1) && bytes == 1));
        }
        thread.join().unwrap();
    });
}

#[test]
fn no_freed_slot_is_lost_or_taken_twice() {
    loom::model(|| {
        let shared = Arc::new((FreedStack::default(), records(3)));
        let push = |numbers: &'static [u32]| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || numbers.iter().for_each(|&slot| shared.0.push(slot, &shared.1)))
        };
        let threads = [push(&[0]), push(&[1, 2])];
        let mut found = Vec::new();
        let mut take = || {
            let mut list = shared.0.take();
            found.extend(std::iter::from_fn(|| list.pop(&shared.1)));
        };
        take();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        take();
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2]);
    });
}

#[test]
fn a_stack_that_two_threads_insert_is_complete_and_has_one_number() {
    loom::model(|| {
        let memory = Arc::new((
            [AtomicU32::new(0)],
            (0..24).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>(),
            AtomicUsize::new(0),
            AtomicUsize::new(0),
        ));
        let insert = |memory: &([AtomicU32; 1], Vec<AtomicUsize>, AtomicUsize, AtomicUsize), frames: &[usize]| {
            let table = StackTable { heads: &memory.0, words: &memory.1, used: &memory.2, count: &memory.3 };
            let id = table.insert(frames, |_| true);
            let mut stored = [0; 4];
            let count = table.frames(id, &mut stored);
            assert_eq!(&stored[..count], frames);
            id
        };
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || insert(&other, &[5, 6]));
        let own = [insert(&memory, &[7]), insert(&memory, &[5, 6])];
        assert_eq!(thread.join().unwrap(), own[1]);
        assert_ne!(own[0], own[1]);
        assert_eq!(memory.3.load(Ordering::Relaxed), 2);
    });
}
