//! Memory in fixed-size blocks, growable arrays of blocks below one directory, and a general
//! allocator on blocks. Nothing here needs a contiguous range larger than a block, except the
//! directory of an array.
//!
//! | module | |
//! |---|---|
//! | `pool`: [`Pool`] | hands out blocks, in address order, without locks; sets their size |
//! | `frames`: [`Frames`] | supplies the pool's memory: the kernel, an allocator, a fixed range |
//! | `array`: [`TreeArray`] | a growable array whose elements do not move once it has a block; each leaf is one block (`array/tree`), found by one flat directory (`array/directory`) |
//! | [`heap`] | `malloc` and `free` on blocks |
//! | `prefetch` | prefetch instructions |
//! | `sync` | atomics and the lock, replaced by `loom` in its tests |
//! | `error` | errors, with remedies |
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use fieldstone_blocks::TreeArray;
//!
//! let mut array: TreeArray<u64> = (0..1_000_000).collect();
//! array.push(7);
//! array[3] = 5;
//! // Iterate leaf by leaf: a leaf is a slice, so the loop vectorises.
//! let sum: u64 = array.leaves().map(|leaf| leaf.iter().sum::<u64>()).sum();
//! assert_eq!(sum, array.iter().sum());
//! // A snapshot shares its leaves until one side writes to them.
//! let before = array.snapshot();
//! array[3] = 6;
//! assert_eq!((before[3], array[3]), (5, 6));
//! # }
//! ```
//!
//! Sources: Zagieboylo, Suh and Myers, *The Cost of Software-Based Memory Management Without
//! Virtual Memory*, and Zagieboylo, *Evaluating the Performance Implications of Physical
//! Addressing*. Without the feature `std` there is no [`MmapFrames`] and no default pool;
//! directories and small arrays need `alloc`.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod array;
mod error;
mod frames;
#[cfg(not(loom))]
pub mod heap;
mod pool;
mod prefetch;
mod sync;

pub use array::{
    Appender, Cursor, IntoIter, Iter, IterMut, Leaves, LeavesMut, Reader, Snapshot, Stride, Tree, TreeArray, ViewMut,
};
pub use error::{Error, Result};
pub use frames::{CHUNK_BYTES, FixedFrames, Frames, HeapFrames};
#[cfg(feature = "std")]
pub use frames::{MmapFrames, PageKind};
#[cfg(feature = "std")]
pub use pool::PoolPlacement;
pub use pool::{DEFAULT_BLOCK_BYTES, Pool, PoolStats};
pub use prefetch::{prefetch, prefetch_far};

/// Compiles the example of the README.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct ReadmeExample;

#[cfg(all(test, feature = "std", not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_array_grows_over_leaves_and_keeps_its_elements() {
        let pool = Pool::with_block_bytes(HeapFrames, 4096).unwrap();
        let mut array = TreeArray::new_in(&pool);
        for number in 0..10_000_u64 {
            array.push(number * 3);
        }
        assert_eq!(array.leaves().len(), 10_000_usize.div_ceil(512));
        assert!((0..10_000).all(|at| array[at] == at as u64 * 3));
        assert_eq!(array.iter().sum::<u64>(), 3 * 9999 * 5000);
        let before = array.snapshot();
        array[777] = 1;
        assert_eq!((before[777], array[777]), (777 * 3, 1));
        while array.pop().is_some() {}
        drop((array, before));
        assert_eq!(pool.stats().used_bytes, 0);
    }
}
