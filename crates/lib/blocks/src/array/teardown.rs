//! The end of elements and leaves, in order, each once, whatever their drops do.
//!
//! A drop that panics does not keep the ones after it from running, as in a vector; a second panic while unwinding aborts.
//! A leaf that a snapshot shares is only left: its elements live on, and its last holder drops them.

#![allow(unsafe_code, reason = "drops elements in raw blocks")]

use core::mem;
use core::ptr::{self, NonNull};

use super::leaves::RawLeaves;
use super::tree::Tree;

impl<T> Tree<T> {
    /// Drops the elements from `from` on, whose leaves nobody shares. Leaves stay.
    pub(super) fn drop_elements(&mut self, from: usize) {
        let end = self.len;
        self.len = from.min(end);
        self.drop_range(from, end);
    }

    /// Drops elements that are out of the length already.
    pub(super) fn drop_range(&self, start: usize, end: usize) {
        if mem::needs_drop::<T>() && start < end {
            Elements(RawLeaves::new(self, start, end)).run();
        }
    }

    /// Drops the elements from `from` on and gives back the leaves from number `keep` on, which have none before `from`.
    pub(super) fn drop_leaves(&mut self, from: usize, keep: usize) {
        if self.small > 0 || Self::IS_ZERO_SIZED {
            if (from, keep) == (0, 0) {
                Small(self).run();
            } else {
                self.drop_elements(from);
            }
            return;
        }
        let end = self.len;
        self.len = from.min(end);
        let (start, kept) = (self.len, end.min(keep.saturating_mul(self.per_leaf)));
        let mut leaves = Leaves { tree: self, next: keep, keep, end };
        leaves.tree.drop_range(start, kept);
        leaves.run();
    }
}

impl<T> Drop for Tree<T> {
    fn drop(&mut self) {
        self.drop_leaves(0, 0);
    }
}

/// A block that goes, also when a clone to it or a drop in it panics.
pub(super) struct LeafBlock<'a, T> {
    pub(super) tree: &'a Tree<T>,
    pub(super) block: NonNull<u8>,
}

impl<T> Drop for LeafBlock<'_, T> {
    fn drop(&mut self) {
        self.tree.free_block(self.block);
    }
}

/// Elements that are out of their tree's length.
struct Elements<'a, T>(RawLeaves<'a, T>);

impl<T> Elements<'_, T> {
    fn run(&mut self) {
        for leaf in self.0.by_ref() {
            // SAFETY: they were initialised and are out of the tree's length: nobody else drops or reads them.
            unsafe { ptr::drop_in_place(leaf.as_ptr()) };
        }
    }
}

impl<T> Drop for Elements<'_, T> {
    fn drop(&mut self) {
        self.run();
    }
}

/// A tree without blocks.
struct Small<'a, T>(&'a mut Tree<T>);

impl<T> Small<'_, T> {
    fn run(&mut self) {
        self.0.drop_elements(0);
    }
}

impl<T> Drop for Small<'_, T> {
    fn drop(&mut self) {
        self.0.free_small();
    }
}

/// Leaves that go.
struct Leaves<'a, T> {
    tree: &'a mut Tree<T>,
    next: usize,
    keep: usize,
    /// The length that the tree had.
    end: usize,
}

impl<T> Leaves<'_, T> {
    fn run(&mut self) {
        while self.next < self.tree.leaves {
            let leaf = self.next;
            self.next += 1;
            self.drop_leaf(leaf);
        }
    }

    fn drop_leaf(&self, leaf: usize) {
        // SAFETY: the leaf exists and, the tree being neither small nor of elements of size 0, is a block.
        let block = unsafe { self.tree.block(leaf) };
        if mem::needs_drop::<T>() && self.tree.pool.unshare(block) {
            return;
        }
        let _freed = LeafBlock { tree: self.tree, block };
        let count = self.end.saturating_sub(leaf * self.tree.per_leaf).min(self.tree.per_leaf);
        let elements = ptr::slice_from_raw_parts_mut(block.as_ptr().cast::<T>(), count);
        // SAFETY: the leaf's elements are initialised and out of the tree's length, and no other holder is left.
        unsafe { ptr::drop_in_place(elements) };
    }
}

impl<T> Drop for Leaves<'_, T> {
    fn drop(&mut self) {
        self.run();
        self.tree.leaves = self.keep.min(self.tree.leaves);
        if self.tree.leaves == 0 {
            self.tree.first = ptr::dangling_mut();
        }
    }
}
