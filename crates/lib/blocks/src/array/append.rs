//! One thread appends while others read, without a lock: elements never move, and an element is
//! published only when complete.
//!
//! ```text
//! appender   write element -> len.store(Release)             new directory -> entries.store(Release), the old one is kept
//! reader     len.load(Acquire) -> entries.load(Acquire) -> element
//! ```
//! A reader that loads length n also sees a directory with all leaves of 0..n, since it was
//! published before the length. A replaced directory is kept until appender and readers are gone,
//! since a reader may still use it. Each directory is half of the next, so the kept ones are
//! smaller than the current one.

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

/// The state that appender and readers share.
struct Published<T> {
    entries: AtomicPtr<*mut T>,
    len: AtomicUsize,
    replaced: Lock<Vec<Directory<T>>>,
}

// SAFETY: it points to a directory and leaves that live as long as the array. Readers only read
// elements, with `T: Sync`.
unsafe impl<T> Send for Published<T> {}
// SAFETY: its fields are atomics and a lock. Readers only read elements, with `T: Sync`.
unsafe impl<T> Sync for Published<T> {}

/// Appends to a split array. When it is dropped, the array keeps all appended elements.
pub struct Appender<'a, T> {
    array: &'a mut TreeArray<T>,
    published: Arc<Published<T>>,
}

/// Reads a split array while the [`Appender`] appends. Clones can go to other threads.
pub struct Reader<'a, T> {
    published: Arc<Published<T>>,
    per_leaf: usize,
    divider: Divider<T>,
    borrow: PhantomData<&'a T>,
}

impl<T> TreeArray<T> {
    /// Splits the array into an appender and a reader.
    ///
    /// # Errors
    /// If there is no memory for the first leaf and a directory.
    pub fn appender(&mut self) -> Result<(Appender<'_, T>, Reader<'_, T>)> {
        self.unshare_root()?;
        self.reserve_leaf()?;
        if let Some(last) = self.tree.len.checked_sub(1) {
            self.try_unshare_leaf_of(last)?;
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
    /// Appends an element, which readers see at once.
    ///
    /// # Panics
    /// If there is no memory for a block.
    #[inline]
    pub fn push(&mut self, value: T) {
        if let Err((_, error)) = self.try_push(value) {
            panic!("cannot append to an array of {} elements: {error}", self.array.len());
        }
    }

    /// Appends an element, which readers see at once.
    ///
    /// # Errors
    /// Returns the element and the cause if there is no memory for a block.
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

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.array.len()
    }

    /// Whether the array has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.array.is_empty()
    }

    #[cold]
    fn next_tail(&mut self) -> Result<()> {
        // Reserve first: a directory that readers may use must not be dropped because it cannot be
        // kept.
        let reserved = self.published.replaced.with(|replaced| replaced.try_reserve(1));
        reserved.map_err(|_| Error::Table { bytes: size_of::<Directory<T>>() })?;
        if let Some(replaced) = self.array.next_tail()? {
            self.published.entries.store(self.array.tree.directory.entries(), Ordering::Release);
            self.published.replaced.with(|kept| kept.push(replaced));
        }
        Ok(())
    }
}

impl<'a, T> Reader<'a, T> {
    /// The number of readable elements, which only grows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.published.len.load(Ordering::Acquire)
    }

    /// Whether there are no readable elements yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index`, or `None` if it is not yet published. It does not move while the array is
    /// split.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a T> {
        // SAFETY: `index` is below a length that was loaded, so the directory has its leaf and the
        // element is complete. Neither moves nor changes while the array is borrowed for `'a`.
        (index < self.len()).then(|| unsafe { &*self.pointer(index) })
    }

    /// The elements published so far, one slice per leaf.
    pub fn leaves(&self) -> impl Iterator<Item = &'a [T]> + use<'a, '_, T> {
        let (len, mut at) = (self.len(), 0_usize);
        core::iter::from_fn(move || {
            let start = at;
            at = start.saturating_add(self.per_leaf).min(len);
            // SAFETY: elements below a loaded length are complete and do not move; `start..at` are
            // the elements of one leaf.
            (start < len).then(|| unsafe { slice::from_raw_parts(self.pointer(start), at - start) })
        })
    }

    /// A pointer to element `index`.
    ///
    /// # Safety
    /// `index` is below a length that was loaded.
    #[inline]
    unsafe fn pointer(&self, index: usize) -> *const T {
        if Tree::<T>::IS_ZERO_SIZED {
            return ptr::dangling();
        }
        let entries = self.published.entries.load(Ordering::Acquire);
        // SAFETY: the directory was published before the length. It is kept, and its entry for this
        // leaf does not change.
        unsafe { *entries.add(self.divider.leaf_of(index)) }.wrapping_add(index)
    }
}

// SAFETY: a reader only returns `&T`.
unsafe impl<T: Sync> Send for Reader<'_, T> {}
// SAFETY: a reader only returns `&T`.
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
