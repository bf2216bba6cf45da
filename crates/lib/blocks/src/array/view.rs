//! Views of all or a range of the elements: slices and iterators, for reading and for writing.

#![allow(unsafe_code, reason = "asserts that elements are initialised")]

use alloc::vec::Vec;
use core::ops::{Bound, RangeBounds};

use super::{Cursor, Iter, IterMut, Leaves, LeavesMut, Stride, Tree, TreeArray};

impl<T> Tree<T> {
    /// The elements as slices, one per leaf. The fastest way to loop over an array.
    #[must_use]
    pub fn leaves(&self) -> Leaves<'_, T> {
        self.leaves_in(..)
    }

    /// The elements of a range as slices, one per leaf.
    ///
    /// # Panics
    /// If the range is not within the array.
    #[must_use]
    pub fn leaves_in(&self, range: impl RangeBounds<usize>) -> Leaves<'_, T> {
        let (start, end) = self.check(&range);
        // SAFETY: elements below `len` are initialised, and `&self` borrows them.
        unsafe { Leaves::of(self, start, end) }
    }

    /// The elements in order.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, T> {
        self.range(..)
    }

    /// The elements of a range in order.
    ///
    /// # Panics
    /// If the range is not within the array.
    #[must_use]
    pub fn range(&self, range: impl RangeBounds<usize>) -> Iter<'_, T> {
        Iter::new(self.leaves_in(range))
    }

    /// Every `step`-th element, from the first on.
    ///
    /// # Panics
    /// If `step` is 0.
    #[must_use]
    pub fn stride(&self, step: usize) -> Stride<'_, T> {
        Stride::new(self, step)
    }

    /// A cursor at index 0, which finds elements of the same leaf without a directory access.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'_, T> {
        Cursor::new(self)
    }

    /// Clones of the elements in a vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T>
    where
        T: Clone,
    {
        let mut all = Vec::with_capacity(self.len);
        self.leaves().for_each(|leaf| all.extend_from_slice(leaf));
        all
    }

    fn check(&self, range: &impl RangeBounds<usize>) -> (usize, usize) {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len,
        };
        assert!(
            start <= end && end <= self.len,
            "the range {start}..{end} is out of bounds of an array of {} elements",
            self.len
        );
        (start, end)
    }
}

impl<T> TreeArray<T> {
    /// The elements as mutable slices, one per leaf.
    ///
    /// # Panics
    /// If there is no memory to copy leaves that a snapshot shares.
    pub fn leaves_mut(&mut self) -> LeavesMut<'_, T> {
        self.leaves_mut_in(..)
    }

    /// The elements of a range as mutable slices, one per leaf.
    ///
    /// # Panics
    /// If the range is not within the array, or if there is no memory to copy leaves that a
    /// snapshot shares.
    pub fn leaves_mut_in(&mut self, range: impl RangeBounds<usize>) -> LeavesMut<'_, T> {
        let (start, end) = self.tree.check(&range);
        if self.cow.is_some() {
            let mut at = start;
            while at < end {
                self.unshare_leaf_of(at);
                at = if self.tree.leaves <= 1 { end } else { (self.tree.leaf_of(at) + 1) * self.tree.per_leaf };
            }
        }
        // SAFETY: elements below `len` are initialised, their leaves were unshared above, and `&mut
        // self` borrows them.
        unsafe { LeavesMut::of(&self.tree, start, end) }
    }

    /// Mutable references to the elements in order.
    ///
    /// # Panics
    /// As [`TreeArray::leaves_mut`].
    pub fn iter_mut(&mut self) -> IterMut<'_, T> {
        self.range_mut(..)
    }

    /// Mutable references to the elements of a range in order.
    ///
    /// # Panics
    /// As [`TreeArray::leaves_mut_in`].
    pub fn range_mut(&mut self, range: impl RangeBounds<usize>) -> IterMut<'_, T> {
        IterMut::new(self.leaves_mut_in(range))
    }
}
