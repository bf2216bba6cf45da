//! Loom tests of the lock-free parts: loom runs every interleaving of up to three preemptions and
//! every value a load may return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p fieldstone-blocks --test loom`
//!
//! Chunks and lanes are those of the library, but fewer. Loom does not track raw blocks, so each
//! block gets a loom cell for its contents. The cell detects unsynchronised use by two threads.

#![cfg(loom)]
#![allow(unsafe_code, reason = "uses raw blocks and cells")]
#![expect(clippy::unwrap_used, reason = "a test")]
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use fieldstone_blocks::{CHUNK_BYTES, HeapFrames, Pool, TreeArray};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Runs every interleaving of up to `preemptions` preemptions.
fn explore(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

/// A pool with all its blocks free, and a cell for the contents of each.
struct TestPool {
    pool: Pool,
    blocks: Vec<(NonNull<u8>, UnsafeCell<u32>)>,
}

// SAFETY: blocks are only compared. A cell is used by its block's holder, which loom checks.
unsafe impl Send for TestPool {}
// SAFETY: blocks are only compared. A cell is used by its block's holder, which loom checks.
unsafe impl Sync for TestPool {}

impl TestPool {
    fn new(block_bytes: usize, chunks: usize) -> Arc<Self> {
        let pool = Pool::with_block_bytes(HeapFrames, block_bytes).unwrap();
        pool.set_limit(chunks * CHUNK_BYTES);
        let blocks: Vec<_> =
            std::iter::from_fn(|| pool.alloc().ok()).map(|block| (block, UnsafeCell::new(0))).collect();
        assert_eq!(blocks.len() * block_bytes, chunks * CHUNK_BYTES);
        let world = Self { pool, blocks };
        world.blocks.iter().for_each(|&(block, _)| world.free(block));
        Arc::new(world)
    }

    fn free(&self, block: NonNull<u8>) {
        // SAFETY: the block was allocated and is not used any more.
        unsafe { self.pool.free(block).unwrap() };
    }

    fn touch(&self, block: NonNull<u8>) {
        let (_, cell) = self.blocks.iter().find(|&&(there, _)| there == block).unwrap();
        // SAFETY: the block's holder owns the cell, which loom checks.
        cell.with_mut(|contents| unsafe { *contents += 1 });
    }

    /// Allocates, uses and frees a block. Returns whether there was one.
    fn use_one(&self) -> bool {
        let Ok(block) = self.pool.alloc() else { return false };
        self.touch(block);
        self.free(block);
        true
    }

    /// Checks that every block can be allocated once.
    fn check_whole(&self) {
        assert_eq!(self.pool.stats().used_bytes, 0);
        let mut all: Vec<_> = std::iter::from_fn(|| self.pool.alloc().ok()).collect();
        all.iter().for_each(|&block| self.touch(block));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), self.blocks.len(), "no block is lost or allocated twice");
        all.into_iter().for_each(|block| self.free(block));
    }
}

#[test]
fn no_block_is_allocated_twice_and_none_is_lost() {
    explore(3, || {
        let world = TestPool::new(CHUNK_BYTES / 2, 1);
        let other = world.clone();
        let theirs = thread::spawn(move || assert!(other.use_one() && other.use_one(), "there are two blocks for two"));
        assert!(world.use_one());
        theirs.join().unwrap();
        world.check_whole();
    });
}

#[test]
fn three_threads_on_two_lanes_and_two_chunks() {
    explore(2, || {
        let world = TestPool::new(CHUNK_BYTES, 2);
        let others = [world.clone(), world.clone()];
        let threads = others.map(|world| thread::spawn(move || world.use_one()));
        world.use_one();
        threads.into_iter().for_each(|thread| assert!(thread.join().is_ok()));
        world.check_whole();
    });
}

#[test]
fn a_chunk_marked_full_while_a_block_is_freed_is_found() {
    explore(3, || {
        let world = TestPool::new(CHUNK_BYTES, 2);
        let held = [world.pool.alloc().unwrap(), world.pool.alloc().unwrap()];
        let other = world.clone();
        // Marks full chunks while their blocks are freed.
        let searching = thread::spawn(move || {
            other.use_one();
        });
        for block in held {
            world.touch(block);
            world.free(block);
        }
        searching.join().unwrap();
        world.check_whole();
    });
}

#[test]
fn memory_is_released_while_another_thread_allocates() {
    explore(3, || {
        let pool = Pool::with_block_bytes(HeapFrames, CHUNK_BYTES).unwrap();
        pool.set_limit(CHUNK_BYTES);
        let first = pool.alloc().unwrap();
        // SAFETY: the test holds no reference into the block.
        unsafe { pool.free(first).unwrap() };
        let other = pool.clone();
        let releases = [pool.clone(), other].map(|pool| thread::spawn(move || pool.release_free()));
        if let Ok(block) = pool.alloc() {
            // SAFETY: the test holds no reference into the block.
            unsafe { pool.free(block).unwrap() };
        }
        releases.into_iter().for_each(|thread| assert!(thread.join().is_ok()));
        let stats = pool.stats();
        assert_eq!(stats.used_bytes, 0);
        assert_eq!(pool.release_free(), stats.held_bytes);
        assert!(pool.alloc().is_ok(), "released memory does not count against the limit");
    });
}

/// 64 of these fill a block of 32 KiB. Counts live elements.
struct CountedElement(std::sync::Arc<AtomicUsize>, [u64; 63]);

impl CountedElement {
    fn new(live: &std::sync::Arc<AtomicUsize>) -> Self {
        live.fetch_add(1, Ordering::Relaxed);
        Self(live.clone(), [7; 63])
    }
}

impl Clone for CountedElement {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for CountedElement {
    fn drop(&mut self) {
        assert_eq!(self.1[62], 7);
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Uses an array of two leaves and its snapshot on two threads, before or after the array has its
/// own directory.
fn shared(has_written: bool, act: impl Fn(TreeArray<CountedElement>) + Send + Sync + 'static) {
    explore(3, move || {
        let live = std::sync::Arc::new(AtomicUsize::new(0));
        let pool = Pool::with_block_bytes(HeapFrames, 32 << 10).unwrap();
        let mut array = TreeArray::new_in(&pool);
        array.resize_with(66, || CountedElement::new(&live));
        let snapshot = array.snapshot();
        if has_written {
            array[0] = CountedElement::new(&live);
        }
        let drops = thread::spawn(move || {
            assert_eq!(snapshot[65].1[0], 7);
            drop(snapshot);
        });
        act(array);
        drops.join().unwrap();
        assert_eq!(live.load(Ordering::Relaxed), 0, "each element is dropped once");
        assert_eq!(pool.stats().used_bytes, 0, "the last holder frees the block");
    });
}

#[test]
fn a_root_has_one_last_holder() {
    shared(false, |mut array| array[65].1[0] = 8);
}

#[test]
fn a_leaf_has_one_last_holder() {
    shared(true, drop);
}

#[test]
fn a_leaf_is_copied_while_its_other_holder_is_dropped() {
    shared(true, |mut array| array[65].1[0] = 8);
}

/// `Filler` elements are small and fill the array up to the elements that loom checks.
enum LoomElement {
    Filler,
    Checked(UnsafeCell<usize>),
}

// SAFETY: the cell is written before the element is appended and read afterwards, which loom
// checks.
unsafe impl Sync for LoomElement {}

#[test]
fn a_reader_sees_no_element_before_it_is_written() {
    explore(3, || {
        let pool = Pool::with_block_bytes(HeapFrames, 32 << 10).unwrap();
        let mut array = TreeArray::new_in(&pool);
        // The first directory has four entries, so the second element appended here needs a larger
        // one.
        let before = 4 * array.per_leaf() - 1;
        array.resize_with(before, || LoomElement::Filler);
        let array = Box::into_raw(Box::new(array));
        // SAFETY: the box lives until both threads are joined, and only the appender writes to the
        // array.
        let (mut appender, reader) = unsafe { &mut *array }.appender().unwrap();
        let appends = thread::spawn(move || {
            for number in before..before + 2 {
                appender.push(LoomElement::Checked(UnsafeCell::new(number)));
            }
        });
        for _ in 0..2 {
            let len = reader.len();
            for index in before..len {
                let Some(LoomElement::Checked(cell)) = reader.get(index) else { panic!("element {index} of {len}") };
                // SAFETY: nothing writes to the cell any more, which loom checks.
                assert_eq!(cell.with(|number| unsafe { *number }), index);
            }
            assert!(matches!(reader.get(before - 1), Some(LoomElement::Filler)));
        }
        appends.join().unwrap();
        assert_eq!(reader.len(), before + 2);
        drop(reader);
        // SAFETY: the appender and the readers are dropped.
        drop(unsafe { Box::from_raw(array) });
    });
}
