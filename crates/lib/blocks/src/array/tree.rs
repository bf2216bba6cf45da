//! The tree of an array: the layout of its elements, and reading them.
//!
//! ```text
//! small                   | T T T . |                      from the global allocator, doubling up to half a block
//! one leaf       first -> | T T T T T T . . |              a block, found without a directory
//! more       directory -> [ 0 | 1 | 2 | . ]
//!                           |   |   `-> | T T T . . . . . |
//!                           |   `-----> | T T T T T T T T |
//!                           `---------> | T T T T T T T T |   per_leaf elements each
//! ```
//! Source: Zagieboylo, Suh and Myers, sections 3 and 4.2; Zagieboylo, "Custom Array
//! Implementation". Their radix tree has up to three levels, and each access tests its depth and
//! walks it. Here one directory of biased pointers is all there is above the leaves (16 KiB for 4
//! GiB). A get is two dependent loads at any size, and one for a single leaf.
//!
//! Invariants: elements `0..len` are initialised. Leaves `0..leaves` exist, and `first` is leaf 0
//! if there is one. If leaves are blocks and there is a directory, its entries `0..leaves` are set.
//! Zero-sized elements have no leaf and a dangling address.

#![allow(unsafe_code, reason = "elements are stored in raw blocks")]

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem;
use core::ptr::{self, NonNull};

use super::directory::Directory;
use super::divider::Divider;
use crate::error::{Error, Result};
use crate::pool::Pool;

/// Read access to an array's elements, common to [`crate::TreeArray`] and [`crate::Snapshot`].
///
/// It corresponds to a slice, as `TreeArray` corresponds to a vector.
pub struct Tree<T> {
    pub(super) first: *mut T,
    pub(super) directory: Directory<T>,
    pub(super) len: usize,
    pub(super) leaves: usize,
    /// Elements per leaf.
    pub(super) per_leaf: usize,
    pub(super) divider: Divider<T>,
    /// Capacity of the small buffer in elements; 0 when the first leaf is a block.
    pub(super) small: usize,
    pub(super) pool: Pool,
    owns: PhantomData<T>,
}

// SAFETY: a tree owns its elements, as a vector does. Sharing leaves with snapshots requires `T:
// Send + Sync`.
unsafe impl<T: Send> Send for Tree<T> {}
// SAFETY: a shared reference to the tree only allows reading elements.
unsafe impl<T: Sync> Sync for Tree<T> {}

/// The most elements for which the reciprocal of [`Divider`] is exact.
pub(super) const MAX_ELEMENTS: usize = 1 << 42;

/// The first size of the small buffer, which grows to half a block.
const FIRST_SMALL_BYTES: usize = 64;

impl<T> Tree<T> {
    pub(super) const IS_ZERO_SIZED: bool = size_of::<T>() == 0;

    pub(super) fn new(pool: Pool) -> Result<Self> {
        let block_bytes = pool.block_bytes();
        let too_large = Error::ElementTooLarge { element_bytes: size_of::<T>(), block_bytes };
        if size_of::<T>() > block_bytes || align_of::<T>() > block_bytes {
            return Err(too_large);
        }
        let per_leaf = block_bytes.checked_div(size_of::<T>()).unwrap_or(usize::MAX);
        Ok(Self {
            first: ptr::dangling_mut(),
            directory: Directory::empty(),
            len: 0,
            leaves: 0,
            per_leaf,
            divider: Divider::new(per_leaf),
            small: 0,
            pool,
            owns: PhantomData,
        })
    }

    /// The number of elements.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the tree has no elements.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of elements that fit without another block.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        if Self::IS_ZERO_SIZED {
            usize::MAX
        } else if self.small > 0 {
            self.small
        } else {
            self.leaves * self.per_leaf
        }
    }

    /// Elements per leaf: the length of every slice of [`Tree::leaves`] but the last.
    #[must_use]
    pub const fn per_leaf(&self) -> usize {
        self.per_leaf
    }

    /// The pool that the leaves come from.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Element `index`; `None` beyond the end. Takes one shift, one load of the directory, and the
    /// element's own.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        if index < self.len {
            // SAFETY: the index is below the length.
            Some(unsafe { self.get_unchecked(index) })
        } else {
            None
        }
    }

    /// Element `index`.
    ///
    /// # Safety
    /// `index < len()`.
    #[must_use]
    #[inline]
    pub unsafe fn get_unchecked(&self, index: usize) -> &T {
        // SAFETY: by contract and the invariants the pointer is that of an initialised element,
        // which `&self` keeps from changing.
        unsafe { &*self.pointer(index) }
    }

    /// The first element; `None` when the tree is empty.
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.get(0)
    }

    /// The last element; `None` when the tree is empty.
    #[must_use]
    pub fn last(&self) -> Option<&T> {
        self.get(self.len.wrapping_sub(1))
    }

    /// The leaf number of element `index`.
    #[inline]
    pub(super) fn leaf_of(&self, index: usize) -> usize {
        self.divider.leaf_of(index)
    }

    /// The biased pointer of a leaf: adding `i` gives element `i` of the array.
    ///
    /// # Safety
    /// The leaf exists.
    #[inline]
    pub(super) unsafe fn biased(&self, leaf: usize) -> *mut T {
        if self.leaves <= 1 {
            self.first
        } else {
            // SAFETY: the directory's entries are set for all leaves that exist.
            unsafe { self.directory.get(leaf) }
        }
    }

    /// A pointer to element `index`.
    ///
    /// # Safety
    /// `index` is below the capacity.
    #[inline]
    pub(super) unsafe fn pointer(&self, index: usize) -> *mut T {
        if self.leaves <= 1 {
            return self.first.wrapping_add(index);
        }
        // SAFETY: `index` is below the capacity, so its leaf exists and has an entry.
        unsafe { self.directory.get(self.leaf_of(index)) }.wrapping_add(index)
    }

    /// The directory and divider for loops, which then do not read the tree. A single leaf gets a
    /// directory of one entry.
    #[inline]
    pub(super) fn finder(&self) -> Finder<T> {
        if self.leaves <= 1 {
            Finder { entries: &raw const self.first, divider: Divider::to_first() }
        } else {
            Finder { entries: self.directory.entries(), divider: self.divider }
        }
    }

    /// The block of a leaf.
    ///
    /// # Safety
    /// The leaf exists and is a block.
    pub(super) unsafe fn block(&self, leaf: usize) -> NonNull<u8> {
        // SAFETY: by contract the leaf is a block, whose address is not null.
        unsafe { NonNull::new_unchecked(self.biased(leaf).wrapping_add(leaf * self.per_leaf).cast()) }
    }

    /// The number of elements in a leaf.
    pub(super) const fn leaf_len(&self, leaf: usize) -> usize {
        let before = leaf * self.per_leaf;
        let rest = self.len.saturating_sub(before);
        if rest < self.per_leaf { rest } else { self.per_leaf }
    }

    /// Sets the block of a leaf.
    pub(super) fn set_leaf(&mut self, leaf: usize, block: NonNull<u8>) {
        let memory = block.as_ptr().cast::<T>();
        if leaf == 0 {
            self.first = memory;
        }
        if leaf < self.directory.capacity() {
            self.directory.set(leaf, memory.wrapping_sub(leaf * self.per_leaf));
        }
    }

    /// Adds capacity: doubles the small buffer, or adds a block. Returns the directory if it was
    /// replaced.
    pub(super) fn grow(&mut self) -> Result<Option<Directory<T>>> {
        if Self::IS_ZERO_SIZED {
            return Err(Error::CapacityOverflow { elements: self.len });
        }
        if self.leaves > 1 || self.leaves == 1 && self.small == 0 {
            return self.add_leaf();
        }
        let wanted = (2 * self.small).max(FIRST_SMALL_BYTES / size_of::<T>()).max(1);
        if wanted * size_of::<T>() > self.pool.block_bytes() / 2 {
            self.ensure_first_block().map(|()| None)
        } else {
            self.resize_small(wanted).map(|()| None)
        }
    }

    /// Moves the elements of the small buffer, if there is one, to a first block. No element moves
    /// afterwards.
    pub(super) fn ensure_first_block(&mut self) -> Result<()> {
        if Self::IS_ZERO_SIZED || self.leaves > 0 && self.small == 0 {
            return Ok(());
        }
        let block = self.pool.alloc()?;
        let memory = block.as_ptr().cast::<T>();
        // SAFETY: the block has space for a leaf's elements, of which these are fewer; the old
        // buffer is not used again.
        unsafe { memory.copy_from_nonoverlapping(self.first, self.len) };
        self.free_small();
        self.set_leaf(0, block);
        self.leaves = 1;
        Ok(())
    }

    /// Moves the elements to a small buffer for `capacity` elements; 0 frees the buffer.
    pub(super) fn resize_small(&mut self, capacity: usize) -> Result<()> {
        debug_assert!(
            self.len <= capacity && (self.leaves == 0 || self.small > 0),
            "the tree has no blocks and its elements fit"
        );
        if capacity == 0 {
            self.free_small();
            return Ok(());
        }
        let layout = small_layout::<T>(capacity)?;
        // SAFETY: neither the element size nor the capacity is zero.
        let memory = unsafe { alloc(layout) }.cast::<T>();
        if memory.is_null() {
            return Err(Error::Table { bytes: layout.size() });
        }
        // SAFETY: the new buffer has space for the elements; the old one is not used again.
        unsafe { memory.copy_from_nonoverlapping(self.first, self.len) };
        self.free_small();
        (self.first, self.leaves, self.small) = (memory, 1, capacity);
        Ok(())
    }

    /// Frees the small buffer. Its elements have moved or are dropped.
    pub(super) fn free_small(&mut self) {
        if self.small > 0
            && let Ok(layout) = small_layout::<T>(self.small)
        {
            // SAFETY: the buffer was allocated with this layout.
            unsafe { dealloc(self.first.cast(), layout) };
        }
        (self.first, self.small, self.leaves) = (ptr::dangling_mut(), 0, 0);
    }

    /// Adds a block at the end. Returns the directory if it was replaced.
    fn add_leaf(&mut self) -> Result<Option<Directory<T>>> {
        let leaf = self.leaves;
        if (leaf + 1).saturating_mul(self.per_leaf) > MAX_ELEMENTS {
            return Err(Error::CapacityOverflow { elements: self.len });
        }
        // Allocate the block first: a reader may use the directory that is replaced, so nothing may
        // fail afterwards.
        let block = self.pool.alloc()?;
        let replaced = self.reserve_directory(leaf + 1).inspect_err(|_| self.free_block(block))?;
        self.leaves += 1;
        self.set_leaf(leaf, block);
        Ok(replaced)
    }

    /// Makes space for `leaves` directory entries. Returns the directory if it was replaced.
    pub(super) fn reserve_directory(&mut self, leaves: usize) -> Result<Option<Directory<T>>> {
        if leaves <= self.directory.capacity() {
            return Ok(None);
        }
        let mut larger = self.directory.grow_copy(leaves, self.leaves.min(self.directory.capacity()))?;
        if self.leaves == 1 && self.small == 0 {
            larger.set(0, self.first);
        }
        Ok(Some(mem::replace(&mut self.directory, larger)))
    }

    /// Frees a block of which this tree drops no elements.
    pub(super) fn free_block(&self, block: NonNull<u8>) {
        // SAFETY: the tree holds the block, and the callers forget it.
        let freed = unsafe { self.pool.free(block) };
        debug_assert_eq!(freed, Ok(()), "a leaf's block belongs to the pool");
    }
}

/// See [`Tree::finder`]. Valid while the tree is borrowed and does not grow.
pub(super) struct Finder<T> {
    entries: *const *mut T,
    divider: Divider<T>,
}

impl<T> Finder<T> {
    /// A pointer to element `index`.
    ///
    /// # Safety
    /// `index` is below the capacity of the tree, which has not changed.
    #[inline]
    pub(super) unsafe fn pointer(&self, index: usize) -> *mut T {
        // SAFETY: by contract the element's leaf exists, so it has an entry.
        unsafe { *self.entries.add(self.divider.leaf_of(index)) }.wrapping_add(index)
    }
}

fn small_layout<T>(capacity: usize) -> Result<Layout> {
    Layout::array::<T>(capacity).map_err(|_| Error::CapacityOverflow { elements: capacity })
}
