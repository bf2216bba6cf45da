//! A cursor: the software walk cache, by hand. It knows the leaf that it stands in, so that an element near the last one costs a
//! comparison instead of a look at the directory.
//!
//! Source: Zagieboylo, Suh and Myers, sections 3 and 4.4: the iterator "essentially implements a PTW cache in software".

#![allow(unsafe_code, reason = "reads elements through a kept leaf")]

use super::Tree;

/// A place among the elements of a tree.
pub struct Cursor<'a, T> {
    tree: &'a Tree<T>,
    at: usize,
    /// The leaf that was looked up last: its biased pointer and its elements.
    leaf: *const T,
    start: usize,
    end: usize,
}

// SAFETY: a cursor is a reference to the tree and a place in it.
unsafe impl<T: Sync> Send for Cursor<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Cursor<'_, T> {}

impl<'a, T> Cursor<'a, T> {
    pub(super) fn new(tree: &'a Tree<T>) -> Self {
        Self { tree, at: 0, leaf: core::ptr::null(), start: 0, end: 0 }
    }

    /// Where it stands; any number, also beyond the last element.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.at
    }

    /// Goes to another place.
    pub const fn seek(&mut self, index: usize) {
        self.at = index;
    }

    /// The element where it stands, if there is one.
    #[inline]
    pub fn get(&mut self) -> Option<&'a T> {
        self.at(self.at)
    }

    /// Element `index`, without going there; remembers its leaf.
    #[inline]
    pub fn at(&mut self, index: usize) -> Option<&'a T> {
        if index.wrapping_sub(self.start) >= self.end - self.start && !self.enter(index) {
            return None;
        }
        // SAFETY: an element of the leaf, which the tree keeps as it is while it is borrowed.
        Some(unsafe { &*self.leaf.wrapping_add(index) })
    }

    /// Steps to the next element; the one that it was on.
    #[expect(clippy::should_implement_trait, reason = "it goes both ways, and stands before it moves")]
    #[inline]
    pub fn next(&mut self) -> Option<&'a T> {
        let element = self.get()?;
        self.at += 1;
        Some(element)
    }

    /// Steps to the element before, and gives it.
    #[inline]
    pub fn previous(&mut self) -> Option<&'a T> {
        let before = self.at.checked_sub(1)?;
        let element = self.at(before)?;
        self.at = before;
        Some(element)
    }

    /// Looks up the leaf of an element; false if there is no such element.
    #[cold]
    fn enter(&mut self, index: usize) -> bool {
        if index >= self.tree.len {
            return false;
        }
        let leaf = if self.tree.leaves <= 1 { 0 } else { self.tree.leaf_of(index) };
        // SAFETY: the leaf has an element, so it exists.
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
