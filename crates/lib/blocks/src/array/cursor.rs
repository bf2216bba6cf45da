//! A cursor that caches the last leaf used: a software walk cache under the caller's control. An
//! element near the last one costs a comparison instead of a directory access.
//!
//! Source: Zagieboylo, Suh and Myers, sections 3 and 4.4: the iterator "essentially implements a
//! PTW cache in software".

#![allow(unsafe_code, reason = "reads elements through a cached leaf")]

use super::Tree;

/// A position in a tree, with its leaf cached.
pub struct Cursor<'a, T> {
    tree: &'a Tree<T>,
    at: usize,
    /// The biased pointer of the cached leaf; its elements are `start..end`.
    leaf: *const T,
    start: usize,
    end: usize,
}

// SAFETY: a cursor is a shared reference to the tree and an index.
unsafe impl<T: Sync> Send for Cursor<'_, T> {}
// SAFETY: a cursor is a shared reference to the tree and an index.
unsafe impl<T: Sync> Sync for Cursor<'_, T> {}

impl<'a, T> Cursor<'a, T> {
    pub(super) fn new(tree: &'a Tree<T>) -> Self {
        Self { tree, at: 0, leaf: core::ptr::null(), start: 0, end: 0 }
    }

    /// The current index, which may be beyond the last element.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.at
    }

    /// Sets the current index.
    pub const fn seek(&mut self, index: usize) {
        self.at = index;
    }

    /// The current element; `None` beyond the end.
    #[inline]
    pub fn get(&mut self) -> Option<&'a T> {
        self.at(self.at)
    }

    /// Element `index`; `None` beyond the end. Caches its leaf and keeps the current index.
    #[inline]
    pub fn at(&mut self, index: usize) -> Option<&'a T> {
        if index.wrapping_sub(self.start) >= self.end - self.start && !self.cache_leaf(index) {
            return None;
        }
        // SAFETY: the index is that of an element in the cached leaf, which does not change while
        // the tree is borrowed.
        Some(unsafe { &*self.leaf.wrapping_add(index) })
    }

    /// Returns the current element and moves to the next index.
    #[expect(clippy::should_implement_trait, reason = "it moves in both directions")]
    #[inline]
    pub fn next(&mut self) -> Option<&'a T> {
        let element = self.get()?;
        self.at += 1;
        Some(element)
    }

    /// Moves to the previous element and returns it.
    #[inline]
    pub fn previous(&mut self) -> Option<&'a T> {
        let before = self.at.checked_sub(1)?;
        let element = self.at(before)?;
        self.at = before;
        Some(element)
    }

    /// Caches the leaf of an element. Returns false if there is no such element.
    #[cold]
    fn cache_leaf(&mut self, index: usize) -> bool {
        if index >= self.tree.len {
            return false;
        }
        let leaf = if self.tree.leaves <= 1 { 0 } else { self.tree.leaf_of(index) };
        // SAFETY: the index is below the length, so its leaf exists.
        self.leaf = unsafe { self.tree.biased(leaf) };
        self.start = leaf * self.tree.per_leaf;
        self.end = self.start.saturating_add(self.tree.per_leaf).min(self.tree.len);
        true
    }
}

impl<T> core::fmt::Debug for Cursor<'_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cursor").field("index", &self.at).finish_non_exhaustive()
    }
}
