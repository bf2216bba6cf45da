//! Drops elements and frees leaves, in order and once each, even if an element's drop panics.
//!
//! If a drop panics, the later ones still run, as in a vector; a second panic while unwinding
//! aborts. A leaf that a snapshot shares is only released: its last holder drops its elements.

#![allow(unsafe_code, reason = "drops elements in raw blocks")]

use core::mem;
use core::ptr::{self, NonNull};

use super::leaves::RawLeaves;
use super::tree::Tree;

impl<T> Tree<T> {
    /// Drops the elements from `from` on, whose leaves are unshared. Keeps the leaves.
    pub(super) fn drop_elements(&mut self, from: usize) {
        let end = self.len;
        self.len = from.min(end);
        self.drop_range(from, end);
    }

    /// Drops elements that the length no longer includes.
    pub(super) fn drop_range(&self, start: usize, end: usize) {
        if mem::needs_drop::<T>() && start < end {
            ElementDrops(RawLeaves::new(self, start, end)).run();
        }
    }

    /// Drops the elements from `from` on and frees the leaves from number `keep` on, which have no
    /// elements before `from`.
    pub(super) fn drop_leaves(&mut self, from: usize, keep: usize) {
        if self.small > 0 || Self::IS_ZERO_SIZED {
            if (from, keep) == (0, 0) {
                SmallDrops(self).run();
            } else {
                self.drop_elements(from);
            }
            return;
        }
        let end = self.len;
        self.len = from.min(end);
        let (start, kept) = (self.len, end.min(keep.saturating_mul(self.per_leaf)));
        let mut leaves = LeafDrops { tree: self, next: keep, keep, end };
        leaves.tree.drop_range(start, kept);
        leaves.run();
    }
}

impl<T> Drop for Tree<T> {
    fn drop(&mut self) {
        self.drop_leaves(0, 0);
    }
}

/// A block that is freed on drop, also if a clone into it or a drop in it panics.
pub(super) struct LeafBlock<'a, T> {
    pub(super) tree: &'a Tree<T>,
    pub(super) block: NonNull<u8>,
}

impl<T> Drop for LeafBlock<'_, T> {
    fn drop(&mut self) {
        self.tree.free_block(self.block);
    }
}

/// Drops elements that the tree's length no longer includes.
struct ElementDrops<'a, T>(RawLeaves<'a, T>);

impl<T> ElementDrops<'_, T> {
    fn run(&mut self) {
        for leaf in self.0.by_ref() {
            // SAFETY: they are initialised, and the tree's length excludes them: nothing else drops
            // or reads them.
            unsafe { ptr::drop_in_place(leaf.as_ptr()) };
        }
    }
}

impl<T> Drop for ElementDrops<'_, T> {
    fn drop(&mut self) {
        self.run();
    }
}

/// Drops a tree's small buffer with its elements.
struct SmallDrops<'a, T>(&'a mut Tree<T>);

impl<T> SmallDrops<'_, T> {
    fn run(&mut self) {
        self.0.drop_elements(0);
    }
}

impl<T> Drop for SmallDrops<'_, T> {
    fn drop(&mut self) {
        self.0.free_small();
    }
}

/// Drops leaves from number `keep` on.
struct LeafDrops<'a, T> {
    tree: &'a mut Tree<T>,
    next: usize,
    keep: usize,
    /// The tree's former length.
    end: usize,
}

impl<T> LeafDrops<'_, T> {
    fn run(&mut self) {
        while self.next < self.tree.leaves {
            let leaf = self.next;
            self.next += 1;
            self.drop_leaf(leaf);
        }
    }

    fn drop_leaf(&self, leaf: usize) {
        // SAFETY: the leaf exists. It is a block, since the tree is neither small nor of zero-sized
        // elements.
        let block = unsafe { self.tree.block(leaf) };
        if mem::needs_drop::<T>() && self.tree.pool.unshare(block) {
            return;
        }
        let _guard = LeafBlock { tree: self.tree, block };
        let count = self.end.saturating_sub(leaf * self.tree.per_leaf).min(self.tree.per_leaf);
        let elements = ptr::slice_from_raw_parts_mut(block.as_ptr().cast::<T>(), count);
        // SAFETY: the leaf's elements are initialised, the tree's length excludes them, and no
        // other holder is left.
        unsafe { ptr::drop_in_place(elements) };
    }
}

impl<T> Drop for LeafDrops<'_, T> {
    fn drop(&mut self) {
        self.run();
        self.tree.leaves = self.keep.min(self.tree.leaves);
        if self.tree.leaves == 0 {
            self.tree.first = ptr::dangling_mut();
        }
    }
}
