//! Many threads on one pool.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use fieldstone_blocks::{CHUNK_BYTES, Pool, TreeArray};

use crate::frames::TestFrames;
use crate::{MarkedBlock, random};

const ROUNDS: usize = if cfg!(miri) { 8 } else { 10_000 };

/// Allocates and frees at random, with up to `most` blocks at a time.
fn churn(pool: &Pool, seed: u64, most: usize) {
    let (mut state, mut held) = (seed, Vec::new());
    for round in 0..ROUNDS {
        if random(&mut state) % (2 * most) > held.len() {
            held.extend(MarkedBlock::new(pool, seed << 32 | round as u64));
        } else {
            let at = random(&mut state) % held.len().max(1);
            if at < held.len() {
                held.swap_remove(at);
            }
        }
    }
    held.iter().for_each(MarkedBlock::check);
}

/// Allocates every block of the pool without growing it. Returns their number.
fn drain(pool: &Pool) -> usize {
    pool.set_limit(0);
    let blocks: Vec<_> = std::iter::from_fn(|| MarkedBlock::new(pool, 1)).collect();
    let distinct: HashSet<_> = blocks.iter().map(|marked| marked.block).collect();
    assert_eq!(distinct.len(), blocks.len(), "no block is allocated twice");
    blocks.len()
}

#[test]
fn no_block_is_allocated_twice_and_none_is_lost() {
    for &block_bytes in if cfg!(miri) { &[256 << 10][..] } else { &[4 << 10, 32 << 10, 64 << 10, 2 << 20] } {
        let frames = TestFrames::with_limit(64);
        let pool = Pool::with_block_bytes(frames.clone(), block_bytes).unwrap();
        let threads = if cfg!(miri) { 3 } else { 8 };
        thread::scope(|scope| {
            for seed in 1..=threads {
                let pool = &pool;
                scope.spawn(move || churn(pool, seed, 2 * CHUNK_BYTES / block_bytes.max(32 << 10)));
            }
        });
        assert_eq!(pool.stats().used_bytes, 0);
        assert_eq!(drain(&pool) * block_bytes, pool.stats().held_bytes, "every block can be allocated");
        let held = pool.stats().held_bytes;
        assert_eq!(pool.release_free(), held);
        assert_eq!((frames.in_use(), pool.stats().held_bytes), (0, 0));
    }
}

#[test]
fn memory_is_released_while_other_threads_allocate() {
    for &block_bytes in if cfg!(miri) { &[256 << 10][..] } else { &[4 << 10, 64 << 10] } {
        let frames = TestFrames::with_limit(if cfg!(miri) { 8 } else { 24 });
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
        assert_eq!(pool.stats().held_bytes, frames.in_use() * CHUNK_BYTES);
        assert_eq!(drain(&pool) * block_bytes, pool.stats().held_bytes, "every block can be allocated");
        released.fetch_add(pool.release_free(), Ordering::Relaxed);
        assert!(released.load(Ordering::Relaxed) > 0);
        assert_eq!((frames.in_use(), pool.stats().held_bytes), (0, 0));
    }
}

/// With more threads than lanes, threads share lanes. A chunk that a lane lost would never be found
/// again.
#[test]
fn more_threads_than_lanes_lose_no_chunk() {
    const THREADS: usize = if cfg!(miri) { 17 } else { 40 };
    const BLOCKS: usize = if cfg!(miri) { 2 } else { 6 };
    let (waves, frames) = (if cfg!(miri) { 1 } else { 150 }, TestFrames::with_limit(10_000));
    let pool = Pool::with_block_bytes(frames.clone(), CHUNK_BYTES / 2).unwrap();
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..waves {
                    start.wait();
                    let blocks: Vec<_> = (0..BLOCKS).map(|_| MarkedBlock::new(&pool, 3).unwrap()).collect();
                    start.wait();
                    drop(blocks);
                }
            });
        }
    });
    // The blocks in use at once, and a chunk for each lane and for each thread that changes chunks.
    let enough = THREADS * BLOCKS / 2 + 16 + THREADS;
    assert!(frames.in_use() <= enough, "{} chunks, where {enough} are enough", frames.in_use());
}

#[test]
fn runs_and_releases_hide_no_blocks_from_others() {
    const BLOCK_BYTES: usize = if cfg!(miri) { 128 << 10 } else { 4096 };
    let frames = TestFrames::with_limit(6);
    let pool = Pool::with_block_bytes(frames, BLOCK_BYTES).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let hiding = scope.spawn(|| {
            let mut state = 5;
            while !done.load(Ordering::Relaxed) {
                pool.release_free();
                let count = if cfg!(miri) { 2 + random(&mut state) % 10 } else { 65 + random(&mut state) % 300 };
                if let Ok(start) = pool.alloc_run(count) {
                    drop(MarkedBlock::of(&pool, start, count * BLOCK_BYTES, 9));
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
    assert_eq!(drain(&pool) * BLOCK_BYTES, pool.stats().held_bytes, "every block can be allocated");
}

#[test]
fn snapshots_are_dropped_in_other_threads_while_the_array_is_written() {
    let pool = Pool::with_block_bytes(TestFrames::with_limit(64), 4096).unwrap();
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
