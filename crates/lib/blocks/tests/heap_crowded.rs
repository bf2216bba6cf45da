//! More threads than the heap has numbers: the others share number 0 under a lock, while the pool
//! grows.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use fieldstone_blocks::PageKind;
use fieldstone_blocks::heap::{GlobalHeap, Large};

#[global_allocator]
static HEAP: GlobalHeap = GlobalHeap::with(PageKind::Small4k, Large::Runs);

/// All thread numbers but the shared one.
const NUMBERED: usize = 1023;
const CHUNK_BYTES: usize = 2 << 20;

/// Allocates `count` chunks without touching them.
fn chunks(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| Vec::with_capacity(CHUNK_BYTES)).collect()
}

#[test]
fn a_thread_without_a_number_grows_the_pools_tables() {
    // The pool's list of numbers is by now an object of this thread's slab, and moves to a larger
    // one at 2048 chunks. Its class must have free objects when the list grows under the pool's
    // lock.
    for bytes in (4..15).map(|bits| 1 << bits) {
        drop([Vec::<u8>::with_capacity(bytes), Vec::with_capacity(bytes), Vec::with_capacity(bytes)]);
    }
    let held = chunks(1100);
    let barrier = Arc::new(Barrier::new(NUMBERED + 1));
    let threads: Vec<_> = (0..NUMBERED)
        .map(|_| {
            let barrier = barrier.clone();
            let park = move || {
                let object = Box::new(1);
                barrier.wait();
                barrier.wait();
                drop(object);
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn(park).unwrap()
        })
        .collect();
    barrier.wait();
    // Nearly full: the thread without a number should move the list, not this one.
    let held_chunks = HEAP.heap().unwrap().pool().stats().held_bytes / CHUNK_BYTES;
    assert!((1100..2040).contains(&held_chunks), "{held_chunks}");
    let more = chunks(2040 - held_chunks);
    let (sender, receiver) = channel();
    let unnumbered = std::thread::spawn(move || {
        // Two objects per slab, so that the pool grows while this thread holds the shared number's
        // lock.
        let slabs: Vec<Vec<u8>> = (0..64 * 100).map(|_| Vec::with_capacity(28 << 10)).collect();
        sender.send(slabs.len()).unwrap();
    });
    let Ok(count) = receiver.recv_timeout(Duration::from_secs(60)) else {
        // Do not allocate: the heap may be deadlocked.
        std::process::abort();
    };
    assert_eq!((count, held_chunks + more.len()), (6400, 2040));
    assert_eq!(held.len(), 1100);
    unnumbered.join().unwrap();
    barrier.wait();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
