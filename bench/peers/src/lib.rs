//! Kernels that compare a vector on one page size, a tree of blocks, and arrays of other libraries.
//!
//! Each kernel is one function that is not inlined, and serves both sides if both can use the same
//! code (a vector is one slice, a tree several). Code alignment alone changes the speed of small
//! loops by a factor of two. The random numbers are a counter through a mixing function, so no
//! iteration depends on the previous one.
//!
//! | module | arrays that it compares |
//! |---|---|
//! | `vector` | vectors on a page kind |
//! | `crates` | four Rust crates with growable arrays |
//! | `deque` | C++ deques, behind `src/deque.cpp` |
//! | `bump` | no arrays: bump allocators |
//! | `store` | no arrays: embedded stores |
//! | `oo7` | no arrays: a graph of objects with several kinds of pointers |

pub mod bump;
pub mod crates;
pub mod deque;
pub mod oo7;
pub mod store;
pub mod vector;

use std::hint::black_box;

use fieldstone_blocks::{Tree, TreeArray, prefetch, prefetch_far};
use fieldstone_workloads::random::{mix, scale};

/// Sums one slice; all sides of a linear scan share this loop.
#[inline(never)]
#[must_use]
pub fn sum(slice: &[u64]) -> u64 {
    slice.iter().fold(0, |sum, &value| sum.wrapping_add(value))
}

/// Sums a tree, leaf by leaf.
#[inline(never)]
#[must_use]
pub fn sum_leaves(tree: &Tree<u64>) -> u64 {
    tree.leaves().fold(0, |all, leaf| all.wrapping_add(sum(leaf)))
}

/// Sums every `step`-th element of a slice.
#[inline(never)]
#[must_use]
pub fn stride(slice: &[u64], step: usize) -> u64 {
    slice.iter().step_by(step).fold(0, |sum, &value| sum.wrapping_add(value))
}

/// Sums every `step`-th element of a slice and prefetches the element 40 steps ahead, as
/// [`fieldstone_blocks::Stride`] does.
#[inline(never)]
#[must_use]
pub fn stride_prefetched(slice: &[u64], step: usize) -> u64 {
    const AHEAD: usize = 40;
    let (mut sum, mut at) = (0_u64, 0);
    while at < slice.len() {
        prefetch_far(slice.as_ptr().wrapping_add(at + AHEAD * step));
        sum = sum.wrapping_add(slice[at]);
        at += step;
    }
    sum
}

/// Sums every `step`-th element of a tree.
#[inline(never)]
#[must_use]
pub fn stride_tree(tree: &Tree<u64>, step: usize) -> u64 {
    tree.stride(step).fold(0, |sum, &value| sum.wrapping_add(value))
}

/// Updates a slice at random indices, one at a time: read, xor, write. Returns the xor of the
/// written values.
#[inline(never)]
pub fn gups(slice: &mut [u64], updates: u64, seed: u64) -> u64 {
    let mut xor = 0;
    for at in 0..updates {
        let draw = mix(seed.wrapping_add(at));
        let index = scale(draw, slice.len());
        slice[index] ^= draw;
        xor ^= draw;
    }
    xor
}

/// [`gups`] on a tree.
#[inline(never)]
pub fn gups_tree(tree: &mut TreeArray<u64>, updates: u64, seed: u64) -> u64 {
    let mut view = tree.view_mut();
    let len = view.len();
    let mut xor = 0;
    for at in 0..updates {
        let draw = mix(seed.wrapping_add(at));
        view[scale(draw, len)] ^= draw;
        xor ^= draw;
    }
    xor
}

/// [`gups`] in batches: prefetches all elements of a batch before the first use, as
/// [`TreeArray::update`] does.
#[inline(never)]
pub fn gups_batched(slice: &mut [u64], updates: u64, seed: u64) -> u64 {
    const BATCH: usize = 64;
    let mut batch = [(0_usize, 0_u64); BATCH];
    let (mut xor, mut at) = (0, 0);
    while at < updates {
        let mut count = 0;
        while count < BATCH && at < updates {
            let draw = mix(seed.wrapping_add(at));
            let index = scale(draw, slice.len());
            prefetch(slice.as_ptr().wrapping_add(index));
            batch[count] = (index, draw);
            xor ^= draw;
            (count, at) = (count + 1, at + 1);
        }
        for &(index, draw) in &batch[..count] {
            slice[index] ^= draw;
        }
    }
    xor
}

/// [`gups_batched`] on a tree, by [`TreeArray::update`].
#[inline(never)]
pub fn gups_tree_batched(tree: &mut TreeArray<u64>, updates: u64, seed: u64) -> u64 {
    let len = tree.len();
    let mut xor = 0;
    let draws = (0..updates).map(|at| {
        let draw = mix(seed.wrapping_add(at));
        xor ^= draw;
        (scale(draw, len), draw)
    });
    tree.update(draws, |value, draw| *value ^= draw);
    xor
}

/// Follows indices: each element is the next index. Returns the last index.
#[inline(never)]
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "elements are indices")]
pub fn chase(slice: &[u64], steps: u64) -> u64 {
    (0..steps).fold(0, |at, _| slice[at as usize])
}

/// [`chase`] on a tree.
#[inline(never)]
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "elements are indices")]
pub fn chase_tree(tree: &Tree<u64>, steps: u64) -> u64 {
    (0..steps).fold(0, |at, _| tree[at as usize])
}

/// Sums `gets` elements at random indices, all independent, through `get`. Inlined into a function
/// per kind of array.
#[inline(always)]
pub fn random_get(len: usize, gets: u64, seed: u64, get: impl Fn(usize) -> u64) -> u64 {
    (0..gets).fold(0, |sum, at| sum.wrapping_add(get(scale(mix(seed.wrapping_add(at)), len))))
}

/// [`random_get`] on a tree.
#[inline(never)]
#[must_use]
pub fn random_get_tree(tree: &Tree<u64>, gets: u64, seed: u64) -> u64 {
    random_get(tree.len(), gets, seed, |index| tree[index])
}

/// One random cycle through all indices (Sattolo): element i is the index after i.
#[must_use]
pub fn cycle(len: usize, seed: u64) -> Vec<u64> {
    let mut next: Vec<u64> = (0..len as u64).collect();
    for last in (1..len).rev() {
        next.swap(last, scale(mix(seed.wrapping_add(last as u64)), last));
    }
    black_box(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_each_kernel_agree() {
        let len = 100_000;
        let mut vector: Vec<u64> = (0..len as u64).map(mix).collect();
        let mut tree: TreeArray<u64> = vector.iter().copied().collect();
        assert_eq!(sum(&vector), sum_leaves(&tree));
        for step in [1, 7, 512, 99_999] {
            assert_eq!(stride(&vector, step), stride_prefetched(&vector, step));
            assert_eq!(stride(&vector, step), stride_tree(&tree, step), "{step}");
        }
        assert_eq!(gups(&mut vector, 10_000, 1), gups_tree(&mut tree, 10_000, 1));
        assert_eq!(gups_batched(&mut vector, 10_001, 2), gups_tree_batched(&mut tree, 10_001, 2));
        assert_eq!(tree, vector);
        let gets = random_get(len, 1000, 3, |index| vector[index]);
        assert_eq!(gets, random_get_tree(&tree, 1000, 3));
        let next = cycle(4096, 5);
        let tree: TreeArray<u64> = next.iter().copied().collect();
        assert_eq!((chase(&next, 4096), chase_tree(&tree, 4096)), (0, 0), "one cycle through all");
        assert_ne!(chase(&next, 2048), 0);
    }
}
