//! Bump allocators: a guard page as the limit check, a comparison, and the crate `bumpalo`.
//!
//! Each kernel builds a list of cells with one allocation for each. The comparing allocator has the
//! same layout, alignment and slow path as `fieldstone_guard::Bump`; only the check differs.

#![allow(unsafe_code, reason = "allocates")]

use std::cell::Cell;

use fieldstone_guard::Bump;

/// A cell of a list, with `N` words of contents besides a value and a reference.
#[derive(Debug)]
pub struct ListCell<'a, const N: usize> {
    value: u64,
    next: Option<&'a Self>,
    contents: [u64; N],
}

impl<const N: usize> ListCell<'_, N> {
    /// The sum of all values of a list.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let list = std::iter::successors(Some(self), |cell| cell.next);
        list.map(|cell| cell.value.wrapping_add(cell.contents.iter().sum())).fold(0, u64::wrapping_add)
    }
}

/// A bump allocator that compares with the end of its memory.
#[derive(Debug)]
pub struct ComparingBump {
    next: Cell<*mut u8>,
    end: Cell<*mut u8>,
    memory: Vec<u64>,
}

impl ComparingBump {
    /// An allocator with `bytes` bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let mut memory = vec![0; bytes / 8];
        let range = memory.as_mut_ptr_range();
        Self { next: Cell::new(range.start.cast()), end: Cell::new(range.end.cast()), memory }
    }

    /// Frees all objects.
    pub fn reset(&mut self) {
        self.next.set(self.memory.as_mut_ptr().cast());
    }

    /// Allocates an object; `None` if the memory is full.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "each object is new")]
    pub fn alloc<T>(&self, value: T) -> Option<&mut T> {
        const { assert!(align_of::<T>() <= 8 && size_of::<T>().is_multiple_of(8)) };
        let start = self.next.get();
        if self.end.get().addr() - start.addr() < size_of::<T>() {
            return Self::full();
        }
        self.next.set(start.wrapping_add(size_of::<T>()));
        // SAFETY: the object is inside the memory, behind all others, and aligned to a word.
        unsafe {
            start.cast::<T>().write(value);
            Some(&mut *start.cast())
        }
    }

    #[cold]
    #[inline(never)]
    fn full<'a, T>() -> Option<&'a mut T> {
        None
    }
}

macro_rules! list {
    ($count:expr, $alloc:expr) => {{
        let mut list = None;
        for value in 0..$count {
            list = Some(&*$alloc(ListCell { value, next: list, contents: [value; N] })?);
        }
        list
    }};
}

/// A list of `count` cells in a heap whose limit is a guard page. `None` if it is full.
#[inline(never)]
#[must_use]
pub fn guarded_list<const N: usize>(heap: &Bump, count: u64) -> Option<&ListCell<'_, N>> {
    list!(count, |cell| heap.alloc(cell).ok())
}

/// The same with a comparison at each allocation.
#[inline(never)]
#[must_use]
pub fn compared_list<const N: usize>(heap: &ComparingBump, count: u64) -> Option<&ListCell<'_, N>> {
    list!(count, |cell| heap.alloc(cell))
}

/// The same by `bumpalo`.
#[inline(never)]
#[must_use]
pub fn bumpalo_list<const N: usize>(heap: &bumpalo::Bump, count: u64) -> Option<&ListCell<'_, N>> {
    list!(count, |cell| heap.try_alloc(cell).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_allocators_build_the_same_list() {
        let (guarded, compared, other) =
            (Bump::builder(1 << 20).build().unwrap(), ComparingBump::new(1 << 20), bumpalo::Bump::new());
        let sums = [
            guarded_list::<2>(&guarded, 1000).unwrap().sum(),
            compared_list::<2>(&compared, 1000).unwrap().sum(),
            bumpalo_list::<2>(&other, 1000).unwrap().sum(),
        ];
        assert_eq!(sums, [3 * 999 * 1000 / 2; 3]);
    }

    #[test]
    fn full_heaps_end_the_list() {
        assert!(guarded_list::<0>(&Bump::builder(4096).build().unwrap(), 257).is_none());
        assert!(compared_list::<0>(&ComparingBump::new(4096), 257).is_none());
        assert!(compared_list::<0>(&ComparingBump::new(4096), 256).is_some());
    }
}
