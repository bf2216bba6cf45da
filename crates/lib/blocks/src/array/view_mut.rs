//! A mutable view: what `&mut [T]` is to a vector.
//!
//! An array must ask at each write whether a snapshot shares the leaf, and after each write the compiler must assume that the answer,
//! and where the directory is, have changed. The view asks once, for all leaves, and keeps what it needs in registers: a loop of
//! writes at random places takes about a third less time.

#![allow(unsafe_code, reason = "finds elements in raw leaves")]

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Index, IndexMut};

use super::TreeArray;
use super::traits::out_of_bounds;
use super::tree::Finder;
use crate::error::Result;

/// All elements of an array, borrowed to be changed. It cannot grow.
pub struct ViewMut<'a, T> {
    pub(super) finder: Finder<T>,
    pub(super) len: usize,
    borrow: PhantomData<&'a mut T>,
}

impl<T> TreeArray<T> {
    /// All elements, to be changed; leaves that a snapshot shares are copied now.
    ///
    /// # Panics
    /// Without memory for those copies.
    #[inline]
    #[track_caller]
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        self.try_view_mut().unwrap_or_else(|error| panic!("what a snapshot shares cannot be copied: {error}"))
    }

    /// All elements, to be changed; leaves that a snapshot shares are copied now.
    ///
    /// # Errors
    /// Without memory for those copies.
    #[inline]
    pub fn try_view_mut(&mut self) -> Result<ViewMut<'_, T>> {
        if self.hold.is_some() {
            self.try_own_all()?;
        }
        Ok(ViewMut { finder: self.tree.finder(), len: self.tree.len, borrow: PhantomData })
    }
}

impl<T> ViewMut<'_, T> {
    /// How many elements there are.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element `index`, if there is one.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        // SAFETY: an element of the array, which the view borrows alone; `&self` keeps it from changing.
        (index < self.len).then(|| unsafe { &*self.finder.place(index) })
    }

    /// Element `index`, to be changed, if there is one.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        // SAFETY: an element of the array, which the view borrows alone, in a leaf that nobody shares.
        (index < self.len).then(|| unsafe { &mut *self.finder.place(index) })
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

// SAFETY: it stands for a mutable borrow of the elements.
unsafe impl<T: Send> Send for ViewMut<'_, T> {}
// SAFETY: through a shared one elements are only read.
unsafe impl<T: Sync> Sync for ViewMut<'_, T> {}

impl<T> fmt::Debug for ViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewMut").field("len", &self.len).finish_non_exhaustive()
    }
}
