//! Leaf by leaf: the elements as slices. Everything that is fast goes this way, since a loop over a slice is what compilers vectorise.
//!
//! Source: Zagieboylo, Suh and Myers, section 3: the iterator as a software walk cache. Here the cache is the slice.

#![allow(unsafe_code, reason = "makes slices of raw leaves")]

use core::iter::FusedIterator;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use super::tree::Tree;

/// The places of elements `start..end`, leaf by leaf, from both ends.
#[derive(Debug)]
pub(super) struct RawLeaves<'a, T> {
    tree: &'a Tree<T>,
    start: usize,
    end: usize,
}

impl<'a, T> RawLeaves<'a, T> {
    /// The elements `start..end`, which are below the tree's capacity.
    pub(super) fn new(tree: &'a Tree<T>, start: usize, end: usize) -> Self {
        Self { tree, start, end }
    }

    /// The leaf of an element that is there, by number.
    fn leaf_of(&self, index: usize) -> usize {
        if self.tree.leaves <= 1 { 0 } else { self.tree.leaf_of(index) }
    }

    fn slice(&self, start: usize, end: usize) -> NonNull<[T]> {
        // SAFETY: `start` is below the capacity.
        let first = unsafe { self.tree.place(start) };
        // SAFETY: an element's place, or a dangling one for elements of size 0, is not null.
        unsafe { NonNull::new_unchecked(ptr::slice_from_raw_parts_mut(first, end - start)) }
    }

    const fn elements(&self) -> usize {
        self.end - self.start
    }

    fn count_leaves(&self) -> usize {
        if self.start == self.end { 0 } else { self.leaf_of(self.end - 1) - self.leaf_of(self.start) + 1 }
    }
}

impl<T> Clone for RawLeaves<'_, T> {
    fn clone(&self) -> Self {
        Self { tree: self.tree, start: self.start, end: self.end }
    }
}

impl<T> Iterator for RawLeaves<'_, T> {
    type Item = NonNull<[T]>;

    #[inline]
    fn next(&mut self) -> Option<NonNull<[T]>> {
        if self.start == self.end {
            return None;
        }
        // The usual case of a small array: its only leaf, without a look at where it ends.
        let next = if self.tree.leaves <= 1 {
            self.end
        } else {
            ((self.tree.leaf_of(self.start) + 1) * self.tree.per_leaf).min(self.end)
        };
        let slice = self.slice(self.start, next);
        self.start = next;
        Some(slice)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.count_leaves();
        (count, Some(count))
    }
}

impl<T> DoubleEndedIterator for RawLeaves<'_, T> {
    #[inline]
    fn next_back(&mut self) -> Option<NonNull<[T]>> {
        if self.start == self.end {
            return None;
        }
        let first = (self.leaf_of(self.end - 1) * self.tree.per_leaf).max(self.start);
        let slice = self.slice(first, self.end);
        self.end = first;
        Some(slice)
    }
}

/// A run of elements that knows how many are left, and can pass over some.
pub(super) trait Elements {
    fn elements(&self) -> usize;
    fn pass(&mut self, elements: usize);
    fn pass_back(&mut self, elements: usize);
}

macro_rules! leaves {
    ($(#[$doc:meta])* $name:ident, $slice:ty, $of:ident, $borrow:ty) => {
        $(#[$doc])*
        pub struct $name<'a, T> {
            raw: RawLeaves<'a, T>,
            borrow: PhantomData<$borrow>,
        }

        impl<'a, T> $name<'a, T> {
            /// The elements `start..end` of the tree.
            ///
            /// # Safety
            /// They are initialised, and borrowed for `'a` as the type says.
            pub(super) unsafe fn of(tree: &'a Tree<T>, start: usize, end: usize) -> Self {
                Self { raw: RawLeaves::new(tree, start, end), borrow: PhantomData }
            }
        }

        impl<'a, T> Iterator for $name<'a, T> {
            type Item = $slice;

            #[inline]
            fn next(&mut self) -> Option<$slice> {
                // SAFETY: initialised and borrowed, by the contract of `of`; each leaf is given once.
                self.raw.next().map(|mut leaf| unsafe { leaf.$of() })
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.raw.size_hint()
            }
        }

        impl<T> DoubleEndedIterator for $name<'_, T> {
            #[inline]
            fn next_back(&mut self) -> Option<Self::Item> {
                // SAFETY: as in `next`.
                self.raw.next_back().map(|mut leaf| unsafe { leaf.$of() })
            }
        }

        impl<T> ExactSizeIterator for $name<'_, T> {}
        impl<T> FusedIterator for $name<'_, T> {}

        impl<T> Elements for $name<'_, T> {
            fn elements(&self) -> usize {
                self.raw.elements()
            }

            fn pass(&mut self, elements: usize) {
                self.raw.start += elements;
            }

            fn pass_back(&mut self, elements: usize) {
                self.raw.end -= elements;
            }
        }

        impl<T> core::fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name)).field("elements", &self.raw.elements()).finish()
            }
        }
    };
}

leaves!(
    /// Slices of the elements, a leaf each.
    Leaves, &'a [T], as_ref_of, &'a T
);
leaves!(
    /// Mutable slices of the elements, a leaf each.
    LeavesMut, &'a mut [T], as_mut_of, &'a mut T
);

/// `as_ref` and `as_mut` under names of one shape for the macro above.
trait Borrow<T> {
    unsafe fn as_ref_of<'a>(&mut self) -> &'a [T];
    unsafe fn as_mut_of<'a>(&mut self) -> &'a mut [T];
}

impl<T> Borrow<T> for NonNull<[T]> {
    #[inline]
    unsafe fn as_ref_of<'a>(&mut self) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { self.as_ref() }
    }

    #[inline]
    unsafe fn as_mut_of<'a>(&mut self) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { self.as_mut() }
    }
}

impl<T> Clone for Leaves<'_, T> {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), borrow: PhantomData }
    }
}

// SAFETY: it hands out references to elements that it borrows alone, as a mutable slice does.
unsafe impl<T: Send> Send for LeavesMut<'_, T> {}
// SAFETY: through a shared one nothing is handed out.
unsafe impl<T: Sync> Sync for LeavesMut<'_, T> {}
