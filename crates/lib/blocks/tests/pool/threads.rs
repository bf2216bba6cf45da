//! Many threads on one pool.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use fieldstone_blocks::{CHUNK_BYTES, Pool, TreeArray};

use crate::frames::Watched;
use crate::{Marked, random};

const ROUNDS: usize = if cfg!(miri) { 8 } else { 10_000 };

/// Takes and gives at random, with up to `most` blocks at a time.
fn churn(pool: &Pool, seed: u64, most: usize) {
    let (mut state, mut held) = (seed, Vec::new());
    for round in 0..ROUNDS {
        if random(&mut state) % (2 * most) > held.len() {
            held.extend(Marked::new(pool, seed << 32 | round as u64));
        } else {
            let at = random(&mut state) % held.len().max(1);
            if at < held.len() {
                held.swap_remove(at);
            }
        }
    }
    held.iter().for_each(Marked::check);
}

/// Takes every block that the pool has without growing; how many.
fn drain(pool: &Pool) -> usize {
    pool.set_limit(0);
    let blocks: Vec<_> = std::iter::from_fn(|| Marked::new(pool, 1)).collect();
    let distinct: HashSet<_> = blocks.iter().map(|marked| marked.block).collect();
    assert_eq!(distinct.len(), blocks.len(), "no block is given twice");
    blocks.len()
}

#[test]
fn no_block_is_given_twice_and_none_is_lost() {
    for &block_bytes in if cfg!(miri) { &[256 << 10][..] } else { &[4 << 10, 32 << 10, 64 << 10, 2 << 20] } {
        let frames = Watched::with_most(64);
        let pool = Pool::with_block_bytes(frames.clone(), block_bytes).unwrap();
        let threads = if cfg!(miri) { 3 } else { 8 };
        thread::scope(|scope| {
            for seed in 1..=threads {
                let pool = &pool;
                scope.spawn(move || churn(pool, seed, 2 * CHUNK_BYTES / block_bytes.max(32 << 10)));
            }
        });
        assert_eq!(pool.stats().used_bytes, 0);
        assert_eq!(drain(&pool) * block_bytes, pool.stats().held_bytes, "every block can be had");
        let held = pool.stats().held_bytes;
        assert_eq!(pool.release_free(), held);
        assert_eq!((frames.out(), pool.stats().held_bytes), (0, 0));
    }
}

#[test]
fn memory_is_given_back_while_others_take_and_give() {
    for &block_bytes in if cfg!(miri) { &[256 << 10][..] } else { &[4 << 10, 64 << 10] } {
        let frames = Watched::with_most(if cfg!(miri) { 8 } else { 24 });
        let pool = Pool::with_block_bytes(frames.clone(), block_bytes).unwrap();
        let (done, released) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            let releasing: Vec<_> = (0..if cfg!(miri) { 1 } else { 2 })
                .map(|_| {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            released.fetch_add(pool.release_free(), Ordering::Relaxed);
                            thread::yield_now();
                        }
                    })
                })
                .collect();
            let churning: Vec<_> = (1..=if cfg!(miri) { 2 } else { 4 })
                .map(|seed| {
                    let pool = &pool;
                    scope.spawn(move || churn(pool, seed, if cfg!(miri) { 3 } else { 3 * CHUNK_BYTES / block_bytes }))
                })
                .collect();
            churning.into_iter().for_each(|thread| thread.join().unwrap());
            done.store(true, Ordering::Relaxed);
            releasing.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(pool.stats().used_bytes, 0);
        assert_eq!(pool.stats().held_bytes, frames.out() * CHUNK_BYTES);
        assert_eq!(drain(&pool) * block_bytes, pool.stats().held_bytes, "every block can be had");
        released.fetch_add(pool.release_free(), Ordering::Relaxed);
        assert!(released.load(Ordering::Relaxed) > 0);
        assert_eq!((frames.out(), pool.stats().held_bytes), (0, 0));
    }
}

/// Threads share lanes when there are more of them than lanes. A chunk that its lane forgets would not be found again.
#[test]
fn more_threads_than_lanes_forget_no_chunk() {
    const THREADS: usize = if cfg!(miri) { 17 } else { 40 };
    const BLOCKS: usize = if cfg!(miri) { 2 } else { 6 };
    let (waves, frames) = (if cfg!(miri) { 1 } else { 150 }, Watched::with_most(10_000));
    let pool = Pool::with_block_bytes(frames.clone(), CHUNK_BYTES / 2).unwrap();
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..waves {
                    start.wait();
                    let blocks: Vec<_> = (0..BLOCKS).map(|_| Marked::new(&pool, 3).unwrap()).collect();
                    start.wait();
                    drop(blocks);
                }
            });
        }
    });
    // What all use at once, and a chunk for each lane and for each thread on its way.
    let enough = THREADS * BLOCKS / 2 + 16 + THREADS;
    assert!(frames.out() <= enough, "{} chunks, where {enough} are enough", frames.out());
}

#[test]
fn runs_and_releases_hide_no_blocks_from_others() {
    const BLOCK_BYTES: usize = if cfg!(miri) { 128 << 10 } else { 4096 };
    let frames = Watched::with_most(6);
    let pool = Pool::with_block_bytes(frames, BLOCK_BYTES).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let hiding = scope.spawn(|| {
            let mut state = 5;
            while !done.load(Ordering::Relaxed) {
                pool.release_free();
                let count = if cfg!(miri) { 2 + random(&mut state) % 10 } else { 65 + random(&mut state) % 300 };
                if let Ok(start) = pool.alloc_run(count) {
                    drop(Marked::of(&pool, start, count * BLOCK_BYTES, 9));
                }
            }
        });
        let churning: Vec<_> = [11, 12]
            .map(|seed| {
                let pool = &pool;
                scope.spawn(move || churn(pool, seed, 700))
            })
            .into_iter()
            .collect();
        churning.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::Relaxed);
        hiding.join().unwrap();
    });
    assert_eq!(drain(&pool) * BLOCK_BYTES, pool.stats().held_bytes, "every block can be had");
}

#[test]
fn snapshots_go_in_other_threads_while_the_array_is_written() {
    let pool = Pool::with_block_bytes(Watched::with_most(64), 4096).unwrap();
    let mut array = TreeArray::new_in(&pool);
    array.extend((0..300_u32).map(|number| vec![number; 3]));
    thread::scope(|scope| {
        for round in 0..if cfg!(miri) { 4 } else { 400_u32 } {
            let (snapshot, sum) = (array.snapshot(), array.iter().map(|element| u64::from(element[0])).sum::<u64>());
            let twin = (round % 3 == 0).then(|| snapshot.clone());
            scope.spawn(move || {
                assert_eq!(snapshot.iter().map(|element| u64::from(element[0])).sum::<u64>(), sum);
                drop(snapshot);
                drop(twin);
            });
            array[(round * 37 % 300) as usize][0] += 1;
            array.update([(3, 1), (250, 2)], |element, more| element[0] += more);
        }
    });
    drop(array);
    assert_eq!(pool.stats().used_bytes, 0);
}
