//! Access to many random elements: computes and prefetches all addresses of a batch before it uses
//! the first, so that their cache and TLB misses overlap.

#![allow(unsafe_code, reason = "keeps raw pointers between computing and using them")]

use core::mem::MaybeUninit;

use super::traits::out_of_bounds;
use super::tree::Finder;
use super::{Tree, TreeArray};
use crate::prefetch::prefetch;

/// Elements in a batch: several times the misses a core can overlap, so that the gaps between
/// batches cost little.
const BATCH: usize = 64;

impl<T> Tree<T> {
    /// Copies the elements at `indices` to `out`, in their order.
    ///
    /// # Panics
    /// If the slices' lengths differ, or an index is not below the length.
    pub fn gather(&self, indices: &[usize], out: &mut [T])
    where
        T: Copy,
    {
        assert_eq!(indices.len(), out.len(), "`indices` and `out` differ in length");
        let (finder, len) = (self.finder(), self.len);
        for (indices, out) in indices.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            let mut pointers = [core::ptr::null_mut::<T>(); BATCH];
            for (pointer, &index) in pointers.iter_mut().zip(indices) {
                *pointer = prefetch_element(&finder, index, len);
            }
            for (out, &pointer) in out.iter_mut().zip(&pointers) {
                // SAFETY: the first loop set as many pointers as there are indices, each to an
                // element.
                *out = unsafe { *pointer };
            }
        }
    }
}

/// Prefetches an element and returns its pointer.
#[inline]
fn prefetch_element<T>(finder: &Finder<T>, index: usize, len: usize) -> *mut T {
    if index >= len {
        out_of_bounds(index, len);
    }
    // SAFETY: the index is below the length of the finder's tree.
    let pointer = unsafe { finder.pointer(index) };
    prefetch(pointer);
    pointer
}

impl<T> TreeArray<T> {
    /// Calls `f` with the element at each index and the value that came with the index, in order.
    /// An index may repeat.
    ///
    /// # Panics
    /// If an index is not below the length; earlier batches are then complete. If there is no
    /// memory to copy leaves that a snapshot shares.
    #[inline]
    pub fn update<A: Copy>(&mut self, updates: impl IntoIterator<Item = (usize, A)>, mut f: impl FnMut(&mut T, A)) {
        if self.cow.is_some() {
            // Each write may copy a leaf, so prefetching would not help.
            updates.into_iter().for_each(|(index, value)| f(&mut self[index], value));
            return;
        }
        let (finder, len) = (self.tree.finder(), self.tree.len);
        let mut updates = updates.into_iter();
        let mut batch = [MaybeUninit::<(*mut T, A)>::uninit(); BATCH];
        loop {
            let mut count = 0;
            // `zip` takes from its first side first. With the batch there, no update is taken
            // without a slot.
            for (slot, (index, value)) in batch.iter_mut().zip(&mut updates) {
                slot.write((prefetch_element(&finder, index, len), value));
                count += 1;
            }
            for slot in &batch[..count] {
                // SAFETY: the first `count` slots are written. Each pointer is that of an element,
                // and leaves neither move nor become shared during this borrow.
                let (pointer, value) = unsafe { slot.assume_init() };
                // SAFETY: the pointer is that of an element of an unshared leaf, and no other
                // reference to an element exists.
                f(unsafe { &mut *pointer }, value);
            }
            if count < BATCH {
                return;
            }
        }
    }
}
