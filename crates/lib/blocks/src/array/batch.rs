//! Many elements at random places: all addresses of a batch are found and asked for before the first is used, so that their
//! misses, in the caches and in the TLB, overlap.

#![allow(unsafe_code, reason = "keeps raw places between finding and using them")]

use core::mem::MaybeUninit;

use super::traits::out_of_bounds;
use super::tree::Finder;
use super::{Tree, TreeArray};
use crate::prefetch::prefetch;

/// How many are under way: a few times what a core keeps of misses, so that the pauses between batches weigh little.
const BATCH: usize = 64;

impl<T> Tree<T> {
    /// Copies the elements at `indices` to `out`, in their order.
    ///
    /// # Panics
    /// If the two are not equally long, or an index is not below the length.
    pub fn gather(&self, indices: &[usize], out: &mut [T])
    where
        T: Copy,
    {
        assert_eq!(indices.len(), out.len(), "as many places as indices");
        let (finder, len) = (self.finder(), self.len);
        for (indices, out) in indices.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            let mut places = [core::ptr::null_mut::<T>(); BATCH];
            for (place, &index) in places.iter_mut().zip(indices) {
                *place = ask_for(&finder, index, len);
            }
            for (out, &place) in out.iter_mut().zip(&places) {
                // SAFETY: as many places were set as there are indices, each that of an element.
                *out = unsafe { *place };
            }
        }
    }
}

/// The place of an element that will be used soon.
#[inline]
fn ask_for<T>(finder: &Finder<T>, index: usize, len: usize) -> *mut T {
    if index >= len {
        out_of_bounds(index, len);
    }
    // SAFETY: it is an element of the tree that the finder is of.
    let place = unsafe { finder.place(index) };
    prefetch(place);
    place
}

impl<T> TreeArray<T> {
    /// Calls `f` for each index with its element, to be changed, and the value that came with it; in order, so that an index may come
    /// twice.
    ///
    /// # Panics
    /// If an index is not below the length: those of earlier batches are done then. Without memory for the copies of leaves that a
    /// snapshot shares.
    #[inline]
    pub fn update<A: Copy>(&mut self, updates: impl IntoIterator<Item = (usize, A)>, mut f: impl FnMut(&mut T, A)) {
        if self.hold.is_some() {
            // Each write may copy a leaf: there is no use in looking ahead.
            updates.into_iter().for_each(|(index, value)| f(&mut self[index], value));
            return;
        }
        let (finder, len) = (self.tree.finder(), self.tree.len);
        let mut updates = updates.into_iter();
        let mut batch = [MaybeUninit::<(*mut T, A)>::uninit(); BATCH];
        loop {
            let mut count = 0;
            // The batch first: a zip asks its first side first, and must not take an update that has no slot.
            for (slot, (index, value)) in batch.iter_mut().zip(&mut updates) {
                slot.write((ask_for(&finder, index, len), value));
                count += 1;
            }
            for slot in &batch[..count] {
                // SAFETY: the first `count` are written; each place is that of an element, and leaves neither move nor are shared
                // while the array is borrowed here.
                let (place, value) = unsafe { slot.assume_init() };
                // SAFETY: as above; no other reference to an element exists.
                f(unsafe { &mut *place }, value);
            }
            if count < BATCH {
                return;
            }
        }
    }
}
