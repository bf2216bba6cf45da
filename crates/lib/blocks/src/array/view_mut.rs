//! A mutable view of an array, as `&mut [T]` is of a vector.
//!
//! Each write to an array tests whether a snapshot shares the leaf. After each write the compiler
//! must assume that this and the directory have changed. A view unshares all leaves once and keeps
//! the directory in registers: a loop of random writes takes about a third less time.

#![allow(unsafe_code, reason = "computes element addresses in raw leaves")]

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Index, IndexMut};

use super::TreeArray;
use super::traits::out_of_bounds;
use super::tree::Finder;
use crate::error::Result;

/// A mutable borrow of all elements of an array. It cannot grow.
pub struct ViewMut<'a, T> {
    pub(super) finder: Finder<T>,
    pub(super) len: usize,
    borrow: PhantomData<&'a mut T>,
}

impl<T> TreeArray<T> {
    /// Borrows all elements mutably. Copies leaves that a snapshot shares first.
    ///
    /// # Panics
    /// If there is no memory for those copies.
    #[inline]
    #[track_caller]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        self.try_view_mut().unwrap_or_else(|error| panic!("cannot copy leaves shared with a snapshot: {error}"))
    }

    /// Borrows all elements mutably. Copies leaves that a snapshot shares first.
    ///
    /// # Errors
    /// If there is no memory for those copies.
    #[inline]
    pub fn try_view_mut(&mut self) -> Result<ViewMut<'_, T>> {
        if self.cow.is_some() {
            self.try_unshare_all()?;
        }
        Ok(ViewMut { finder: self.tree.finder(), len: self.tree.len, borrow: PhantomData })
    }
}

impl<T> ViewMut<'_, T> {
    /// The number of elements.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the view has no elements.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element `index`; `None` beyond the end.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        // SAFETY: the index is that of an element, which the view borrows; `&self` keeps it from
        // changing.
        (index < self.len).then(|| unsafe { &*self.finder.pointer(index) })
    }

    /// A mutable reference to element `index`; `None` beyond the end.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        // SAFETY: the index is that of an element in an unshared leaf, which the view borrows
        // exclusively.
        (index < self.len).then(|| unsafe { &mut *self.finder.pointer(index) })
    }
}

impl<T> Index<usize> for ViewMut<'_, T> {
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

impl<T> IndexMut<usize> for ViewMut<'_, T> {
    #[inline]
    #[track_caller]
    fn index_mut(&mut self, index: usize) -> &mut T {
        let len = self.len;
        match self.get_mut(index) {
            Some(element) => element,
            None => out_of_bounds(index, len),
        }
    }
}

// SAFETY: the view is equivalent to a mutable borrow of the elements.
unsafe impl<T: Send> Send for ViewMut<'_, T> {}
// SAFETY: a shared reference to the view only allows reading elements.
unsafe impl<T: Sync> Sync for ViewMut<'_, T> {}

impl<T> fmt::Debug for ViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewMut").field("len", &self.len).finish_non_exhaustive()
    }
}
