//! One writer appends while many read, without a lock: elements never move, and none is shown before it is whole.
//!
//! ```text
//! appender   write element -> len.store(Release)             new directory -> entries.store(Release), the old one is kept
//! reader     len.load(Acquire) -> entries.load(Acquire) -> element
//! ```
//! A reader that sees length n sees a directory that has all leaves of 0..n: it was published before the length was. A directory
//! that was replaced is kept until appender and readers are gone, since a reader may be on its way through it; as each is half of
//! the next, all that is kept is less than what is in use.

#![allow(unsafe_code, reason = "reads raw leaves that another thread appends to")]

use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::ptr;
use core::slice;

use super::directory::Directory;
use super::divider::Divider;
use super::{Tree, TreeArray};
use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicPtr, AtomicUsize, Lock, Ordering};

/// What appender and readers share.
struct Published<T> {
    entries: AtomicPtr<*mut T>,
    len: AtomicUsize,
    replaced: Lock<Vec<Directory<T>>>,
}

// SAFETY: it names a directory and its leaves, whose elements readers only read: that needs `T: Sync`, which `Reader` asks for.
unsafe impl<T> Send for Published<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Published<T> {}

/// The one who appends. The array is as long as it has made it when it is dropped.
pub struct Appender<'a, T> {
    array: &'a mut TreeArray<T>,
    published: Arc<Published<T>>,
}

/// One who reads while another appends; clones may go to many threads.
pub struct Reader<'a, T> {
    published: Arc<Published<T>>,
    per_leaf: usize,
    divider: Divider<T>,
    borrow: PhantomData<&'a T>,
}

impl<T> TreeArray<T> {
    /// Splits the array into one who appends and one who reads meanwhile.
    ///
    /// # Errors
    /// Without memory for a first leaf and a directory.
    pub fn appender(&mut self) -> Result<(Appender<'_, T>, Reader<'_, T>)> {
        self.own_root()?;
        self.reserve_leaf()?;
        if let Some(last) = self.tree.len.checked_sub(1) {
            self.try_own_leaf_of(last)?;
        }
        if !Tree::<T>::IS_ZERO_SIZED {
            self.tree.reserve_directory(2)?;
        }
        let published = Arc::new(Published {
            entries: AtomicPtr::new(self.tree.directory.entries()),
            len: AtomicUsize::new(self.tree.len),
            replaced: Lock::new(Vec::new()),
        });
        let reader = Reader {
            published: published.clone(),
            per_leaf: self.tree.per_leaf,
            divider: self.tree.divider,
            borrow: PhantomData,
        };
        Ok((Appender { array: self, published }, reader))
    }
}

impl<T> Appender<'_, T> {
    /// Appends an element; readers see it from now on.
    ///
    /// # Panics
    /// Without memory for a block.
    #[inline]
    pub fn push(&mut self, value: T) {
        if let Err((_, error)) = self.try_push(value) {
            panic!("an array of {} elements cannot grow: {error}", self.array.len());
        }
    }

    /// Appends an element; readers see it from now on.
    ///
    /// # Errors
    /// The element, with the reason, without memory for a block.
    #[inline]
    pub fn try_push(&mut self, value: T) -> core::result::Result<(), (T, Error)> {
        if self.array.tree.len == self.array.tail_end
            && let Err(error) = self.next_tail()
        {
            return Err((value, error));
        }
        self.array.push(value);
        self.published.len.store(self.array.tree.len, Ordering::Release);
        Ok(())
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.array.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.array.is_empty()
    }

    #[cold]
    fn next_tail(&mut self) -> Result<()> {
        // Room first: a directory that readers may be in must not be dropped for want of a place to keep it.
        let room = self.published.replaced.with(|replaced| replaced.try_reserve(1));
        room.map_err(|_| Error::Table { bytes: size_of::<Directory<T>>() })?;
        if let Some(replaced) = self.array.next_tail()? {
            self.published.entries.store(self.array.tree.directory.entries(), Ordering::Release);
            self.published.replaced.with(|kept| kept.push(replaced));
        }
        Ok(())
    }
}

impl<'a, T> Reader<'a, T> {
    /// How many elements can be read; more later.
    #[must_use]
    pub fn len(&self) -> usize {
        self.published.len.load(Ordering::Acquire)
    }

    /// Whether there are none yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index`, if it is there already. It stays where it is for as long as the array is split.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a T> {
        // SAFETY: `index` is below the length that was read, so its leaf is in the directory and the element is whole; neither
        // moves nor changes while the array is borrowed for `'a`.
        (index < self.len()).then(|| unsafe { &*self.place(index) })
    }

    /// The elements that are there now, a slice for each leaf.
    pub fn leaves(&self) -> impl Iterator<Item = &'a [T]> + use<'a, '_, T> {
        let (len, mut at) = (self.len(), 0_usize);
        core::iter::from_fn(move || {
            let start = at;
            at = start.saturating_add(self.per_leaf).min(len);
            // SAFETY: as in `get`; `start..at` is a leaf's elements, since every start is a leaf's first.
            (start < len).then(|| unsafe { slice::from_raw_parts(self.place(start), at - start) })
        })
    }

    /// Where element `index` lies.
    ///
    /// # Safety
    /// It is below a length that was read.
    #[inline]
    unsafe fn place(&self, index: usize) -> *const T {
        if Tree::<T>::IS_ZERO_SIZED {
            return ptr::dangling();
        }
        let entries = self.published.entries.load(Ordering::Acquire);
        // SAFETY: the directory was published before the length; it is kept, and its entry for this leaf does not change.
        unsafe { *entries.add(self.divider.leaf_of(index)) }.wrapping_add(index)
    }
}

// SAFETY: a reader hands out `&T`.
unsafe impl<T: Sync> Send for Reader<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Reader<'_, T> {}

impl<T> Clone for Reader<'_, T> {
    fn clone(&self) -> Self {
        Self { published: self.published.clone(), ..*self }
    }
}

impl<T> fmt::Debug for Appender<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Appender").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Reader<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("len", &self.len()).finish_non_exhaustive()
    }
}
