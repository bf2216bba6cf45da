//! Tests the heap against a naive model, with threads, at its limit, and with invalid frees.

#![cfg(all(feature = "std", not(loom)))]
#![allow(unsafe_code, reason = "an allocator's contract is unsafe")]
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::cast_possible_truncation, reason = "any byte value can fill an object")]

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fieldstone_blocks::heap::{Heap, Large};
use fieldstone_blocks::{CHUNK_BYTES, Error, HeapFrames, MmapFrames, PageKind, Pool};
use proptest::prelude::*;

fn heap(block_bytes: usize) -> Heap {
    // Miri maps no memory.
    let pool = if cfg!(miri) {
        Pool::with_block_bytes(HeapFrames, block_bytes)
    } else {
        Pool::with_block_bytes(MmapFrames::new(PageKind::Small4k), block_bytes)
    };
    Heap::new(&pool.unwrap(), Large::Runs).unwrap()
}

/// Serialises tests whose threads end: a test waits in `collect_all` for numbers that another
/// test's threads may hold.
static SERIAL: Mutex<()> = Mutex::new(());

fn serialise() -> MutexGuard<'static, ()> {
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Collects until nothing is left. A thread of another test may have inherited the number and queue
/// of a thread that ended here.
fn collect_all(heap: &Heap, _serial: &MutexGuard<'_, ()>) {
    let start = Instant::now();
    while collected(heap) != (0, 0, 0) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?} remains", collected(heap));
        std::thread::yield_now();
    }
}

/// What remains after a collection: bytes in objects, bytes held, and bytes used of the pool.
fn collected(heap: &Heap) -> (usize, usize, usize) {
    heap.collect();
    let stats = heap.stats();
    (stats.used_bytes, stats.held_bytes, heap.pool().stats().used_bytes)
}

fn layout(bytes: usize, align: usize) -> Layout {
    Layout::from_size_align(bytes, align).unwrap()
}

/// An object of the model: its address, and the byte that fills it.
struct Object {
    start: NonNull<u8>,
    layout: Layout,
    fill: u8,
}

// SAFETY: the value owns the object.
unsafe impl Send for Object {}

impl Object {
    fn new(heap: &Heap, layout: Layout, fill: u8) -> Self {
        let start = heap.alloc(layout).unwrap();
        assert!(start.addr().get().is_multiple_of(layout.align()));
        // SAFETY: the object was just allocated with this many bytes.
        unsafe { start.write_bytes(fill, layout.size()) };
        Self { start, layout, fill }
    }

    /// Detects an overlap with another object, or a link written into a live one.
    fn check(&self, bytes: usize) {
        // SAFETY: this many bytes were written there.
        let contents = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), bytes) };
        // Compare slices: comparing byte by byte is slow under Miri.
        assert!(*contents == *vec![self.fill; bytes], "{:?}: {contents:?}", self.layout);
    }

    fn realloc(mut self, heap: &Heap, bytes: usize) -> Self {
        // SAFETY: this value owns the object, which has this layout.
        self.start = unsafe { heap.realloc(self.start, self.layout, bytes) }.unwrap();
        self.check(bytes.min(self.layout.size()));
        Self::refill(self, bytes)
    }

    fn refill(self, bytes: usize) -> Self {
        // SAFETY: this value owns the object, which has this many bytes.
        unsafe { self.start.write_bytes(self.fill, bytes) };
        Self { layout: layout(bytes, self.layout.align()), ..self }
    }

    fn free(self, heap: &Heap) {
        self.check(self.layout.size());
        // SAFETY: this value owns the object and is consumed.
        unsafe { heap.free(self.start, self.layout) };
    }
}

#[derive(Clone, Debug)]
enum HeapStep {
    Alloc { bytes: usize, align: usize },
    Realloc { which: usize, bytes: usize },
    Free { which: usize },
    Collect,
}

fn bytes() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 1_usize..300, 3 => 300_usize..9000, 1 => 9000_usize..if cfg!(miri) { 20_000 } else { 200_000 }]
}

fn step() -> impl Strategy<Value = HeapStep> {
    prop_oneof![
        8 => (bytes(), 0_u32..9).prop_map(|(bytes, shift)| HeapStep::Alloc { bytes, align: 1 << shift }),
        1 => (1_usize..100, 9_u32..if cfg!(miri) { 15 } else { 18 }).prop_map(|(bytes, shift)| HeapStep::Alloc { bytes, align: 1 << shift }),
        3 => (any::<usize>(), bytes()).prop_map(|(which, bytes)| HeapStep::Realloc { which, bytes }),
        6 => any::<usize>().prop_map(|which| HeapStep::Free { which }),
        1 => Just(HeapStep::Collect),
    ]
}

fn run(steps: Vec<HeapStep>, block_bytes: usize) {
    let heap = heap(block_bytes);
    let mut live = Vec::<Object>::new();
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            HeapStep::Alloc { bytes, align } => live.push(Object::new(&heap, layout(bytes, align), number as u8)),
            HeapStep::Realloc { which, bytes } if !live.is_empty() => {
                let object = live.swap_remove(which % live.len());
                live.push(object.realloc(&heap, bytes));
            }
            HeapStep::Free { which } if !live.is_empty() => live.swap_remove(which % live.len()).free(&heap),
            HeapStep::Collect => drop(heap.collect()),
            HeapStep::Realloc { .. } | HeapStep::Free { .. } => {}
        }
        let requested: usize = live.iter().map(|object| object.layout.size()).sum();
        let stats = heap.stats();
        assert!(stats.used_bytes >= requested && stats.held_bytes >= stats.used_bytes, "{requested}: {stats:?}");
    }
    let mut ends = BTreeMap::new();
    for object in &live {
        ends.insert(object.start, object.start.addr().get() + object.layout.size());
    }
    assert!(ends.values().zip(ends.keys().skip(1)).all(|(&end, next)| end <= next.addr().get()));
    live.into_iter().for_each(|object| object.free(&heap));
    assert_eq!(collected(&heap), (0, 0, 0));
}

const MAX_STEPS: usize = if cfg!(miri) { 24 } else { 400 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 48 }))]

    #[test]
    fn objects_keep_their_bytes(steps in prop::collection::vec(step(), 1..MAX_STEPS), large in any::<bool>()) {
        run(steps, if large { 65_536 } else { 4096 });
    }
}

#[test]
fn a_small_heap_under_miri() {
    let serial = serialise();
    let pool = Pool::with_block_bytes(HeapFrames, 4096).unwrap();
    let heap = Heap::new(&pool, Large::Runs).unwrap();
    let mut live: Vec<_> = (0..40).map(|at| Object::new(&heap, layout(1 + at * 37 % 300, 8), at as u8)).collect();
    live.push(Object::new(&heap, layout(10_000, 16), 3));
    live.push(Object::new(&heap, layout(100, 16_384), 4));
    let kept = live.split_off(20);
    std::thread::scope(|scope| {
        // Another thread frees objects and ends.
        scope.spawn(|| kept.into_iter().for_each(|object| object.free(&heap))).join().unwrap();
    });
    let mut live: Vec<_> = live.into_iter().map(|object| object.realloc(&heap, 500)).collect();
    live.extend((0..20).map(|at| Object::new(&heap, layout(48, 8), at)));
    live.into_iter().for_each(|object| object.free(&heap));
    collect_all(&heap, &serial);
}

#[test]
fn threads_free_each_others_objects_and_end() {
    const OBJECTS: usize = if cfg!(miri) { 12 } else { 20_000 };
    let serial = serialise();
    let heap = heap(65_536);
    for _ in 0..if cfg!(miri) { 2 } else { 3 } {
        std::thread::scope(|scope| {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| mpsc::sync_channel::<Object>(64)).unzip();
            let mut threads = Vec::new();
            for (number, receiver) in receivers.into_iter().enumerate() {
                let (heap, to) = (heap.clone(), senders[(number + 1) % 4].clone());
                threads.push(scope.spawn(move || {
                    for at in 0..OBJECTS {
                        let object = Object::new(&heap, layout(1 + (at * 37) % 500, 8), at as u8);
                        if let Err(mpsc::TrySendError::Full(object)) = to.try_send(object) {
                            object.free(&heap);
                        }
                        receiver.try_iter().take(2).for_each(|object| object.free(&heap));
                    }
                    drop(to);
                    receiver.iter().for_each(|object| object.free(&heap));
                }));
            }
            drop(senders);
            // A scope alone does not wait for the threads' destructors.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
    collect_all(&heap, &serial);
}

#[test]
fn objects_outlive_their_thread_and_its_slabs_are_reused() {
    const OBJECTS: usize = if cfg!(miri) { 20 } else { 1000 };
    let serial = serialise();
    let heap = heap(65_536);
    let mut kept = Vec::new();
    for round in 0..if cfg!(miri) { 2 } else { 20_u8 } {
        let left = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let objects = (0..OBJECTS).map(|_| Object::new(&heap, layout(64, 8), round));
                    let (keep, free): (Vec<_>, Vec<_>) = objects.enumerate().partition(|(at, _)| at % 10 == 0);
                    free.into_iter().for_each(|(_, object)| object.free(&heap));
                    keep
                })
                .join()
                .unwrap()
        });
        kept.extend(left.into_iter().map(|(_, object)| object));
    }
    // Threads of other tests take numbers too, so some threads here had a new number.
    assert!(heap.stats().held_bytes <= 16 * 65_536, "{:?}", heap.stats());
    assert_eq!(heap.stats().used_bytes, kept.len() * 64);
    kept.into_iter().for_each(|object| object.free(&heap));
    collect_all(&heap, &serial);
}

#[test]
fn thread_destructors_can_allocate_and_free() {
    let serial = serialise();
    struct Late(Heap, Option<Object>);
    impl Drop for Late {
        fn drop(&mut self) {
            let again = Object::new(&self.0, layout(100, 8), 9);
            if let Some(object) = self.1.take() {
                object.free(&self.0);
            }
            again.free(&self.0);
        }
    }
    std::thread_local! {
        static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) };
    }
    let heap = heap(65_536);
    for _ in 0..3 {
        let heap = heap.clone();
        let thread = std::thread::spawn(move || {
            // Registers the destructor before the heap's.
            LATE.set(None);
            let object = Object::new(&heap, layout(50, 8), 8);
            LATE.set(Some(Late(heap, Some(object))));
        });
        // A scope does not wait for the thread's destructors.
        thread.join().unwrap();
    }
    collect_all(&heap, &serial);
}

#[test]
fn an_exhausted_heap_recovers_when_memory_is_freed() {
    const CHUNKS: usize = if cfg!(miri) { 1 } else { 2 };
    const OBJECT_BYTES: usize = if cfg!(miri) { 30_720 } else { 1024 };
    let serial = serialise();
    let heap = heap(65_536);
    heap.pool().set_limit(CHUNKS * CHUNK_BYTES);
    let small = layout(OBJECT_BYTES - 24, 8);
    let mut live = Vec::new();
    let error = loop {
        match heap.alloc(small) {
            Ok(start) => live.push(Object { start, layout: small, fill: 0 }.refill(small.size())),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Exhausted { .. }), "{error}");
    assert!(
        live.len() * OBJECT_BYTES > CHUNKS * CHUNK_BYTES * 9 / 10,
        "nearly all memory was allocated: {}",
        live.len()
    );
    assert!(heap.alloc(layout(100_000, 8)).is_err());
    let freed = live.split_off(live.len() / 2);
    std::thread::scope(|scope| {
        scope.spawn(|| freed.into_iter().for_each(|object| object.free(&heap))).join().unwrap();
    });
    live.push(Object::new(&heap, layout(200, 8), 1));
    live.push(Object::new(&heap, layout(200_000, 8), 2));
    live.into_iter().for_each(|object| object.free(&heap));
    collect_all(&heap, &serial);
}

#[test]
fn large_objects_are_refused_or_are_runs_that_are_reused() {
    let heap = heap(65_536);
    let refusing = Heap::new(heap.pool(), Large::Refuse).unwrap();
    let error = refusing.alloc(layout(65_537, 8)).unwrap_err();
    assert_eq!(error, Error::Refused { bytes: 65_537, largest_bytes: 65_536 });
    Object::new(&refusing, layout(65_536, 8), 1).free(&refusing);
    // Miri's frames supply single chunks only.
    for bytes in [3 * CHUNK_BYTES, 5 * CHUNK_BYTES + 1].into_iter().filter(|_| !cfg!(miri)) {
        for _ in 0..20 {
            Object::new(&heap, layout(bytes, 8), 1).free(&heap);
        }
    }
    let held = heap.pool().stats().held_bytes;
    assert!(held <= 10 * CHUNK_BYTES, "runs of chunks are reused: {held}");
    let shorter = Object::new(&heap, layout(500_000, 8), 7);
    let start = shorter.start;
    let shorter = shorter.realloc(&heap, 100_000);
    assert_eq!((shorter.start, heap.stats().used_bytes), (start, 131_072), "in place");
    shorter.free(&heap);
}

#[cfg(feature = "allocator-api2")]
#[test]
fn collections_allocate_from_a_heap() {
    use allocator_api2::boxed::Box;
    use allocator_api2::vec::Vec;
    let pool = Pool::with_block_bytes(HeapFrames, 4096).unwrap();
    let heap = Heap::new(&pool, Large::Runs).unwrap();
    let mut vector = Vec::new_in(&heap);
    (0..3000_u32).for_each(|number| vector.push(Box::new_in(number, heap.clone())));
    vector.truncate(1000);
    vector.shrink_to_fit();
    assert!(vector.iter().zip(0..).all(|(number, wanted)| **number == wanted));
    assert_eq!(
        heap.stats().used_bytes,
        1000 * 16 + (1000 * size_of::<Box<u32, Heap>>()).next_multiple_of(4096),
        "boxes, and a run"
    );
    drop(vector);
    assert_eq!(heap.stats().used_bytes, 0);
}

#[test]
fn a_dropped_heap_frees_its_slabs() {
    let heap = heap(4096);
    let pool = heap.pool().clone();
    for bytes in (1..1500).step_by(if cfg!(miri) { 100 } else { 1 }) {
        heap.alloc(layout(bytes, 8)).unwrap();
    }
    assert!(pool.stats().used_bytes > if cfg!(miri) { 10 * 4096 } else { 1 << 20 });
    drop(heap);
    assert_eq!(pool.stats().used_bytes, 0);
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn an_invalid_free_ends_the_process() {
    let cases: &[&str] = if cfg!(debug_assertions) {
        &["twice", "twice later", "run twice", "foreign", "inside", "remote twice"]
    } else {
        &["twice", "run twice"]
    };
    for case in cases {
        let test = std::env::current_exe().unwrap();
        let run = Command::new(test)
            .args(["--exact", "wrong_frees", "--ignored", "--nocapture"])
            .env("WRONG_FREE", case)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&run.stderr);
        assert!(
            run.status.code().is_none() && stderr.contains("the heap is corrupt"),
            "{case}: {:?} {stderr}",
            run.status
        );
    }
}

/// Run by the test above, in its own process.
#[test]
#[ignore = "ends the process"]
fn wrong_frees() {
    let Ok(case) = std::env::var("WRONG_FREE") else { return };
    let heap = heap(65_536);
    let small = layout(100, 8);
    let large = layout(300_000, 8);
    let (a, b, run) = (heap.alloc(small).unwrap(), heap.alloc(small).unwrap(), heap.alloc(large).unwrap());
    let mut outside = [0_u64; 32];
    let outside = NonNull::from(&mut outside[1]).cast::<u8>();
    // SAFETY: the frees are invalid on purpose. The heap detects each before it accesses memory
    // that it must not.
    unsafe {
        match case.as_str() {
            "twice" => (0..2).for_each(|_| heap.free(a, small)),
            "twice later" => [a, b, a].iter().for_each(|&object| heap.free(object, small)),
            "run twice" => (0..2).for_each(|_| heap.free(run, large)),
            "foreign" => heap.free(outside, small),
            "inside" => heap.free(a.add(8), small),
            "remote twice" => {
                let address = a.addr();
                let free = || heap.free(NonNull::with_exposed_provenance(address), small);
                std::thread::scope(|scope| drop(scope.spawn(free)));
                heap.free(a, small);
            }
            other => panic!("no case {other}"),
        }
    }
}
