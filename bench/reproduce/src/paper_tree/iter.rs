//! The paper's Iterator: a walk from the root once a leaf, a pointer in between. A walk cache in software.
//!
//! Source: Zagieboylo, Suh and Myers, sections 3 and 4.4. Elements in order go by a pointer to the leaf's end; strides by index, since
//! a step may jump over leaves.

#![allow(unsafe_code, reason = "follows pointers into leaves")]

use std::ops::Range;
use std::ptr;

use super::PaperTree;

/// Elements in order: the walk is done once a leaf.
#[derive(Clone, Debug)]
pub struct Iter<'a, T, const BLOCK_BYTES: usize> {
    tree: &'a PaperTree<T, BLOCK_BYTES>,
    here: *const T,
    /// Beyond the leaf, or the part of it that is wanted.
    leaf_end: *const T,
    /// The first element beyond the leaf.
    next: usize,
    end: usize,
}

impl<'a, T: Copy, const BLOCK_BYTES: usize> Iter<'a, T, BLOCK_BYTES> {
    /// The range lies within the tree.
    #[inline(always)]
    pub(super) const fn new(tree: &'a PaperTree<T, BLOCK_BYTES>, range: Range<usize>) -> Self {
        Self { tree, here: ptr::null(), leaf_end: ptr::null(), next: range.start, end: range.end }
    }

    /// Goes to the next leaf; false at the end. Inlined, or the whole iterator lives in memory.
    #[inline(always)]
    fn enter_leaf(&mut self) -> bool {
        let first = self.next;
        if first >= self.end {
            return false;
        }
        let per_leaf = PaperTree::<T, BLOCK_BYTES>::PER_LEAF;
        self.next = (first - first % per_leaf + per_leaf).min(self.end);
        // SAFETY: `first` is below `end`, which is at most the length.
        self.here = unsafe { self.tree.place(self.tree.depth, first) };
        // SAFETY: the elements up to the next leaf's first lie in this one.
        self.leaf_end = unsafe { self.here.add(self.next - first) };
        true
    }
}

impl<'a, T: Copy, const BLOCK_BYTES: usize> Iterator for Iter<'a, T, BLOCK_BYTES> {
    type Item = &'a T;

    #[inline(always)]
    fn next(&mut self) -> Option<&'a T> {
        if self.here == self.leaf_end && !self.enter_leaf() {
            return None;
        }
        let here = self.here;
        // SAFETY: `here` is an element of the leaf, and its successor is one or the leaf's end.
        unsafe {
            self.here = here.add(1);
            Some(&*here)
        }
    }
}

/// Every nth element: the walk is done when the next one lies in another leaf.
#[derive(Clone, Debug)]
pub struct Stride<'a, T, const BLOCK_BYTES: usize> {
    tree: &'a PaperTree<T, BLOCK_BYTES>,
    /// The leaf's element 0, moved back by its index: element `i` lies at `+ i`.
    leaf: *const T,
    /// First index beyond the leaf.
    leaf_end: usize,
    at: usize,
    end: usize,
    step: usize,
}

impl<'a, T: Copy, const BLOCK_BYTES: usize> Stride<'a, T, BLOCK_BYTES> {
    /// The range lies within the tree.
    #[inline(always)]
    pub(super) const fn new(tree: &'a PaperTree<T, BLOCK_BYTES>, step: usize, range: Range<usize>) -> Self {
        Self { tree, leaf: ptr::null(), leaf_end: range.start, at: range.start, end: range.end, step }
    }
}

impl<'a, T: Copy, const BLOCK_BYTES: usize> Iterator for Stride<'a, T, BLOCK_BYTES> {
    type Item = &'a T;

    #[inline(always)]
    fn next(&mut self) -> Option<&'a T> {
        if self.at >= self.leaf_end {
            if self.at >= self.end {
                return None;
            }
            let per_leaf = PaperTree::<T, BLOCK_BYTES>::PER_LEAF;
            let first = self.at - self.at % per_leaf;
            self.leaf_end = (first + per_leaf).min(self.end);
            // SAFETY: `at` is below the end, so its leaf's first is an element, too.
            self.leaf = unsafe { self.tree.place(self.tree.depth, first) }.wrapping_sub(first);
        }
        // SAFETY: `at` lies in the leaf that was entered.
        let element = unsafe { &*self.leaf.wrapping_add(self.at) };
        self.at += self.step;
        Some(element)
    }
}
