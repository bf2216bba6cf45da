//! Every nth element, asked for ahead of time.
//!
//! Processors prefetch along a page and stop at its end, so a stride of a page or more pays the full latency, and a walk of the page
//! table, for each element. Here the element 40 steps ahead is asked for through the directory while this one is used, into
//! the second cache: elements a page apart share one set of the first, which holds eight of them.
//! Within a line's length of the next, a stride is left to the hardware.

#![allow(unsafe_code, reason = "asks for raw places ahead of time")]

use core::iter::FusedIterator;

use super::Tree;
use crate::prefetch::prefetch_far;

/// How many steps ahead: more than memory's latency divided by the time of a step.
const AHEAD: usize = 40;
const LINE_BYTES: usize = 64;

/// Every nth element.
#[derive(Clone)]
pub struct Stride<'a, T> {
    tree: &'a Tree<T>,
    at: usize,
    step: usize,
    /// Steps that are left.
    left: usize,
}

impl<'a, T> Stride<'a, T> {
    pub(super) fn new(tree: &'a Tree<T>, step: usize) -> Self {
        assert!(step > 0, "a stride of 0 does not move");
        Self { tree, at: 0, step, left: tree.len.div_ceil(step) }
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
        self.left -= 1;
        Some(element)
    }

    fn nth(&mut self, n: usize) -> Option<&'a T> {
        let passed = n.min(self.left);
        self.at = self.at.saturating_add(passed.saturating_mul(self.step));
        self.left -= passed;
        self.next()
    }

    /// The loop with the prefetch; `for_each`, `sum` and the like are this.
    #[inline]
    fn fold<A, F: FnMut(A, &'a T) -> A>(self, first: A, mut f: F) -> A {
        let (tree, step) = (self.tree, self.step);
        let ahead = if self.is_long() { AHEAD.min(self.left) } else { self.left };
        let (mut all, mut at) = (first, self.at);
        let mut far = at.saturating_add(ahead.saturating_mul(step));
        for _ in ahead..self.left {
            // SAFETY: `far` is `ahead` steps on, of which as many are left; `at` is before it.
            let here = unsafe {
                prefetch_far(tree.place(far));
                tree.get_unchecked(at)
            };
            all = f(all, here);
            at += step;
            far += step;
        }
        for _ in 0..ahead {
            // SAFETY: one of the steps that are left.
            all = f(all, unsafe { tree.get_unchecked(at) });
            at = at.saturating_add(step);
        }
        all
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for Stride<'_, T> {}
impl<T> FusedIterator for Stride<'_, T> {}

impl<T> core::fmt::Debug for Stride<'_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stride").field("at", &self.at).field("step", &self.step).finish_non_exhaustive()
    }
}
