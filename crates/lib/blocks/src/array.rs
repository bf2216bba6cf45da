//! An array as a tree of blocks: grows without moving or copying, needs no contiguous memory beyond a block, and is read about as
//! fast as a vector; faster than one on small pages, once it is large.
//!
//! | module | |
//! |---|---|
//! | `tree`, `directory`, `divider` | where elements lie, how they are found |
//! | `leaves`, `iter`, `view` | reading and writing in order |
//! | `view_mut` | writing at random places |
//! | `stride`, `batch`, `cursor` | every nth, many at random, one here and then its neighbours |
//! | `growth` | push, extend, reserve, truncate and their kin |
//! | `append` | one writer appends while many read |
//! | `hold`, `snapshot` | a copy in no time, made when somebody writes |
//! | `teardown` | drops |
//! | `traits`, `io`, `serde`, `rayon` | what a vector has too |

#![allow(unsafe_code, reason = "elements lie in raw blocks")]

mod append;
mod batch;
mod cursor;
mod directory;
mod divider;
mod growth;
mod hold;
#[cfg(feature = "std")]
mod io;
mod iter;
mod leaves;
#[cfg(feature = "rayon")]
mod rayon;
#[cfg(feature = "serde")]
mod serde;
mod snapshot;
mod stride;
mod teardown;
mod traits;
mod tree;
mod view;
mod view_mut;

use alloc::boxed::Box;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr;

use crate::error::Result;
use crate::pool::Pool;

pub use append::{Appender, Reader};
pub use cursor::Cursor;
pub use iter::{Iter, IterMut};
pub use leaves::{Leaves, LeavesMut};
pub use snapshot::Snapshot;
pub use stride::Stride;
pub use traits::IntoIter;
pub use tree::Tree;
pub use view_mut::ViewMut;

use hold::Hold;

/// A growable array whose elements lie in blocks of a [`Pool`].
///
/// It reads as its [`Tree`], to which it derefs. While it is smaller than half a block it lies in the program's own allocator and
/// moves as it doubles, like a vector; from its first block on (at once after [`TreeArray::reserve_leaf`]) elements stay where they are
/// until they are removed.
///
/// Methods that need memory come in two forms: `try_…` returns [`crate::Error`], the other panics with its words.
pub struct TreeArray<T> {
    /// Dropped by hand: while `hold` has the root, it is only a view of it.
    tree: ManuallyDrop<Tree<T>>,
    /// Elements from `tail_start` to `tail_end` have their room at `tail + i`, in a leaf that is ours alone: where a push goes.
    tail: *mut T,
    tail_start: usize,
    tail_end: usize,
    /// What is shared with snapshots; none while nothing is.
    hold: Option<Box<Hold<T>>>,
}

// SAFETY: it owns its elements, as a vector does; what is shared with snapshots is `Send + Sync`, or was never shared.
unsafe impl<T: Send> Send for TreeArray<T> {}
// SAFETY: through a shared array elements are only read.
unsafe impl<T: Sync> Sync for TreeArray<T> {}

impl<T> TreeArray<T> {
    /// An empty array in the default pool. No memory is taken.
    ///
    /// # Panics
    /// If one element is larger than a block.
    #[cfg(all(feature = "std", not(loom)))]
    #[must_use]
    pub fn new() -> Self {
        Self::new_in(Pool::global())
    }

    /// An empty array with room for `capacity` elements, in the default pool.
    ///
    /// # Panics
    /// Without memory, or if one element is larger than a block.
    #[cfg(all(feature = "std", not(loom)))]
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let mut array = Self::new();
        array.reserve(capacity);
        array
    }

    /// An empty array in `pool`.
    ///
    /// # Panics
    /// If one element is larger than a block.
    #[must_use]
    pub fn new_in(pool: &Pool) -> Self {
        Self::try_new_in(pool).unwrap_or_else(|error| panic!("{error}"))
    }

    /// An empty array in `pool`.
    ///
    /// # Errors
    /// [`crate::Error::ElementTooLarge`] if one element is larger than a block.
    pub fn try_new_in(pool: &Pool) -> Result<Self> {
        let tree = ManuallyDrop::new(Tree::new(pool.clone())?);
        Ok(Self { tree, tail: ptr::dangling_mut(), tail_start: 0, tail_end: 0, hold: None })
    }

    /// Element `index`, to be changed. If a snapshot shares its leaf, the leaf is copied first.
    ///
    /// # Panics
    /// Without memory for that copy.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        if index >= self.tree.len {
            return None;
        }
        if self.hold.is_some() {
            self.own_leaf_of(index);
        }
        // SAFETY: it is an element, in a leaf that is ours alone.
        Some(unsafe { &mut *self.tree.place(index) })
    }

    /// Element `index`, to be changed.
    ///
    /// # Panics
    /// As [`TreeArray::get_mut`].
    ///
    /// # Safety
    /// `index < len()`.
    #[must_use]
    #[inline]
    pub unsafe fn get_unchecked_mut(&mut self, index: usize) -> &mut T {
        if self.hold.is_some() {
            self.own_leaf_of(index);
        }
        // SAFETY: by contract it is an element; its leaf is ours alone.
        unsafe { &mut *self.tree.place(index) }
    }

    /// The last element, to be changed.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.get_mut(self.tree.len.wrapping_sub(1))
    }

    /// Exchanges two elements.
    ///
    /// # Panics
    /// If one of them is not there.
    pub fn swap(&mut self, a: usize, b: usize) {
        let first: *mut T = &raw mut self[a];
        let second: *mut T = &raw mut self[b];
        // SAFETY: both are elements of ours; they may be the same.
        unsafe { ptr::swap(first, second) };
    }

    /// Gives up what the tail knows: the next push looks anew.
    fn forget_tail(&mut self) {
        (self.tail_start, self.tail_end) = (self.tree.len, self.tree.len);
    }
}

impl<T> Deref for TreeArray<T> {
    type Target = Tree<T>;

    #[inline]
    fn deref(&self) -> &Tree<T> {
        &self.tree
    }
}

impl<T> Drop for TreeArray<T> {
    fn drop(&mut self) {
        let is_view = self.hold.as_ref().is_some_and(|hold| hold.has_root());
        if !is_view {
            // SAFETY: the tree is ours and is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.tree) };
        }
        // Else the pool handle and the directory are the root's too: a view is a copy of the root's bytes.
    }
}
