//! Iteration leaf by leaf: the elements as slices, which compilers vectorise.
//!
//! Source: Zagieboylo, Suh and Myers, section 3: the iterator as a software walk cache. Here the
//! cache is the slice.

#![allow(unsafe_code, reason = "creates slices of raw leaves")]

use core::iter::FusedIterator;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use super::tree::Tree;

/// The memory of elements `start..end` as slices, one per leaf, iterated from both ends.
#[derive(Debug)]
pub(super) struct RawLeaves<'a, T> {
    tree: &'a Tree<T>,
    start: usize,
    end: usize,
}

impl<'a, T> RawLeaves<'a, T> {
    /// The elements `start..end`, both at most the tree's capacity.
    pub(super) fn new(tree: &'a Tree<T>, start: usize, end: usize) -> Self {
        Self { tree, start, end }
    }

    /// The leaf number of an element in the range.
    fn leaf_of(&self, index: usize) -> usize {
        if self.tree.leaves <= 1 { 0 } else { self.tree.leaf_of(index) }
    }

    fn slice(&self, start: usize, end: usize) -> NonNull<[T]> {
        // SAFETY: the range is not empty, so `start` is below the capacity.
        let first = unsafe { self.tree.pointer(start) };
        // SAFETY: a pointer to an element, or a dangling one for zero-sized elements, is not null.
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
        // A small array has one leaf, whose end needs no lookup.
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

/// A range of elements with a known length that can skip some at either end.
pub(super) trait ElementRange {
    fn elements(&self) -> usize;
    fn skip_front(&mut self, elements: usize);
    fn skip_back(&mut self, elements: usize);
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
            /// The elements are initialised, and borrowed for `'a` as the type requires.
            pub(super) unsafe fn of(tree: &'a Tree<T>, start: usize, end: usize) -> Self {
                Self { raw: RawLeaves::new(tree, start, end), borrow: PhantomData }
            }
        }

        impl<'a, T> Iterator for $name<'a, T> {
            type Item = $slice;

            #[inline]
            fn next(&mut self) -> Option<$slice> {
                // SAFETY: by the contract of `of` the elements are initialised and borrowed; each
                // leaf is returned once.
                self.raw.next().map(|mut leaf| unsafe { leaf.$of() })
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.raw.size_hint()
            }
        }

        impl<T> DoubleEndedIterator for $name<'_, T> {
            #[inline]
            fn next_back(&mut self) -> Option<Self::Item> {
                // SAFETY: by the contract of `of` the elements are initialised and borrowed; each
                // leaf is returned once.
                self.raw.next_back().map(|mut leaf| unsafe { leaf.$of() })
            }
        }

        impl<T> ExactSizeIterator for $name<'_, T> {}
        impl<T> FusedIterator for $name<'_, T> {}

        impl<T> ElementRange for $name<'_, T> {
            fn elements(&self) -> usize {
                self.raw.elements()
            }

            fn skip_front(&mut self, elements: usize) {
                self.raw.start += elements;
            }

            fn skip_back(&mut self, elements: usize) {
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
    /// Iterates over slices of the elements, one per leaf.
    Leaves, &'a [T], as_ref_of, &'a T
);
leaves!(
    /// Iterates over mutable slices of the elements, one per leaf.
    LeavesMut, &'a mut [T], as_mut_of, &'a mut T
);

/// `as_ref` and `as_mut` with one signature, for the macro above.
trait Borrow<T> {
    unsafe fn as_ref_of<'a>(&mut self) -> &'a [T];
    unsafe fn as_mut_of<'a>(&mut self) -> &'a mut [T];
}

impl<T> Borrow<T> for NonNull<[T]> {
    #[inline]
    unsafe fn as_ref_of<'a>(&mut self) -> &'a [T] {
        // SAFETY: the caller vouches that the slice is initialised and borrowed for `'a`.
        unsafe { self.as_ref() }
    }

    #[inline]
    unsafe fn as_mut_of<'a>(&mut self) -> &'a mut [T] {
        // SAFETY: the caller vouches that the slice is initialised and exclusively borrowed for
        // `'a`.
        unsafe { self.as_mut() }
    }
}

impl<T> Clone for Leaves<'_, T> {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), borrow: PhantomData }
    }
}

// SAFETY: it returns references to elements that it borrows exclusively, as a mutable slice does.
unsafe impl<T: Send> Send for LeavesMut<'_, T> {}
// SAFETY: a shared reference to it returns no element.
unsafe impl<T: Sync> Sync for LeavesMut<'_, T> {}
