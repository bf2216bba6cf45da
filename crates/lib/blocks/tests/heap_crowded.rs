//! More threads than the heap has numbers for: the rest share one, under a lock, and the pool grows meanwhile.

#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use fieldstone_blocks::PageKind;
use fieldstone_blocks::heap::{GlobalHeap, Large};

#[global_allocator]
static HEAP: GlobalHeap = GlobalHeap::with(PageKind::Small4k, Large::Runs);

/// All numbers but the shared one.
const NUMBERED: usize = 1023;
const CHUNK_BYTES: usize = 2 << 20;

/// So many chunks, none of them touched.
fn chunks(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| Vec::with_capacity(CHUNK_BYTES)).collect()
}

#[test]
fn a_thread_without_a_number_grows_the_pools_tables() {
    // The pool's list of numbers is a slab's object of this thread by now, and moves to a larger one at 2048 chunks.
    // For that its class has to have free objects when the list grows under the pool's lock.
    for bytes in (4..15).map(|bits| 1 << bits) {
        drop([Vec::<u8>::with_capacity(bytes), Vec::with_capacity(bytes), Vec::with_capacity(bytes)]);
    }
    let held = chunks(1100);
    let parked = Arc::new(Barrier::new(NUMBERED + 1));
    let threads: Vec<_> = (0..NUMBERED)
        .map(|_| {
            let parked = parked.clone();
            let park = move || {
                let object = Box::new(1);
                parked.wait();
                parked.wait();
                drop(object);
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn(park).unwrap()
        })
        .collect();
    parked.wait();
    // Nearly full: the thread without a number, and not this one, is to move the list.
    let had = HEAP.heap().unwrap().pool().stats().held_bytes / CHUNK_BYTES;
    assert!((1100..2040).contains(&had), "{had}");
    let more = chunks(2040 - had);
    let (tell, told) = channel();
    let unnumbered = std::thread::spawn(move || {
        // Two to a slab, so that the pool grows while this thread has the shared number's lock.
        let slabs: Vec<Vec<u8>> = (0..64 * 100).map(|_| Vec::with_capacity(28 << 10)).collect();
        tell.send(slabs.len()).unwrap();
    });
    let Ok(count) = told.recv_timeout(Duration::from_secs(60)) else {
        // Nothing that allocates: the heap may be locked for good.
        std::process::abort();
    };
    assert_eq!((count, had + more.len()), (6400, 2040));
    assert_eq!(held.len(), 1100);
    unnumbered.join().unwrap();
    parked.wait();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
