//! Growing and shrinking. A push takes amortised O(1), and copies no elements once the array has
//! its first block.

#![allow(unsafe_code, reason = "writes elements into raw blocks")]

use core::mem;
use core::ptr;

use super::directory::Directory;
use super::tree::MAX_ELEMENTS;
use super::{Tree, TreeArray};
use crate::error::{Error, Result};
use crate::frames::CHUNK_BYTES;

impl<T> TreeArray<T> {
    /// Appends an element, in about a nanosecond. Allocates a block at the end of each leaf.
    ///
    /// # Panics
    /// If there is no memory for a block.
    #[inline]
    #[track_caller]
    pub fn push(&mut self, value: T) {
        if self.tree.len == self.tail_end {
            self.next_tail_or_panic();
        }
        // SAFETY: the tail has space for element `len`, in an unshared leaf.
        unsafe { self.tail.wrapping_add(self.tree.len).write(value) };
        self.tree.len += 1;
    }

    /// Appends an element.
    ///
    /// # Errors
    /// Returns the element and the cause if there is no memory for a block.
    #[inline]
    pub fn try_push(&mut self, value: T) -> core::result::Result<(), (T, Error)> {
        if self.tree.len == self.tail_end
            && let Err(error) = self.next_tail()
        {
            return Err((value, error));
        }
        self.push(value);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn next_tail_or_panic(&mut self) {
        if let Err(error) = self.next_tail() {
            panic!("cannot append to an array of {} elements: {error}", self.tree.len);
        }
    }

    /// Finds or allocates the tail, the free space behind the last element. Returns the directory
    /// if it was replaced.
    #[cold]
    pub(super) fn next_tail(&mut self) -> Result<Option<Directory<T>>> {
        self.unshare_root()?;
        let len = self.tree.len;
        let replaced = if len == self.tree.capacity() {
            // A new leaf is unshared. Nothing may fail after `grow`: the caller has to keep the
            // replaced directory.
            self.tree.grow()?
        } else {
            self.try_unshare_leaf_of(len)?;
            None
        };
        let leaf = if self.tree.leaves <= 1 { 0 } else { self.tree.leaf_of(len) };
        // SAFETY: `len` is below the capacity, so its leaf exists. Zero-sized elements never
        // dereference it.
        self.tail = unsafe { self.tree.biased(leaf) };
        self.tail_start = leaf.saturating_mul(self.tree.per_leaf);
        self.tail_end = self.tail_start.saturating_add(self.tree.per_leaf).min(self.tree.capacity());
        Ok(replaced)
    }

    /// Appends `count` elements, `make(0)` first, directly into the leaves.
    pub(super) fn try_fill(&mut self, count: usize, mut make: impl FnMut(usize) -> T) -> Result<()> {
        /// Adds the written elements to the length, also if `make` panics.
        struct LengthGuard<'a>(&'a mut usize, usize);
        impl Drop for LengthGuard<'_> {
            fn drop(&mut self) {
                *self.0 += self.1;
            }
        }
        let mut done = 0;
        while done < count {
            if self.tree.len == self.tail_end {
                self.next_tail()?;
            }
            let free = (self.tail_end - self.tree.len).min(count - done);
            let place = self.tail.wrapping_add(self.tree.len);
            let mut guard = LengthGuard(&mut self.tree.len, 0);
            while guard.1 < free {
                // SAFETY: the tail has space for `free` elements from `place` on.
                unsafe { place.add(guard.1).write(make(done + guard.1)) };
                guard.1 += 1;
            }
            done += free;
        }
        Ok(())
    }

    /// Appends clones of a slice's elements.
    ///
    /// # Errors
    /// If there is no memory; elements appended before stay.
    pub fn try_extend_from_slice(&mut self, slice: &[T]) -> Result<()>
    where
        T: Clone,
    {
        self.try_reserve(slice.len())?;
        self.try_fill(slice.len(), |at| slice[at].clone())
    }

    /// Appends clones of a slice's elements.
    ///
    /// # Panics
    /// If there is no memory.
    #[track_caller]
    pub fn extend_from_slice(&mut self, slice: &[T])
    where
        T: Clone,
    {
        if let Err(error) = self.try_extend_from_slice(slice) {
            panic!("cannot append {} elements: {error}", slice.len());
        }
    }

    /// Resizes the array to `len` elements: appends results of `make`, or drops elements.
    ///
    /// # Errors
    /// If there is no memory; elements appended before stay.
    pub fn try_resize_with(&mut self, len: usize, mut make: impl FnMut() -> T) -> Result<()> {
        if len <= self.tree.len {
            self.truncate(len);
            return Ok(());
        }
        self.try_reserve(len - self.tree.len)?;
        self.try_fill(len - self.tree.len, |_| make())
    }

    /// Resizes the array to `len` elements: appends results of `make`, or drops elements.
    ///
    /// # Panics
    /// If there is no memory.
    #[track_caller]
    pub fn resize_with(&mut self, len: usize, make: impl FnMut() -> T) {
        if let Err(error) = self.try_resize_with(len, make) {
            panic!("cannot resize an array to {len} elements: {error}");
        }
    }

    /// Resizes the array to `len` elements: appends clones of `value`, or drops elements.
    ///
    /// # Panics
    /// If there is no memory.
    #[track_caller]
    pub fn resize(&mut self, len: usize, value: T)
    where
        T: Clone,
    {
        self.resize_with(len, || value.clone());
    }

    /// Moves all elements of `other` to the end of this array.
    ///
    /// # Panics
    /// If there is no memory.
    #[track_caller]
    pub fn append(&mut self, other: &mut Self) {
        self.reserve(other.len());
        let empty = Self::new_in(&other.tree.pool);
        self.extend(mem::replace(other, empty));
    }

    /// Removes and returns the last element; `None` when the array is empty.
    ///
    /// # Panics
    /// If there is no memory to copy a leaf that a snapshot shares.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let last = self.tree.len.checked_sub(1)?;
        if self.cow.is_some() {
            self.unshare_leaf_of(last);
        }
        self.tree.len = last;
        if last < self.tail_start {
            self.forget_tail();
        }
        // SAFETY: it was an element, and the length no longer includes it.
        Some(unsafe { self.tree.pointer(last).read() })
    }

    /// Removes element `index` and moves the last one to its index.
    ///
    /// # Panics
    /// If `index` is not below the length.
    pub fn swap_remove(&mut self, index: usize) -> T {
        let last = self.tree.len.wrapping_sub(1);
        self.swap(index, last);
        self.pop().unwrap_or_else(|| unreachable!("the element was there"))
    }

    /// Drops the elements from `len` on. Keeps their memory, except leaves that snapshots share.
    ///
    /// # Panics
    /// If there is no memory to copy a leaf that a snapshot shares. A panic of an element's drop is
    /// resumed after the other drops.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.tree.len {
            return;
        }
        let keep = if self.cow.is_some() { self.unshare_last_of(len) } else { self.tree.leaves };
        // Update the tail first, since a drop may panic.
        if len < self.tail_start || keep < self.tree.leaves {
            (self.tail_start, self.tail_end) = (len, len);
        }
        self.tree.drop_leaves(len, keep);
    }

    /// Unshares the leaf that is last when the array has `len` elements. Returns the number of
    /// leaves up to it.
    fn unshare_last_of(&mut self, len: usize) -> usize {
        self.unshare_root().unwrap_or_else(|error| panic!("{error}"));
        let Some(last) = len.checked_sub(1) else { return 0 };
        self.unshare_leaf_of(last);
        if self.tree.leaves <= 1 { 1 } else { self.tree.leaf_of(last) + 1 }
    }

    /// Drops all elements. Keeps their memory, except leaves that snapshots share.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Reserves memory for `additional` more elements.
    ///
    /// # Panics
    /// If there is no memory.
    #[track_caller]
    pub fn reserve(&mut self, additional: usize) {
        if let Err(error) = self.try_reserve(additional) {
            panic!("cannot reserve memory for {additional} more elements: {error}");
        }
    }

    /// Reserves memory for `additional` more elements.
    ///
    /// # Errors
    /// If there is no memory; blocks already allocated stay.
    pub fn try_reserve(&mut self, additional: usize) -> Result<()> {
        let len = self.tree.len;
        let wanted = len.checked_add(additional).ok_or(Error::CapacityOverflow { elements: additional })?;
        if wanted <= self.tree.capacity() {
            return Ok(());
        }
        if wanted > MAX_ELEMENTS {
            return Err(Error::CapacityOverflow { elements: wanted });
        }
        self.unshare_root()?;
        self.forget_tail();
        let is_small = self.tree.leaves == 0 || self.tree.small > 0;
        let bytes = wanted.saturating_mul(size_of::<T>());
        if is_small && bytes <= self.tree.pool.block_bytes() / 2 {
            let capacity = wanted.max(2 * self.tree.small);
            return self.tree.resize_small(capacity);
        }
        self.tree.ensure_first_block()?;
        let leaves = wanted.div_ceil(self.tree.per_leaf);
        if leaves > 1 {
            self.tree.reserve_directory(leaves)?;
        }
        while self.tree.capacity() < wanted {
            self.tree.grow()?;
        }
        Ok(())
    }

    /// Makes the first leaf a block, so that elements never move from now on.
    ///
    /// # Errors
    /// If there is no memory for the block.
    pub fn reserve_leaf(&mut self) -> Result<()> {
        self.unshare_root()?;
        self.forget_tail();
        self.tree.ensure_first_block()
    }

    /// Reserves resident memory for `additional` more elements: appending them neither calls the
    /// kernel nor faults.
    ///
    /// # Errors
    /// If there is no memory; blocks already allocated stay.
    pub fn reserve_prefault(&mut self, additional: usize) -> Result<()> {
        self.try_reserve(additional)?;
        if Tree::<T>::IS_ZERO_SIZED || self.tree.small > 0 || self.tree.leaves == 0 {
            return Ok(());
        }
        let first = (self.tree.len / self.tree.per_leaf).min(self.tree.leaves - 1);
        let mut leaf = first;
        while leaf < self.tree.leaves {
            // SAFETY: `leaf` is below the number of leaves, and the checks above exclude leaves
            // that are not blocks.
            let block = |leaf| unsafe { self.tree.block(leaf) };
            let (start, mut end) = (block(leaf), leaf + 1);
            // Prefault adjacent blocks together, up to the size of a chunk.
            let bytes = self.tree.pool.block_bytes();
            while end < self.tree.leaves
                && (end - leaf) * bytes < CHUNK_BYTES
                && block(end).addr().get() == start.addr().get() + (end - leaf) * bytes
            {
                end += 1;
            }
            // SAFETY: the tree holds these blocks.
            unsafe { self.tree.pool.prefault(start, (end - leaf) * bytes)? };
            leaf = end;
        }
        Ok(())
    }

    /// Frees memory without elements.
    pub fn shrink_to_fit(&mut self) {
        if self.unshare_root().is_err() {
            return;
        }
        self.forget_tail();
        let len = self.tree.len;
        if self.tree.small > 0 {
            // If a smaller buffer cannot be allocated, keep the larger one.
            let _ = self.tree.resize_small(len);
        } else if !Tree::<T>::IS_ZERO_SIZED {
            let keep = len.div_ceil(self.tree.per_leaf);
            self.tree.drop_leaves(len, keep);
        }
    }

    /// Converts the array to an unshared tree.
    pub(super) fn into_tree(mut self) -> Tree<T> {
        self.try_unshare_all().unwrap_or_else(|error| panic!("cannot copy leaves shared with a snapshot: {error}"));
        // SAFETY: the tree is unshared, so it is not a copy of a root; `self` is forgotten, so the
        // tree is dropped once.
        let tree = unsafe { ptr::read(&raw const *self.tree) };
        mem::forget(self);
        tree
    }
}
