//! Many elements at random places: all addresses of a batch are found and asked for before the first is used, so that their
//! misses, in the caches and in the TLB, overlap.

#![allow(unsafe_code, reason = "keeps raw places between finding and using them")]

use core::mem::MaybeUninit;

use super::{Tree, TreeArray};
use crate::prefetch::prefetch;

/// How many are under way: about what a core keeps of misses, twice.
const BATCH: usize = 32;

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
        for (indices, out) in indices.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            let mut places = [core::ptr::null::<T>(); BATCH];
            for (place, &index) in places.iter_mut().zip(indices) {
                *place = self.ask_for(index);
            }
            for (out, &place) in out.iter_mut().zip(&places) {
                // SAFETY: as many places were set as there are indices, each that of an element.
                *out = unsafe { *place };
            }
        }
    }

    /// The place of an element that will be used soon.
    #[inline]
    fn ask_for(&self, index: usize) -> *mut T {
        assert!(index < self.len, "element {index} of {}", self.len);
        // SAFETY: it is an element.
        let place = unsafe { self.place(index) };
        prefetch(place);
        place
    }
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
        let mut updates = updates.into_iter();
        let mut batch = [MaybeUninit::<(*mut T, A)>::uninit(); BATCH];
        loop {
            let mut count = 0;
            for (slot, (index, value)) in batch.iter_mut().zip(&mut updates) {
                if self.hold.is_some() && index < self.tree.len {
                    self.own_leaf_of(index);
                }
                slot.write((self.tree.ask_for(index), value));
                count += 1;
            }
            for slot in &batch[..count] {
                // SAFETY: the first `count` are written; each place is that of an element in a leaf of ours alone, which does not
                // change while the array is borrowed here.
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
