//! Iterators over elements, built on leaves. `fold`, and methods built on it (`for_each`, `sum`,
//! `collect`), loops over slices, which compilers vectorise. `next` is a slice's `next` with one
//! more branch. `nth` skips leaves without reading them.

use core::iter::FusedIterator;

use super::leaves::{ElementRange, Leaves, LeavesMut};

/// Flattens an iterator of leaves, with a known length.
#[derive(Clone, Debug)]
pub(super) struct FlatLeaves<L, S> {
    front: Option<S>,
    rest: L,
    back: Option<S>,
}

impl<L, S> FlatLeaves<L, S> {
    pub(super) fn new(rest: L) -> Self {
        Self { front: None, rest, back: None }
    }
}

impl<L, S> FlatLeaves<L, S>
where
    L: ElementRange,
    S: ExactSizeIterator,
{
    fn elements(&self) -> usize {
        let ends = [&self.front, &self.back].into_iter().flatten().map(ExactSizeIterator::len);
        self.rest.elements() + ends.sum::<usize>()
    }
}

impl<L, S> Iterator for FlatLeaves<L, S>
where
    L: ElementRange + Iterator<Item: IntoIterator<IntoIter = S, Item = S::Item>>,
    S: ExactSizeIterator,
{
    type Item = S::Item;

    #[inline]
    fn next(&mut self) -> Option<S::Item> {
        loop {
            if let Some(element) = self.front.as_mut().and_then(Iterator::next) {
                return Some(element);
            }
            match self.rest.next() {
                Some(leaf) => self.front = Some(leaf.into_iter()),
                None => return self.back.as_mut().and_then(Iterator::next),
            }
        }
    }

    fn nth(&mut self, mut n: usize) -> Option<S::Item> {
        if let Some(front) = &mut self.front {
            if n < front.len() {
                return front.nth(n);
            }
            n -= front.len();
            self.front = None;
        }
        let skipped = n.min(self.rest.elements());
        self.rest.skip_front(skipped);
        if self.rest.elements() > 0 {
            return self.next();
        }
        self.back.as_mut().and_then(|back| back.nth(n - skipped))
    }

    #[inline]
    fn fold<A, F: FnMut(A, S::Item) -> A>(self, first: A, mut f: F) -> A {
        let mut all = first;
        if let Some(front) = self.front {
            all = front.fold(all, &mut f);
        }
        all = self.rest.fold(all, |all, leaf| leaf.into_iter().fold(all, &mut f));
        if let Some(back) = self.back {
            all = back.fold(all, &mut f);
        }
        all
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.elements(), Some(self.elements()))
    }

    fn count(self) -> usize {
        self.elements()
    }
}

impl<L, S> DoubleEndedIterator for FlatLeaves<L, S>
where
    L: ElementRange + DoubleEndedIterator<Item: IntoIterator<IntoIter = S, Item = S::Item>>,
    S: ExactSizeIterator + DoubleEndedIterator,
{
    #[inline]
    fn next_back(&mut self) -> Option<S::Item> {
        loop {
            if let Some(element) = self.back.as_mut().and_then(DoubleEndedIterator::next_back) {
                return Some(element);
            }
            match self.rest.next_back() {
                Some(leaf) => self.back = Some(leaf.into_iter()),
                None => return self.front.as_mut().and_then(DoubleEndedIterator::next_back),
            }
        }
    }

    fn nth_back(&mut self, mut n: usize) -> Option<S::Item> {
        if let Some(back) = &mut self.back {
            if n < back.len() {
                return back.nth_back(n);
            }
            n -= back.len();
            self.back = None;
        }
        let skipped = n.min(self.rest.elements());
        self.rest.skip_back(skipped);
        if self.rest.elements() > 0 {
            return self.next_back();
        }
        self.front.as_mut().and_then(|front| front.nth_back(n - skipped))
    }

    #[inline]
    fn rfold<A, F: FnMut(A, S::Item) -> A>(self, first: A, mut f: F) -> A {
        let mut all = first;
        if let Some(back) = self.back {
            all = back.rfold(all, &mut f);
        }
        all = self.rest.rfold(all, |all, leaf| leaf.into_iter().rfold(all, &mut f));
        if let Some(front) = self.front {
            all = front.rfold(all, &mut f);
        }
        all
    }
}

macro_rules! iter {
    ($(#[$doc:meta])* $name:ident, $leaves:ident, $slice:ident, $item:ty) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'a, T>(FlatLeaves<$leaves<'a, T>, core::slice::$slice<'a, T>>);

        impl<'a, T> $name<'a, T> {
            pub(super) fn new(leaves: $leaves<'a, T>) -> Self {
                Self(FlatLeaves::new(leaves))
            }
        }

        impl<'a, T> Iterator for $name<'a, T> {
            type Item = $item;

            #[inline]
            fn next(&mut self) -> Option<$item> {
                self.0.next()
            }

            fn nth(&mut self, n: usize) -> Option<$item> {
                self.0.nth(n)
            }

            #[inline]
            fn fold<A, F: FnMut(A, $item) -> A>(self, first: A, f: F) -> A {
                self.0.fold(first, f)
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.0.size_hint()
            }

            fn count(self) -> usize {
                self.0.count()
            }

            fn last(mut self) -> Option<$item> {
                self.next_back()
            }
        }

        impl<T> DoubleEndedIterator for $name<'_, T> {
            #[inline]
            fn next_back(&mut self) -> Option<Self::Item> {
                self.0.next_back()
            }

            fn nth_back(&mut self, n: usize) -> Option<Self::Item> {
                self.0.nth_back(n)
            }

            #[inline]
            fn rfold<A, F: FnMut(A, Self::Item) -> A>(self, first: A, f: F) -> A {
                self.0.rfold(first, f)
            }
        }

        impl<T> ExactSizeIterator for $name<'_, T> {}
        impl<T> FusedIterator for $name<'_, T> {}
    };
}

iter!(
    /// Iterates over the elements in order.
    Iter, Leaves, Iter, &'a T
);
iter!(
    /// Iterates over mutable references to the elements in order.
    IterMut, LeavesMut, IterMut, &'a mut T
);

impl<T> Clone for Iter<'_, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
