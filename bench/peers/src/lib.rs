//! Arrays that users would take instead of ours, and the kernels that compare them: a vector on one kind of pages, a tree of blocks, and other people's arrays.
//!
//! Each kernel is one function that is not inlined and takes both sides wherever both can be the same code (a vector is one slice,
//! a tree several): alignment of the code alone moves small loops by a factor of two. The random numbers are a counter through a
//! mixing function, so that no kernel waits for the last one's.

pub mod crates;
pub mod deque;
pub mod vector;

use std::hint::black_box;

use fieldstone_blocks::{Tree, TreeArray, prefetch, prefetch_far};
use fieldstone_workloads::random::{mix, scale};

/// Sums one slice: the loop that all sides of a linear scan share.
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

/// The same, with the element 40 steps ahead asked for, as [`fieldstone_blocks::Stride`] does.
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

/// Random updates of a slice, one at a time: read, xor, write. Returns the xor of what was written in.
#[inline(never)]
pub fn gups(slice: &mut [u64], updates: u64, seed: u64) -> u64 {
    let mut xor = 0;
    for at in 0..updates {
        let draw = mix(seed.wrapping_add(at));
        let place = scale(draw, slice.len());
        slice[place] ^= draw;
        xor ^= draw;
    }
    xor
}

/// The same on a tree.
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

/// The same on a slice, in batches whose places are asked for before the first is used, as [`TreeArray::update`] does.
#[inline(never)]
pub fn gups_batched(slice: &mut [u64], updates: u64, seed: u64) -> u64 {
    const BATCH: usize = 64;
    let mut batch = [(0_usize, 0_u64); BATCH];
    let (mut xor, mut at) = (0, 0);
    while at < updates {
        let mut count = 0;
        while count < BATCH && at < updates {
            let draw = mix(seed.wrapping_add(at));
            let place = scale(draw, slice.len());
            prefetch(slice.as_ptr().wrapping_add(place));
            batch[count] = (place, draw);
            xor ^= draw;
            (count, at) = (count + 1, at + 1);
        }
        for &(place, draw) in &batch[..count] {
            slice[place] ^= draw;
        }
    }
    xor
}

/// The same on a tree, by [`TreeArray::update`].
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

/// Follows indices: each element is the next index. Returns the last one.
#[inline(never)]
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "elements are indices")]
pub fn chase(slice: &[u64], steps: u64) -> u64 {
    (0..steps).fold(0, |at, _| slice[at as usize])
}

/// The same in a tree.
#[inline(never)]
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "elements are indices")]
pub fn chase_tree(tree: &Tree<u64>, steps: u64) -> u64 {
    (0..steps).fold(0, |at, _| tree[at as usize])
}

/// Reads at random places, each independent of the others, by `get`. Inlined into a function for each kind of array.
#[inline(always)]
pub fn random_get(len: usize, gets: u64, seed: u64, get: impl Fn(usize) -> u64) -> u64 {
    (0..gets).fold(0, |sum, at| sum.wrapping_add(get(scale(mix(seed.wrapping_add(at)), len))))
}

/// [`random_get`] of a tree.
#[inline(never)]
#[must_use]
pub fn random_get_tree(tree: &Tree<u64>, gets: u64, seed: u64) -> u64 {
    random_get(tree.len(), gets, seed, |index| tree[index])
}

/// One cycle through all places in random order (Sattolo), as next indices.
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
