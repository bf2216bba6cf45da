//! Runs of adjacent blocks.

use std::ptr::NonNull;

use fieldstone_blocks::{CHUNK_BYTES, Error, FixedFrames, HeapFrames, MmapFrames, PageKind, Pool};

use crate::{MarkedBlock, random};

#[test]
fn runs_and_blocks_do_not_overlap() {
    for &block_bytes in if cfg!(miri) { &[128 << 10][..] } else { &[4 << 10, 16 << 10, 64 << 10] } {
        let pool = Pool::with_block_bytes(HeapFrames, block_bytes).unwrap();
        let (mut held, mut state) = (Vec::new(), 7);
        let most = CHUNK_BYTES / block_bytes;
        for round in 0..if cfg!(miri) { 15 } else { 3000 } {
            if held.len() > 20 || random(&mut state).is_multiple_of(3) && !held.is_empty() {
                held.swap_remove(random(&mut state) % held.len());
            } else {
                let count = random(&mut state) % most + 1;
                let count = if count.is_multiple_of(2) { count } else { count.min(3) };
                let start = pool.alloc_run(count).unwrap();
                held.push(MarkedBlock::of(&pool, start, count * block_bytes, round));
            }
        }
        held.iter().for_each(MarkedBlock::check);
        drop(held);
        assert_eq!(pool.stats().used_bytes, 0);
        assert_eq!(pool.alloc_run(0), Err(Error::NoRun { blocks: 0 }));
        assert!(matches!(pool.alloc_run(most + 1), Err(Error::NoRun { .. })), "the heap supplies single chunks");
        assert!(pool.alloc_run(usize::MAX).is_err());
        assert_eq!(pool.stats().used_bytes, 0);
    }
}

/// Allocates runs of several chunks: the rest of the last chunk is free, and everything is freed at
/// the end.
fn large_runs(pool: &Pool, chunks: usize) {
    let per_chunk = CHUNK_BYTES / pool.block_bytes();
    let count = (chunks - 1) * per_chunk + 1;
    let run = MarkedBlock::of(pool, pool.alloc_run(count).unwrap(), count * pool.block_bytes(), 3);
    assert_eq!(pool.stats().used_bytes, count * pool.block_bytes());
    assert_eq!(pool.stats().held_bytes, chunks * CHUNK_BYTES);
    let held = pool.stats().held_bytes;
    let rest: Vec<_> = (1..per_chunk).map(|_| MarkedBlock::new(pool, 4).unwrap()).collect();
    assert_eq!(pool.stats().held_bytes, held, "the rest of the last chunk is used");
    run.check();
    drop((run, rest));
    assert_eq!(pool.stats().used_bytes, 0);
    assert_eq!(pool.release_free(), chunks * CHUNK_BYTES);
    let again = MarkedBlock::of(pool, pool.alloc_run(count).unwrap(), count * pool.block_bytes(), 5);
    assert_eq!(pool.stats().held_bytes, chunks * CHUNK_BYTES, "released memory is reused");
    drop(again);
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not support mmap")]
fn large_runs_from_the_kernel() {
    for kind in [PageKind::Small4k, PageKind::Thp] {
        for block_bytes in [4 << 10, 64 << 10, 2 << 20] {
            let pool = Pool::with_block_bytes(MmapFrames::new(kind), block_bytes).unwrap();
            large_runs(&pool, 5);
            drop(pool);
            let pool = Pool::with_block_bytes(MmapFrames::new(kind), block_bytes).unwrap();
            // More chunks than the first span holds.
            large_runs(&pool, 40);
        }
    }
}

#[test]
fn large_runs_from_a_fixed_range() {
    let mut memory = vec![0_u8; 7 * CHUNK_BYTES];
    // SAFETY: the vector outlives the pool, which alone uses it.
    let frames = unsafe { FixedFrames::new(NonNull::new(memory.as_mut_ptr()).unwrap(), memory.len()) };
    let pool = Pool::new(frames).unwrap();
    large_runs(&pool, 5);
    pool.release_free();
    let whole = pool.alloc_run(6 * CHUNK_BYTES / pool.block_bytes()).unwrap();
    assert!(matches!(pool.alloc_run(64), Err(Error::NoRun { .. })));
    // SAFETY: the test holds no reference into the run.
    unsafe { pool.free_run(whole, 6 * CHUNK_BYTES / pool.block_bytes()).unwrap() };
    assert_eq!(pool.stats().used_bytes, 0);
    drop(pool);
    drop(memory);
}

#[test]
fn a_run_can_grow_downwards_from_the_end_of_a_chunk() {
    let pool = Pool::with_block_bytes(HeapFrames, 64 << 10).unwrap();
    let bytes = pool.block_bytes();
    let below = |block: NonNull<u8>, count: usize| NonNull::new(block.as_ptr().wrapping_sub(count * bytes)).unwrap();
    let chunk = |block: NonNull<u8>| block.addr().get() / CHUNK_BYTES;
    let last = pool.alloc_last().unwrap();
    assert!((last.addr().get() + bytes).is_multiple_of(CHUNK_BYTES));
    assert!(pool.alloc_at(below(last, 1)), "the block is free");
    assert!(!pool.alloc_at(below(last, 1)), "the block is in use");
    let other = pool.alloc_last().unwrap();
    assert_ne!(chunk(other), chunk(last), "a chunk with a block in use is not chosen");
    assert!(!pool.alloc_at(NonNull::from(&0_u8)), "not a block of the pool");
    assert_eq!(pool.stats().used_bytes, 3 * bytes);
    // SAFETY: all three blocks were allocated here, and nothing uses them.
    unsafe {
        pool.free_run(below(last, 1), 2).unwrap();
        pool.free(other).unwrap();
    }
    assert_eq!(pool.stats().used_bytes, 0);
}
