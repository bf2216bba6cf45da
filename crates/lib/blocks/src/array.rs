//! An array as a tree of blocks with two levels: one flat directory, and leaves. It grows without
//! moving elements and needs no contiguous memory beyond a block, except its directory. It reads
//! about as fast as a vector, and a large one faster than a vector on small pages.
//!
//! | module | |
//! |---|---|
//! | `tree`, `directory`, `divider` | the layout of elements, and how an index finds one |
//! | `leaves`, `iter`, `view` | reading and writing in order |
//! | `view_mut` | random writes |
//! | `stride`, `batch`, `cursor` | every nth element, many random elements, neighbours of an element |
//! | `growth` | `push`, `extend`, `reserve`, `truncate` |
//! | `append` | one thread appends while others read |
//! | `copy_on_write`, `snapshot` | copies that share leaves until one side writes |
//! | `teardown` | dropping elements and freeing leaves |
//! | `traits`, `io`, `serde`, `rayon` | the traits that a vector implements |

#![allow(unsafe_code, reason = "elements are stored in raw blocks")]

mod append;
mod batch;
mod copy_on_write;
mod cursor;
mod directory;
mod divider;
mod growth;
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

use copy_on_write::CopyOnWrite;

/// A growable array whose elements are stored in blocks of a [`Pool`].
///
/// It dereferences to its [`Tree`], which has the read methods. An array smaller than half a block
/// is stored in the global allocator's memory and moves as it doubles, like a vector. Once it has
/// its first block (at once after [`TreeArray::reserve_leaf`]), elements never move.
///
/// Methods that allocate come in two forms: `try_…` returns [`crate::Error`], the other one panics
/// with its message.
pub struct TreeArray<T> {
    /// Dropped by hand: while `cow` has a root, this is a bitwise copy of it.
    tree: ManuallyDrop<Tree<T>>,
    /// Elements `tail_start..tail_end` have their memory at `tail + i`, in an unshared leaf: `push`
    /// writes there.
    tail: *mut T,
    tail_start: usize,
    tail_end: usize,
    /// The state shared with snapshots; `None` while there are none.
    cow: Option<Box<CopyOnWrite<T>>>,
}

// SAFETY: the array owns its elements, as a vector does. Sharing them with snapshots requires `T:
// Send + Sync`.
unsafe impl<T: Send> Send for TreeArray<T> {}
// SAFETY: a shared reference to the array only allows reading elements.
unsafe impl<T: Sync> Sync for TreeArray<T> {}

impl<T> TreeArray<T> {
    /// Creates an empty array in the default pool, without allocating.
    ///
    /// # Panics
    /// If one element is larger than a block.
    #[cfg(all(feature = "std", not(loom)))]
    #[must_use]
    pub fn new() -> Self {
        Self::new_in(Pool::global())
    }

    /// Creates an empty array with capacity for `capacity` elements in the default pool.
    ///
    /// # Panics
    /// If there is no memory, or if one element is larger than a block.
    #[cfg(all(feature = "std", not(loom)))]
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let mut array = Self::new();
        array.reserve(capacity);
        array
    }

    /// Creates an empty array in `pool`.
    ///
    /// # Panics
    /// If one element is larger than a block.
    #[must_use]
    pub fn new_in(pool: &Pool) -> Self {
        Self::try_new_in(pool).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates an empty array in `pool`.
    ///
    /// # Errors
    /// [`crate::Error::ElementTooLarge`] if one element is larger than a block.
    pub fn try_new_in(pool: &Pool) -> Result<Self> {
        let tree = ManuallyDrop::new(Tree::new(pool.clone())?);
        Ok(Self { tree, tail: ptr::dangling_mut(), tail_start: 0, tail_end: 0, cow: None })
    }

    /// A mutable reference to element `index`; `None` beyond the end. Copies the leaf first if a
    /// snapshot shares it.
    ///
    /// # Panics
    /// If there is no memory for that copy.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        if index >= self.tree.len {
            return None;
        }
        if self.cow.is_some() {
            self.unshare_leaf_of(index);
        }
        // SAFETY: the element exists, and its leaf was made unshared.
        Some(unsafe { &mut *self.tree.pointer(index) })
    }

    /// A mutable reference to element `index`.
    ///
    /// # Panics
    /// As [`TreeArray::get_mut`].
    ///
    /// # Safety
    /// `index < len()`.
    #[must_use]
    #[inline]
    pub unsafe fn get_unchecked_mut(&mut self, index: usize) -> &mut T {
        if self.cow.is_some() {
            self.unshare_leaf_of(index);
        }
        // SAFETY: by contract the element exists, and its leaf was made unshared.
        unsafe { &mut *self.tree.pointer(index) }
    }

    /// A mutable reference to the last element; `None` when the array is empty.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.get_mut(self.tree.len.wrapping_sub(1))
    }

    /// Swaps two elements.
    ///
    /// # Panics
    /// If one of the indices is not below the length.
    pub fn swap(&mut self, a: usize, b: usize) {
        let first: *mut T = &raw mut self[a];
        let second: *mut T = &raw mut self[b];
        // SAFETY: both point to elements of this array, and may be equal.
        unsafe { ptr::swap(first, second) };
    }

    /// Clears the cached tail, so that the next push finds it again.
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
        let is_view = self.cow.as_ref().is_some_and(|cow| cow.has_root());
        if !is_view {
            // SAFETY: the array owns the tree and does not use it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.tree) };
        }
        // Else `self.tree` is a bitwise copy of the root, which owns the pool handle and the
        // directory.
    }
}
