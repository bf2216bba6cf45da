//! Growing and shrinking. Amortised O(1) a push, and no push copies what is there once the array has its first block.

#![allow(unsafe_code, reason = "writes elements into raw blocks")]

use core::mem;
use core::ptr;

use super::directory::Directory;
use super::tree::MOST_ELEMENTS;
use super::{Tree, TreeArray};
use crate::error::{Error, Result};
use crate::frames::CHUNK_BYTES;

impl<T> TreeArray<T> {
    /// Appends an element. About a nanosecond into room that is there; a block is taken at the end of each leaf.
    ///
    /// # Panics
    /// Without memory for a block.
    #[inline]
    #[track_caller]
    pub fn push(&mut self, value: T) {
        if self.tree.len == self.tail_end {
            self.next_tail_or_panic();
        }
        // SAFETY: the tail has room for element `len`, in a leaf that is ours alone.
        unsafe { self.tail.wrapping_add(self.tree.len).write(value) };
        self.tree.len += 1;
    }

    /// Appends an element.
    ///
    /// # Errors
    /// The element, with the reason, without memory for a block.
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
            panic!("an array of {} elements cannot grow: {error}", self.tree.len);
        }
    }

    /// Finds, or makes, the room behind the last element. What it returns is the directory that was replaced, if one was.
    #[cold]
    pub(super) fn next_tail(&mut self) -> Result<Option<Directory<T>>> {
        self.own_root()?;
        let len = self.tree.len;
        let replaced = if len == self.tree.capacity() {
            // A new leaf is ours; nothing may fail after it, since the caller has to keep the directory that it replaced.
            self.tree.grow()?
        } else {
            self.try_own_leaf_of(len)?;
            None
        };
        let leaf = if self.tree.leaves <= 1 { 0 } else { self.tree.leaf_of(len) };
        // SAFETY: `len` is below the capacity, so its leaf exists (and is never asked for where elements are of size 0).
        self.tail = unsafe { self.tree.biased(leaf) };
        self.tail_start = leaf.saturating_mul(self.tree.per_leaf);
        self.tail_end = self.tail_start.saturating_add(self.tree.per_leaf).min(self.tree.capacity());
        Ok(replaced)
    }

    /// Appends `count` elements, `make(0)` first, straight into the leaves.
    pub(super) fn try_fill(&mut self, count: usize, mut make: impl FnMut(usize) -> T) -> Result<()> {
        /// Makes what is written count, also when `make` panics.
        struct Written<'a>(&'a mut usize, usize);
        impl Drop for Written<'_> {
            fn drop(&mut self) {
                *self.0 += self.1;
            }
        }
        let mut done = 0;
        while done < count {
            if self.tree.len == self.tail_end {
                self.next_tail()?;
            }
            let room = (self.tail_end - self.tree.len).min(count - done);
            let place = self.tail.wrapping_add(self.tree.len);
            let mut written = Written(&mut self.tree.len, 0);
            while written.1 < room {
                // SAFETY: there is room for so many elements from `place` on.
                unsafe { place.add(written.1).write(make(done + written.1)) };
                written.1 += 1;
            }
            done += room;
        }
        Ok(())
    }

    /// Appends clones of a slice's elements.
    ///
    /// # Errors
    /// Without memory; what was appended before stays.
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
    /// Without memory.
    #[track_caller]
    pub fn extend_from_slice(&mut self, slice: &[T])
    where
        T: Clone,
    {
        if let Err(error) = self.try_extend_from_slice(slice) {
            panic!("no room for {} elements more: {error}", slice.len());
        }
    }

    /// Makes the array `len` elements long: appends `make()`s, or drops what is beyond.
    ///
    /// # Errors
    /// Without memory; what was appended before stays.
    pub fn try_resize_with(&mut self, len: usize, mut make: impl FnMut() -> T) -> Result<()> {
        if len <= self.tree.len {
            self.truncate(len);
            return Ok(());
        }
        self.try_reserve(len - self.tree.len)?;
        self.try_fill(len - self.tree.len, |_| make())
    }

    /// Makes the array `len` elements long: appends `make()`s, or drops what is beyond.
    ///
    /// # Panics
    /// Without memory.
    #[track_caller]
    pub fn resize_with(&mut self, len: usize, make: impl FnMut() -> T) {
        if let Err(error) = self.try_resize_with(len, make) {
            panic!("no room for {len} elements: {error}");
        }
    }

    /// Makes the array `len` elements long: appends clones of `value`, or drops what is beyond.
    ///
    /// # Panics
    /// Without memory.
    #[track_caller]
    pub fn resize(&mut self, len: usize, value: T)
    where
        T: Clone,
    {
        self.resize_with(len, || value.clone());
    }

    /// Moves all elements of `other` to the end.
    ///
    /// # Panics
    /// Without memory.
    #[track_caller]
    pub fn append(&mut self, other: &mut Self) {
        self.reserve(other.len());
        let empty = Self::new_in(&other.tree.pool);
        self.extend(mem::replace(other, empty));
    }

    /// Removes the last element.
    ///
    /// # Panics
    /// Without memory for the copy of a leaf that a snapshot shares.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let last = self.tree.len.checked_sub(1)?;
        if self.hold.is_some() {
            self.own_leaf_of(last);
        }
        self.tree.len = last;
        if last < self.tail_start {
            self.forget_tail();
        }
        // SAFETY: it was an element, and is out of the length.
        Some(unsafe { self.tree.place(last).read() })
    }

    /// Removes element `index` and puts the last one in its place.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn swap_remove(&mut self, index: usize) -> T {
        let last = self.tree.len.wrapping_sub(1);
        self.swap(index, last);
        self.pop().unwrap_or_else(|| unreachable!("the element was there"))
    }

    /// Drops the elements from `len` on; their room stays, but for what snapshots share.
    ///
    /// # Panics
    /// Without memory for the copy of a leaf that a snapshot shares. A panic of a drop goes on after the others are dropped.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.tree.len {
            return;
        }
        let keep = if self.hold.is_some() { self.own_last_of(len) } else { self.tree.leaves };
        // Before the drops, which may panic.
        if len < self.tail_start || keep < self.tree.leaves {
            (self.tail_start, self.tail_end) = (len, len);
        }
        self.tree.drop_leaves(len, keep);
    }

    /// Makes the leaf ours that will be the last one when the array has `len` elements; leaves up to it.
    fn own_last_of(&mut self, len: usize) -> usize {
        self.own_root().unwrap_or_else(|error| panic!("{error}"));
        let Some(last) = len.checked_sub(1) else { return 0 };
        self.own_leaf_of(last);
        if self.tree.leaves <= 1 { 1 } else { self.tree.leaf_of(last) + 1 }
    }

    /// Drops all elements; their room stays, but for what snapshots share.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Makes room for `additional` elements more.
    ///
    /// # Panics
    /// Without memory.
    #[track_caller]
    pub fn reserve(&mut self, additional: usize) {
        if let Err(error) = self.try_reserve(additional) {
            panic!("no room for {additional} elements more: {error}");
        }
    }

    /// Makes room for `additional` elements more.
    ///
    /// # Errors
    /// Without memory; the blocks that could be had stay.
    pub fn try_reserve(&mut self, additional: usize) -> Result<()> {
        let len = self.tree.len;
        let wanted = len.checked_add(additional).ok_or(Error::CapacityOverflow { elements: additional })?;
        if wanted <= self.tree.capacity() {
            return Ok(());
        }
        if wanted > MOST_ELEMENTS {
            return Err(Error::CapacityOverflow { elements: wanted });
        }
        self.own_root()?;
        self.forget_tail();
        let is_small = self.tree.leaves == 0 || self.tree.small > 0;
        let bytes = wanted.saturating_mul(size_of::<T>());
        if is_small && bytes <= self.tree.pool.block_bytes() / 2 {
            let capacity = wanted.max(2 * self.tree.small);
            return self.tree.resize_small(capacity);
        }
        self.tree.begin_leaf()?;
        let leaves = wanted.div_ceil(self.tree.per_leaf);
        if leaves > 1 {
            self.tree.reserve_directory(leaves)?;
        }
        while self.tree.capacity() < wanted {
            self.tree.grow()?;
        }
        Ok(())
    }

    /// Makes the first leaf a block, so that no element moves from now on.
    ///
    /// # Errors
    /// Without memory for it.
    pub fn reserve_leaf(&mut self) -> Result<()> {
        self.own_root()?;
        self.forget_tail();
        self.tree.begin_leaf()
    }

    /// Makes room for `additional` elements more, in memory that is resident: filling it neither calls the kernel nor faults.
    ///
    /// # Errors
    /// Without memory; what could be had stays.
    pub fn reserve_prefault(&mut self, additional: usize) -> Result<()> {
        self.try_reserve(additional)?;
        if Tree::<T>::IS_ZERO_SIZED || self.tree.small > 0 || self.tree.leaves == 0 {
            return Ok(());
        }
        let first = (self.tree.len / self.tree.per_leaf).min(self.tree.leaves - 1);
        let mut leaf = first;
        while leaf < self.tree.leaves {
            // SAFETY: these leaves exist and are blocks.
            let block = |leaf| unsafe { self.tree.block(leaf) };
            let (start, mut end) = (block(leaf), leaf + 1);
            // Neighbours, up to a chunk, go at once.
            let bytes = self.tree.pool.block_bytes();
            while end < self.tree.leaves
                && (end - leaf) * bytes < CHUNK_BYTES
                && block(end).addr().get() == start.addr().get() + (end - leaf) * bytes
            {
                end += 1;
            }
            // SAFETY: the blocks are ours.
            unsafe { self.tree.pool.prefault(start, (end - leaf) * bytes)? };
            leaf = end;
        }
        Ok(())
    }

    /// Gives room back that no element lies in.
    pub fn shrink_to_fit(&mut self) {
        if self.own_root().is_err() {
            return;
        }
        self.forget_tail();
        let len = self.tree.len;
        if self.tree.small > 0 {
            // Without memory for a smaller place, the larger one does.
            let _ = self.tree.resize_small(len);
        } else if !Tree::<T>::IS_ZERO_SIZED {
            let keep = len.div_ceil(self.tree.per_leaf);
            self.tree.drop_leaves(len, keep);
        }
    }

    /// The tree, ours alone.
    pub(super) fn into_tree(mut self) -> Tree<T> {
        self.try_own_all().unwrap_or_else(|error| panic!("what a snapshot shares cannot be copied: {error}"));
        // SAFETY: the tree is ours alone, and `self` is forgotten; its hold is none by now.
        let tree = unsafe { ptr::read(&raw const *self.tree) };
        mem::forget(self);
        tree
    }
}
