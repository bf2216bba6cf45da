//! The lock-free parts under loom, which runs every interleaving (of up to three preemptions) and every value that a load may see.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p fieldstone-blocks --test loom --release`
//!
//! Chunks and lanes are as in the library, only fewer. Raw blocks are invisible to loom, so each is given one of loom's cells to
//! stand for its contents: a cell tells when two threads use it without one being told of the other.

#![cfg(loom)]
#![allow(unsafe_code, reason = "holds raw blocks, and hands out cells")]
#![expect(clippy::unwrap_used, reason = "a test")]
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use fieldstone_blocks::{CHUNK_BYTES, HeapFrames, Pool, TreeArray};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Runs every interleaving of up to so many preemptions.
fn explore(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

/// A pool with all its blocks free, and a cell for the contents of each.
struct World {
    pool: Pool,
    blocks: Vec<(NonNull<u8>, UnsafeCell<u32>)>,
}

// SAFETY: the blocks are only compared, and a cell is used by who holds its block: loom checks that.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
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
        // SAFETY: the block was taken, and is not used any more.
        unsafe { self.pool.free(block).unwrap() };
    }

    fn touch(&self, block: NonNull<u8>) {
        let (_, cell) = self.blocks.iter().find(|&&(there, _)| there == block).unwrap();
        // SAFETY: the block is held, so the cell is ours; loom tells if it is not.
        cell.with_mut(|contents| unsafe { *contents += 1 });
    }

    /// Takes a block, uses it, gives it back; whether there was one.
    fn use_one(&self) -> bool {
        let Ok(block) = self.pool.alloc() else { return false };
        self.touch(block);
        self.free(block);
        true
    }

    /// Every block can be had, once.
    fn check_whole(&self) {
        assert_eq!(self.pool.stats().used_bytes, 0);
        let mut all: Vec<_> = std::iter::from_fn(|| self.pool.alloc().ok()).collect();
        all.iter().for_each(|&block| self.touch(block));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), self.blocks.len(), "no block is lost and none given twice");
        all.into_iter().for_each(|block| self.free(block));
    }
}

#[test]
fn no_block_is_given_twice_and_none_is_lost() {
    explore(3, || {
        let world = World::new(CHUNK_BYTES / 2, 1);
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
        let world = World::new(CHUNK_BYTES, 2);
        let others = [world.clone(), world.clone()];
        let threads = others.map(|world| thread::spawn(move || world.use_one()));
        world.use_one();
        threads.into_iter().for_each(|thread| assert!(thread.join().is_ok()));
        world.check_whole();
    });
}

#[test]
fn a_chunk_that_is_told_full_while_a_block_comes_back_is_found() {
    explore(3, || {
        let world = World::new(CHUNK_BYTES, 2);
        let held = [world.pool.alloc().unwrap(), world.pool.alloc().unwrap()];
        let other = world.clone();
        // Looks at both chunks, finds one or both full, and says so, while their blocks come back.
        let looks = thread::spawn(move || {
            other.use_one();
        });
        for block in held {
            world.touch(block);
            world.free(block);
        }
        looks.join().unwrap();
        world.check_whole();
    });
}

#[test]
fn memory_is_given_back_while_another_takes_and_gives() {
    explore(3, || {
        let pool = Pool::with_block_bytes(HeapFrames, CHUNK_BYTES).unwrap();
        pool.set_limit(CHUNK_BYTES);
        let first = pool.alloc().unwrap();
        // SAFETY: nobody uses it.
        unsafe { pool.free(first).unwrap() };
        let other = pool.clone();
        let releases = [pool.clone(), other].map(|pool| thread::spawn(move || pool.release_free()));
        if let Ok(block) = pool.alloc() {
            // SAFETY: nobody uses it.
            unsafe { pool.free(block).unwrap() };
        }
        releases.into_iter().for_each(|thread| assert!(thread.join().is_ok()));
        let stats = pool.stats();
        assert_eq!(stats.used_bytes, 0);
        assert_eq!(pool.release_free(), stats.held_bytes);
        assert!(pool.alloc().is_ok(), "what was given back is within the limit again");
    });
}

/// 64 fill a block of 32 KiB. Counts those that live.
struct Counted(std::sync::Arc<AtomicUsize>, [u64; 63]);

impl Counted {
    fn new(live: &std::sync::Arc<AtomicUsize>) -> Self {
        live.fetch_add(1, Ordering::Relaxed);
        Self(live.clone(), [7; 63])
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert_eq!(self.1[62], 7);
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An array of two leaves and its snapshot, before or after the array has a directory of its own, in two threads.
fn shared(has_written: bool, act: impl Fn(TreeArray<Counted>) + Send + Sync + 'static) {
    explore(3, move || {
        let live = std::sync::Arc::new(AtomicUsize::new(0));
        let pool = Pool::with_block_bytes(HeapFrames, 32 << 10).unwrap();
        let mut array = TreeArray::new_in(&pool);
        array.resize_with(66, || Counted::new(&live));
        let snapshot = array.snapshot();
        if has_written {
            array[0] = Counted::new(&live);
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
fn the_last_holder_of_a_root_is_one() {
    shared(false, |mut array| array[65].1[0] = 8);
}

#[test]
fn the_last_holder_of_a_leaf_is_one() {
    shared(true, drop);
}

#[test]
fn a_leaf_is_copied_while_its_other_holder_goes() {
    shared(true, |mut array| array[65].1[0] = 8);
}

/// Small ones fill the array up to where loom is to look.
enum Element {
    Filler,
    Seen(UnsafeCell<usize>),
}

// SAFETY: the cell is written before the element is appended and read after that: loom checks it.
unsafe impl Sync for Element {}

#[test]
fn a_reader_sees_no_element_before_it_is_written() {
    explore(3, || {
        let pool = Pool::with_block_bytes(HeapFrames, 32 << 10).unwrap();
        let mut array = TreeArray::new_in(&pool);
        // Four leaves are what the first directory has room for: the second element that is appended needs a larger one.
        let before = 4 * array.per_leaf() - 1;
        array.resize_with(before, || Element::Filler);
        let array = Box::into_raw(Box::new(array));
        // SAFETY: the box lives until both threads are joined.
        let (mut appender, reader) = unsafe { &mut *array }.appender().unwrap();
        let appends = thread::spawn(move || {
            for number in before..before + 2 {
                appender.push(Element::Seen(UnsafeCell::new(number)));
            }
        });
        for _ in 0..2 {
            let len = reader.len();
            for index in before..len {
                let Some(Element::Seen(cell)) = reader.get(index) else { panic!("element {index} of {len}") };
                // SAFETY: nobody writes to it any more; loom tells if somebody does.
                assert_eq!(cell.with(|number| unsafe { *number }), index);
            }
            assert!(matches!(reader.get(before - 1), Some(Element::Filler)));
        }
        appends.join().unwrap();
        assert_eq!(reader.len(), before + 2);
        drop(reader);
        // SAFETY: appender and readers are gone.
        drop(unsafe { Box::from_raw(array) });
    });
}
