//! The tree itself: where its elements lie, and how they are read.
//!
//! ```text
//! small                   | T T T . |                      from the program's allocator, doubling until a block is worth it
//! one leaf       first -> | T T T T T T . . |              a block; no directory is looked at
//! more       directory -> [ 0 | 1 | 2 | . ]
//!                           |   |   `-> | T T T . . . . . |
//!                           |   `-----> | T T T T T T T T |
//!                           `---------> | T T T T T T T T |   per_leaf elements each
//! ```
//! Source: Zagieboylo, Suh and Myers, sections 3 and 4.2; Zagieboylo's "Custom Array Implementation". Where we differ: theirs is a
//! radix tree of up to three levels that is walked, and its depth tested, at each access. Here one directory of biased pointers is
//! all there is above the leaves (16 KiB of it for 4 GiB), so that a get is two dependent loads at any size, and one for a single leaf.
//!
//! Invariants: elements `0..len` are initialised; leaves `0..leaves` exist; `first` is leaf 0 where there is one; where leaves are
//! blocks and there is a directory, its entries `0..leaves` are set. An element of size 0 has no leaf; its address is dangling.

#![allow(unsafe_code, reason = "elements lie in raw blocks")]

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem;
use core::ptr::{self, NonNull};

use super::directory::Directory;
use super::divider::Divider;
use crate::error::{Error, Result};
use crate::pool::Pool;

/// The elements of an array, to be read: what a [`crate::TreeArray`] and a [`crate::Snapshot`] have in common.
///
/// It stands to them as a slice stands to a vector.
pub struct Tree<T> {
    pub(super) first: *mut T,
    pub(super) directory: Directory<T>,
    pub(super) len: usize,
    pub(super) leaves: usize,
    /// Elements of a leaf.
    pub(super) per_leaf: usize,
    pub(super) divider: Divider<T>,
    /// Elements that the small beginning has room for; 0 when the first leaf is a block.
    pub(super) small: usize,
    pub(super) pool: Pool,
    owns: PhantomData<T>,
}

// SAFETY: a tree owns its elements, as a vector does; shares of leaves with snapshots need `T: Send + Sync` to be made.
unsafe impl<T: Send> Send for Tree<T> {}
// SAFETY: through a shared tree elements are only read.
unsafe impl<T: Sync> Sync for Tree<T> {}

/// More elements than this cannot be numbered by the reciprocal.
pub(super) const MOST_ELEMENTS: usize = 1 << 42;

/// Small beginnings start here and end at half a block.
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

    /// How many elements there is room for without another block.
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

    /// Elements of a leaf: the length of every slice of [`Tree::leaves`] but the last.
    #[must_use]
    pub const fn per_leaf(&self) -> usize {
        self.per_leaf
    }

    /// The pool that the leaves come from.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Element `index`, if there is one. One shift, one load of the directory, and the element's own.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        if index < self.len {
            // SAFETY: it is an element.
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
        // SAFETY: by contract and the invariants the place holds an element; `&self` keeps it from changing.
        unsafe { &*self.place(index) }
    }

    /// The first element.
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.get(0)
    }

    /// The last element.
    #[must_use]
    pub fn last(&self) -> Option<&T> {
        self.get(self.len.wrapping_sub(1))
    }

    /// The leaf of element `index`.
    #[inline]
    pub(super) fn leaf_of(&self, index: usize) -> usize {
        self.divider.leaf_of(index)
    }

    /// The biased pointer of a leaf: element `i` of it lies at `+ i`.
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

    /// Where element `index` lies.
    ///
    /// # Safety
    /// `index` is below the capacity.
    #[inline]
    pub(super) unsafe fn place(&self, index: usize) -> *mut T {
        if self.leaves <= 1 {
            return self.first.wrapping_add(index);
        }
        // SAFETY: below the capacity, so its leaf exists.
        unsafe { self.directory.get(self.leaf_of(index)) }.wrapping_add(index)
    }

    /// What finds a place in a loop without a look at the tree: a directory, be it of one leaf, and its divider.
    #[inline]
    pub(super) fn finder(&self) -> Finder<T> {
        if self.leaves <= 1 {
            Finder { entries: &raw const self.first, divider: Divider::to_first() }
        } else {
            Finder { entries: self.directory.entries(), divider: self.divider }
        }
    }

    /// A leaf's block.
    ///
    /// # Safety
    /// The leaf exists and is a block.
    pub(super) unsafe fn block(&self, leaf: usize) -> NonNull<u8> {
        // SAFETY: by contract; a block is not null.
        unsafe { NonNull::new_unchecked(self.biased(leaf).wrapping_add(leaf * self.per_leaf).cast()) }
    }

    /// Elements that lie in a leaf.
    pub(super) const fn leaf_len(&self, leaf: usize) -> usize {
        let before = leaf * self.per_leaf;
        let rest = self.len.saturating_sub(before);
        if rest < self.per_leaf { rest } else { self.per_leaf }
    }

    /// Puts a block where a leaf is.
    pub(super) fn set_leaf(&mut self, leaf: usize, block: NonNull<u8>) {
        let memory = block.as_ptr().cast::<T>();
        if leaf == 0 {
            self.first = memory;
        }
        if leaf < self.directory.capacity() {
            self.directory.set(leaf, memory.wrapping_sub(leaf * self.per_leaf));
        }
    }

    /// Adds room: doubles the small beginning, or takes a block. What it returns is the directory that was replaced, if one was.
    pub(super) fn grow(&mut self) -> Result<Option<Directory<T>>> {
        if Self::IS_ZERO_SIZED {
            return Err(Error::CapacityOverflow { elements: self.len });
        }
        if self.leaves > 1 || self.leaves == 1 && self.small == 0 {
            return self.add_leaf();
        }
        let wanted = (2 * self.small).max(FIRST_SMALL_BYTES / size_of::<T>()).max(1);
        if wanted * size_of::<T>() > self.pool.block_bytes() / 2 {
            self.begin_leaf().map(|()| None)
        } else {
            self.resize_small(wanted).map(|()| None)
        }
    }

    /// Moves the small beginning, if there is one, into a first block. From then on no element ever moves.
    pub(super) fn begin_leaf(&mut self) -> Result<()> {
        if Self::IS_ZERO_SIZED || self.leaves > 0 && self.small == 0 {
            return Ok(());
        }
        let block = self.pool.alloc()?;
        let memory = block.as_ptr().cast::<T>();
        // SAFETY: the block has room for a leaf's elements, of which these are fewer; the old place is not used again.
        unsafe { memory.copy_from_nonoverlapping(self.first, self.len) };
        self.free_small();
        self.set_leaf(0, block);
        self.leaves = 1;
        Ok(())
    }

    /// Moves the small beginning to one with room for `capacity` elements; 0 frees it.
    pub(super) fn resize_small(&mut self, capacity: usize) -> Result<()> {
        debug_assert!(self.len <= capacity && (self.leaves == 0 || self.small > 0), "it is small and fits");
        if capacity == 0 {
            self.free_small();
            return Ok(());
        }
        let layout = small_layout::<T>(capacity)?;
        // SAFETY: neither elements nor capacity are of size zero.
        let memory = unsafe { alloc(layout) }.cast::<T>();
        if memory.is_null() {
            return Err(Error::Table { bytes: layout.size() });
        }
        // SAFETY: the new place has room for the elements; the old one is not used again.
        unsafe { memory.copy_from_nonoverlapping(self.first, self.len) };
        self.free_small();
        (self.first, self.leaves, self.small) = (memory, 1, capacity);
        Ok(())
    }

    /// Frees the small beginning's memory; its elements have moved, or are dropped.
    pub(super) fn free_small(&mut self) {
        if self.small > 0
            && let Ok(layout) = small_layout::<T>(self.small)
        {
            // SAFETY: it was allocated with this layout.
            unsafe { dealloc(self.first.cast(), layout) };
        }
        (self.first, self.small, self.leaves) = (ptr::dangling_mut(), 0, 0);
    }

    /// Adds a block at the end.
    fn add_leaf(&mut self) -> Result<Option<Directory<T>>> {
        let leaf = self.leaves;
        if (leaf + 1).saturating_mul(self.per_leaf) > MOST_ELEMENTS {
            return Err(Error::CapacityOverflow { elements: self.len });
        }
        // The block first: a reader may be in the directory that is replaced, so nothing may fail after that.
        let block = self.pool.alloc()?;
        let replaced = self.reserve_directory(leaf + 1).inspect_err(|_| self.free_block(block))?;
        self.leaves += 1;
        self.set_leaf(leaf, block);
        Ok(replaced)
    }

    /// Makes room for `leaves` entries.
    pub(super) fn reserve_directory(&mut self, leaves: usize) -> Result<Option<Directory<T>>> {
        if leaves <= self.directory.capacity() {
            return Ok(None);
        }
        let mut grown = self.directory.grown(leaves, self.leaves.min(self.directory.capacity()))?;
        if self.leaves == 1 && self.small == 0 {
            grown.set(0, self.first);
        }
        Ok(Some(mem::replace(&mut self.directory, grown)))
    }

    /// Gives a block back that holds no elements of ours.
    pub(super) fn free_block(&self, block: NonNull<u8>) {
        // SAFETY: the tree holds the block, and forgets it in the same step.
        let freed = unsafe { self.pool.free(block) };
        debug_assert_eq!(freed, Ok(()), "a leaf is a block of the pool");
    }
}

/// See [`Tree::finder`]. Good while the tree is borrowed and does not grow.
pub(super) struct Finder<T> {
    entries: *const *mut T,
    divider: Divider<T>,
}

impl<T> Finder<T> {
    /// Where element `index` lies.
    ///
    /// # Safety
    /// `index` is below the capacity of the tree, which has not changed.
    #[inline]
    pub(super) unsafe fn place(&self, index: usize) -> *mut T {
        // SAFETY: the element's leaf has an entry.
        unsafe { *self.entries.add(self.divider.leaf_of(index)) }.wrapping_add(index)
    }
}

fn small_layout<T>(capacity: usize) -> Result<Layout> {
    Layout::array::<T>(capacity).map_err(|_| Error::CapacityOverflow { elements: capacity })
}
