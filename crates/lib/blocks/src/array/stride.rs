//! Iteration over every nth element, with prefetching.
//!
//! Hardware prefetching stops at the end of a page, so with a stride of a page or more each element
//! costs the full latency and a page walk. Here the loop prefetches the element 40 steps ahead
//! through the directory. It prefetches into the second-level cache: elements a page apart share
//! one set of the first level, which holds eight. Strides within a cache line are left to the
//! hardware.

#![allow(unsafe_code, reason = "computes addresses of later elements")]

use core::iter::FusedIterator;

use super::Tree;
use crate::prefetch::prefetch_far;

/// Steps to prefetch ahead: more than the memory latency divided by the time of a step.
const PREFETCH_STEPS: usize = 40;
const LINE_BYTES: usize = 64;

/// Iterates over every nth element.
#[derive(Clone)]
pub struct Stride<'a, T> {
    tree: &'a Tree<T>,
    at: usize,
    step: usize,
    /// Remaining steps.
    remaining: usize,
}

impl<'a, T> Stride<'a, T> {
    pub(super) fn new(tree: &'a Tree<T>, step: usize) -> Self {
        assert!(step > 0, "the stride must not be 0");
        Self { tree, at: 0, step, remaining: tree.len.div_ceil(step) }
    }

    fn is_long(&self) -> bool {
        self.step.saturating_mul(size_of::<T>()) > LINE_BYTES
    }
}

impl<'a, T> Iterator for Stride<'a, T> {
    type Item = &'a T;

    #[inline]
    fn next(&mut self) -> Option<&'a T> {
        let element = self.tree.get(self.at)?;
        self.at = self.at.saturating_add(self.step);
        self.remaining -= 1;
        Some(element)
    }

    fn nth(&mut self, n: usize) -> Option<&'a T> {
        let skipped = n.min(self.remaining);
        self.at = self.at.saturating_add(skipped.saturating_mul(self.step));
        self.remaining -= skipped;
        self.next()
    }

    /// The loop with the prefetch; `for_each` and `sum` call this.
    #[inline]
    fn fold<A, F: FnMut(A, &'a T) -> A>(self, first: A, mut f: F) -> A {
        let (tree, step) = (self.tree, self.step);
        let ahead = if self.is_long() { PREFETCH_STEPS.min(self.remaining) } else { self.remaining };
        let (mut all, mut at) = (first, self.at);
        let mut far = at.saturating_add(ahead.saturating_mul(step));
        for _ in ahead..self.remaining {
            // SAFETY: the loop leaves `ahead` steps, so `far` is the index of an element; `at` is
            // below `far`.
            let here = unsafe {
                prefetch_far(tree.pointer(far));
                tree.get_unchecked(at)
            };
            all = f(all, here);
            at += step;
            far += step;
        }
        for _ in 0..ahead {
            // SAFETY: `at` is the index of one of the remaining elements.
            all = f(all, unsafe { tree.get_unchecked(at) });
            at = at.saturating_add(step);
        }
        all
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<T> ExactSizeIterator for Stride<'_, T> {}
impl<T> FusedIterator for Stride<'_, T> {}

impl<T> core::fmt::Debug for Stride<'_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stride").field("at", &self.at).field("step", &self.step).finish_non_exhaustive()
    }
}
