//! The Iterator of the paper, a walk cache in software: one walk from the root per leaf, and a
//! pointer in between.
//!
//! Elements in order use a pointer up to the end of the leaf. Strides use an index, because a step
//! may skip leaves.
//!
//! Source: Zagieboylo, Suh and Myers, sections 3 and 4.4.

#![allow(unsafe_code, reason = "follows pointers into leaves")]

use std::ops::Range;
use std::ptr;

use super::PaperTree;

/// Elements in order, with one walk per leaf.
#[derive(Clone, Debug)]
pub struct Iter<'a, T, const BLOCK_BYTES: usize> {
    tree: &'a PaperTree<T, BLOCK_BYTES>,
    here: *const T,
    /// The end of the leaf, or of the range if that is earlier.
    leaf_end: *const T,
    /// The index of the first element after the leaf.
    next: usize,
    end: usize,
}

impl<'a, T: Copy, const BLOCK_BYTES: usize> Iter<'a, T, BLOCK_BYTES> {
    /// Starts at the beginning of `range`, which is within the tree.
    #[inline(always)]
    pub(super) const fn new(tree: &'a PaperTree<T, BLOCK_BYTES>, range: Range<usize>) -> Self {
        Self { tree, here: ptr::null(), leaf_end: ptr::null(), next: range.start, end: range.end }
    }

    /// Enters the next leaf; `false` at the end. Inlined, because the iterator is in memory
    /// otherwise.
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
        // SAFETY: `next` is at most the first index of the next leaf, so the range is in this leaf.
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
        // SAFETY: `here` is before `leaf_end`, so it is an element, and its successor is in bounds.
        unsafe {
            self.here = here.add(1);
            Some(&*here)
        }
    }
}

/// Every nth element, with a walk for each entered leaf.
#[derive(Clone, Debug)]
pub struct PaperStride<'a, T, const BLOCK_BYTES: usize> {
    tree: &'a PaperTree<T, BLOCK_BYTES>,
    /// The address of the leaf minus the index of its first element, so that element `i` is at `+
    /// i`.
    leaf: *const T,
    /// The index of the first element after the leaf.
    leaf_end: usize,
    at: usize,
    end: usize,
    step: usize,
}

impl<'a, T: Copy, const BLOCK_BYTES: usize> PaperStride<'a, T, BLOCK_BYTES> {
    /// Starts at the beginning of `range`, which is within the tree.
    #[inline(always)]
    pub(super) const fn new(tree: &'a PaperTree<T, BLOCK_BYTES>, step: usize, range: Range<usize>) -> Self {
        Self { tree, leaf: ptr::null(), leaf_end: range.start, at: range.start, end: range.end, step }
    }
}

impl<'a, T: Copy, const BLOCK_BYTES: usize> Iterator for PaperStride<'a, T, BLOCK_BYTES> {
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
            // SAFETY: `at` is below the end, so the first index of its leaf is below the length.
            self.leaf = unsafe { self.tree.place(self.tree.depth, first) }.wrapping_sub(first);
        }
        // SAFETY: `at` is below `leaf_end`, so the element is in the entered leaf.
        let element = unsafe { &*self.leaf.wrapping_add(self.at) };
        self.at += self.step;
        Some(element)
    }
}
