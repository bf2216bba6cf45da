//! The scans of Table 2: the elements that a call reads, for each structure.

#![allow(unsafe_code, reason = "reads trees without bounds checks, as the paper does")]

use std::hint::black_box;
use std::ops::Range;

use fieldstone_blocks::TreeArray;

use crate::layout::consume;
use crate::paper_tree::PaperTree;

/// Elements from one access of a strided scan to the next.
pub(crate) const STRIDE: usize = 1024;
/// Maximum number of elements that one call scans.
const WINDOW: usize = 64 << 20;
/// Minimum number of elements that one call reads.
const MIN_READS: usize = 4096;

/// Element `index`: different from its neighbours, and equal in all structures.
#[expect(clippy::cast_possible_truncation, reason = "the low half is enough")]
pub(super) const fn element(index: usize) -> u32 {
    (index as u32).wrapping_mul(0x9e37_79b1)
}

/// The elements that a call scans, and the number of repetitions. Windows follow each other, and
/// the first follows the last.
#[derive(Clone, Copy)]
pub(super) struct Scan {
    len: usize,
    window: usize,
    laps: usize,
    next: usize,
}

impl Scan {
    pub(super) fn linear(len: usize) -> Self {
        Self { len, window: len.min(WINDOW), laps: (MIN_READS / len).max(1), next: 0 }
    }

    pub(super) fn strided(len: usize) -> Self {
        Self { len, window: len, laps: (MIN_READS / len.div_ceil(STRIDE)).max(1), next: 0 }
    }

    pub(super) fn take(&mut self) -> Range<usize> {
        let range = self.next..self.next + self.window;
        // Sizes are powers of two, so the last window ends with the array.
        self.next = range.end % self.len;
        range
    }

    pub(super) const fn linear_operations(&self) -> u64 {
        (self.window * self.laps) as u64
    }

    pub(super) const fn strided_operations(&self) -> u64 {
        (self.window.div_ceil(STRIDE) * self.laps) as u64
    }
}

/// Runs all repetitions of a scan. The structure is passed through `black_box`, so that the
/// compiler cannot merge them.
#[inline(always)]
pub(super) fn laps<T: ?Sized>(scan: &mut Scan, over: &T, once: impl Fn(&T, Range<usize>) -> u64) -> u64 {
    let range = scan.take();
    (0..scan.laps).fold(0, |sum, _| sum.wrapping_add(once(black_box(over), range.clone())))
}

#[inline(always)]
pub(super) fn add(sum: u64, element: u32) -> u64 {
    sum.wrapping_add(consume(u64::from(element)))
}

#[inline(always)]
pub(super) fn array_linear(array: &[u32], range: Range<usize>) -> u64 {
    array[range].iter().fold(0, |sum, element| add(sum, *element))
}

#[inline(always)]
pub(super) fn array_vector(array: &[u32], range: Range<usize>) -> u64 {
    array[range].iter().map(|element| u64::from(*element)).sum()
}

#[inline(always)]
pub(super) fn array_strided(array: &[u32], range: Range<usize>) -> u64 {
    let (array, mut at, mut sum) = (&array[range], 0, 0);
    while at < array.len() {
        sum = add(sum, array[at]);
        at += STRIDE;
    }
    sum
}

pub(super) type Paper = PaperTree<u32>;

#[inline(always)]
pub(super) fn tree_naive(tree: &Paper, range: Range<usize>, step: usize) -> u64 {
    let (mut at, mut sum) = (range.start, 0);
    while at < range.end {
        // SAFETY: the ranges of `Scan::take` are within the tree.
        sum = add(sum, unsafe { *tree.get_unchecked(at) });
        at += step;
    }
    sum
}

#[inline(always)]
pub(super) fn tree_static<const DEPTH: u32>(tree: &Paper, range: Range<usize>, step: usize) -> u64 {
    let (mut at, mut sum) = (range.start, 0);
    let Some(tree) = tree.fixed::<DEPTH>() else { return 0 };
    while at < range.end {
        // SAFETY: the ranges of `Scan::take` are within the tree.
        sum = add(sum, unsafe { *tree.get_unchecked(at) });
        at += step;
    }
    sum
}

#[inline(always)]
pub(super) fn array_by_index(array: &TreeArray<u32>, range: Range<usize>, step: usize) -> u64 {
    let (mut at, mut sum) = (range.start, 0);
    while at < range.end {
        // SAFETY: the ranges of `Scan::take` are within the array.
        sum = add(sum, unsafe { *array.get_unchecked(at) });
        at += step;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_go_on_where_they_ended_and_repeat_what_is_short() {
        let mut scan = Scan::linear(4 * WINDOW);
        let starts: Vec<usize> = (0..5).map(|_| scan.take().start / WINDOW).collect();
        assert_eq!(starts, [0, 1, 2, 3, 0]);
        assert_eq!(Scan::linear(1024).linear_operations(), 4096);
        assert_eq!(Scan::strided(1024).strided_operations(), 4096);
        assert_eq!(Scan::strided(1 << 30).strided_operations(), 1 << 20);
    }
}
