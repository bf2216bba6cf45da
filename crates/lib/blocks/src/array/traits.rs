//! The traits that a vector implements: indexing, comparing, hashing, cloning, converting,
//! iterating by value.

#![allow(unsafe_code, reason = "moves elements out of raw blocks")]

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::iter::FusedIterator;
use core::ops::{Index, IndexMut};

use super::{Iter, IterMut, Snapshot, Tree, TreeArray};
use crate::error::Result;

#[cold]
#[inline(never)]
#[track_caller]
pub(super) fn out_of_bounds(index: usize, len: usize) -> ! {
    panic!("index {index} is out of bounds of an array of {len} elements")
}

impl<T> Index<usize> for Tree<T> {
    type Output = T;

    #[inline]
    #[track_caller]
    fn index(&self, index: usize) -> &T {
        match self.get(index) {
            Some(element) => element,
            None => out_of_bounds(index, self.len),
        }
    }
}

impl<T> Index<usize> for TreeArray<T> {
    type Output = T;

    #[inline]
    #[track_caller]
    fn index(&self, index: usize) -> &T {
        &self.tree[index]
    }
}

impl<T> IndexMut<usize> for TreeArray<T> {
    #[inline]
    #[track_caller]
    fn index_mut(&mut self, index: usize) -> &mut T {
        let len = self.tree.len;
        match self.get_mut(index) {
            Some(element) => element,
            None => out_of_bounds(index, len),
        }
    }
}

impl<T> Index<usize> for Snapshot<T> {
    type Output = T;

    #[inline]
    #[track_caller]
    fn index(&self, index: usize) -> &T {
        &(**self)[index]
    }
}

#[cfg(all(feature = "std", not(loom)))]
impl<T> Default for TreeArray<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone> TreeArray<T> {
    /// Copies all elements to a new array in the same pool. [`TreeArray::snapshot`] copies only
    /// what changes.
    ///
    /// # Errors
    /// If there is no memory for the copy.
    pub fn try_clone(&self) -> Result<Self> {
        let mut copy = Self::try_new_in(self.pool())?;
        copy.try_reserve(self.len())?;
        self.leaves().try_for_each(|leaf| copy.try_extend_from_slice(leaf))?;
        Ok(copy)
    }
}

impl<T: Clone> Clone for TreeArray<T> {
    fn clone(&self) -> Self {
        self.try_clone().unwrap_or_else(|error| panic!("{error}"))
    }
}

impl<T> Extend<T> for TreeArray<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        let elements = elements.into_iter();
        self.reserve(elements.size_hint().0);
        elements.for_each(|element| self.push(element));
    }
}

impl<'a, T: Copy> Extend<&'a T> for TreeArray<T> {
    fn extend<I: IntoIterator<Item = &'a T>>(&mut self, elements: I) {
        self.extend(elements.into_iter().copied());
    }
}

#[cfg(all(feature = "std", not(loom)))]
impl<T> FromIterator<T> for TreeArray<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut array = Self::new();
        array.extend(elements);
        array
    }
}

#[cfg(all(feature = "std", not(loom)))]
impl<T> From<Vec<T>> for TreeArray<T> {
    fn from(elements: Vec<T>) -> Self {
        elements.into_iter().collect()
    }
}

#[cfg(all(feature = "std", not(loom)))]
impl<T: Clone> From<&[T]> for TreeArray<T> {
    fn from(elements: &[T]) -> Self {
        let mut array = Self::new();
        array.extend_from_slice(elements);
        array
    }
}

impl<T> From<TreeArray<T>> for Vec<T> {
    fn from(array: TreeArray<T>) -> Self {
        array.into_iter().collect()
    }
}

impl<T: fmt::Debug> fmt::Debug for Tree<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for TreeArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: PartialEq> PartialEq for Tree<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: PartialEq> PartialEq for TreeArray<T> {
    fn eq(&self, other: &Self) -> bool {
        *self.tree == *other.tree
    }
}

impl<T: PartialEq> PartialEq<[T]> for Tree<T> {
    fn eq(&self, other: &[T]) -> bool {
        let mut rest = other;
        self.len == other.len()
            && self.leaves().all(|leaf| {
                let (same, after) = rest.split_at(leaf.len());
                rest = after;
                leaf == same
            })
    }
}

impl<T: PartialEq> PartialEq<[T]> for TreeArray<T> {
    fn eq(&self, other: &[T]) -> bool {
        *self.tree == *other
    }
}

impl<T: PartialEq> PartialEq<Vec<T>> for TreeArray<T> {
    fn eq(&self, other: &Vec<T>) -> bool {
        *self.tree == **other
    }
}

impl<T: Eq> Eq for Tree<T> {}
impl<T: Eq> Eq for TreeArray<T> {}

impl<T: PartialOrd> PartialOrd for TreeArray<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.iter().partial_cmp(other.iter())
    }
}

impl<T: Ord> Ord for TreeArray<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.iter().cmp(other.iter())
    }
}

/// Equal to the hash of a slice or vector with the same elements.
impl<T: Hash> Hash for TreeArray<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.len());
        self.iter().for_each(|element| element.hash(state));
    }
}

impl<'a, T> IntoIterator for &'a Tree<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a TreeArray<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut TreeArray<T> {
    type Item = &'a mut T;
    type IntoIter = IterMut<'a, T>;

    fn into_iter(self) -> IterMut<'a, T> {
        self.iter_mut()
    }
}

impl<T> IntoIterator for TreeArray<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        let mut tree = self.into_tree();
        // From here on the iterator drops the elements.
        let end = core::mem::take(&mut tree.len);
        IntoIter { tree, start: 0, end }
    }
}

/// Iterates over the elements by value, in order. Dropping it frees the leaves.
pub struct IntoIter<T> {
    /// Its length is 0, so that dropping it drops no elements.
    tree: Tree<T>,
    start: usize,
    end: usize,
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.start == self.end {
            return None;
        }
        self.start += 1;
        // SAFETY: the element is initialised, and `start` moves past it, so it is read once.
        Some(unsafe { self.tree.pointer(self.start - 1).read() })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.start, Some(self.end - self.start))
    }
}

impl<T> DoubleEndedIterator for IntoIter<T> {
    #[inline]
    fn next_back(&mut self) -> Option<T> {
        if self.start == self.end {
            return None;
        }
        self.end -= 1;
        // SAFETY: the element is initialised, and `end` moves below it, so it is read once.
        Some(unsafe { self.tree.pointer(self.end).read() })
    }
}

impl<T> ExactSizeIterator for IntoIter<T> {}
impl<T> FusedIterator for IntoIter<T> {}

impl<T> Drop for IntoIter<T> {
    fn drop(&mut self) {
        self.tree.drop_range(self.start, self.end);
    }
}

impl<T> fmt::Debug for IntoIter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoIter").field("remaining", &(self.end - self.start)).finish_non_exhaustive()
    }
}
