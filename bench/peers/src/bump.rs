//! Bump allocators: a guard page as the limit check, a comparison, and the crate `bumpalo`.
//!
//! | workload | objects |
//! |---|---|
//! | [`list`] | a list of cells of one size |
//! | [`trees`] | binary trees of 40-byte nodes, with lists of 16-byte cells, and cells of 256 bytes |
//!
//! A workload allocates until the heap is full, so it includes one call of the slow path. The
//! comparing allocator has the same layout, alignment and slow path as `fieldstone_guard::Bump`;
//! only the check differs. `bumpalo` allocates downwards, and its slow path asks for a new chunk.
//!
//! The workloads are inlined, so that a benchmark can compile them at several code addresses.

#![allow(unsafe_code, reason = "allocates")]

use std::alloc::Layout;
use std::cell::Cell;

use fieldstone_guard::{Bump, Error, Result};

/// A heap whose objects are freed together.
pub trait ObjectHeap {
    /// Allocates an object; `None` if the heap is full.
    #[expect(clippy::mut_from_ref, reason = "each object is new")]
    fn place<T>(&self, value: T) -> Option<&mut T>;

    /// Frees all objects.
    fn clear(&mut self);
}

impl ObjectHeap for Bump {
    #[inline(always)]
    fn place<T>(&self, value: T) -> Option<&mut T> {
        self.alloc(value).ok()
    }

    fn clear(&mut self) {
        self.reset();
    }
}

impl ObjectHeap for bumpalo::Bump {
    #[inline(always)]
    fn place<T>(&self, value: T) -> Option<&mut T> {
        self.try_alloc(value).ok()
    }

    fn clear(&mut self) {
        self.reset();
    }
}

/// A heap of `bumpalo` with one chunk of about `bytes` bytes.
#[must_use]
pub fn bumpalo_heap(bytes: usize) -> bumpalo::Bump {
    let heap = bumpalo::Bump::with_capacity(bytes);
    heap.set_allocation_limit(Some(heap.allocated_bytes()));
    heap
}

/// A bump allocator that compares with the end of its memory. The memory is of the same kind as that
/// of `fieldstone_guard::Bump`.
#[derive(Debug)]
pub struct ComparingBump {
    next: Cell<*mut u8>,
    end: Cell<*mut u8>,
    start: *mut u8,
    _memory: Bump,
}

impl ComparingBump {
    /// An allocator with `bytes` bytes, a multiple of the page size.
    ///
    /// # Errors
    /// As [`fieldstone_guard::BumpBuilder::build`].
    pub fn new(bytes: usize) -> Result<Self> {
        let memory = Bump::builder(bytes).build()?;
        let layout = Layout::array::<u8>(bytes).map_err(|_| Error::Full { bytes })?;
        let start = memory.alloc_layout(layout)?.as_ptr();
        Ok(Self { next: Cell::new(start), end: Cell::new(start.wrapping_add(bytes)), start, _memory: memory })
    }

    #[cold]
    #[inline(never)]
    fn full<'a, T>() -> Option<&'a mut T> {
        None
    }
}

impl ObjectHeap for ComparingBump {
    #[inline(always)]
    fn place<T>(&self, value: T) -> Option<&mut T> {
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

    fn clear(&mut self) {
        self.next.set(self.start);
    }
}

/// A cell of a list, with `N` words of contents besides a value and a reference.
#[derive(Debug)]
pub struct ListCell<'a, const N: usize> {
    value: u64,
    next: Option<&'a Self>,
    contents: [u64; N],
}

impl<const N: usize> ListCell<'_, N> {
    /// The number of cells of a list, and the sum of all its values.
    #[must_use]
    pub fn sum(&self) -> (u64, u64) {
        let list = std::iter::successors(Some(self), |cell| cell.next);
        list.fold((0, 0), |(count, sum), cell| (count + 1, sum + cell.value + cell.contents.iter().sum::<u64>()))
    }
}

/// The heap, in memory: a loop that only allocates could keep its pointers in registers. Programs do
/// other work between two allocations.
#[inline(always)]
fn opaque<H: ObjectHeap>(heap: &H) -> &H {
    std::hint::black_box(heap)
}

/// A list of cells that fills the heap. `None` if there is no room for one cell.
#[inline(always)]
pub fn list<const N: usize, H: ObjectHeap>(heap: &H) -> Option<&ListCell<'_, N>> {
    let heap = opaque(heap);
    let (mut list, mut value) = (None, 0);
    while let Some(cell) = heap.place(ListCell { value, next: list, contents: [value; N] }) {
        list = Some(&*cell);
        value += 1;
    }
    list
}

/// The number of cells of a [`list`] that fills the heap.
#[inline(always)]
pub fn list_cells<const N: usize, H: ObjectHeap>(heap: &H) -> u64 {
    list::<N, H>(heap).map_or(0, |last| std::hint::black_box(last).value + 1)
}

/// A node of a binary tree.
#[derive(Debug)]
pub struct TreeNode<'a> {
    key: u64,
    children: Option<[&'a Self; 2]>,
    items: Option<&'a ListCell<'a, 0>>,
    large: Option<&'a ListCell<'a, 30>>,
}

impl TreeNode<'_> {
    /// The sum of all keys and values of a tree.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let children = self.children.map_or(0, |[left, right]| left.sum() + right.sum());
        let (items, large) = (self.items.map(ListCell::sum), self.large.map(ListCell::sum));
        self.key + children + items.map_or(0, |(_, sum)| sum) + large.map_or(0, |(_, sum)| sum)
    }
}

/// The height of the highest tree that [`trees`] builds.
const LEVELS: usize = 32;

/// The trees of [`trees`], at most one of each height.
pub type Forest<'a> = [Option<&'a TreeNode<'a>>; LEVELS];

/// Binary trees that fill the heap, and the number of their leaves. Two trees of one height are
/// joined at once, as the digits of a binary counter carry.
#[inline(always)]
pub fn trees<H: ObjectHeap>(heap: &H) -> (u64, Forest<'_>) {
    let heap = opaque(heap);
    let mut forest = [None; LEVELS];
    let mut leaves = 0;
    while add_leaf(heap, &mut forest, leaves).is_some() {
        leaves += 1;
    }
    (leaves, forest)
}

/// The number of leaves of the [`trees`] that fill the heap.
#[inline(always)]
pub fn tree_leaves<H: ObjectHeap>(heap: &H) -> u64 {
    std::hint::black_box(trees(heap)).0
}

/// Adds a leaf with a list of two items, and each eighth time with a large object.
#[inline(always)]
fn add_leaf<'a, H: ObjectHeap>(heap: &'a H, forest: &mut Forest<'a>, key: u64) -> Option<()> {
    let first = heap.place(ListCell { value: key, next: None, contents: [] })?;
    let items = heap.place(ListCell { value: key, next: Some(first), contents: [] })?;
    let large = if key.is_multiple_of(8) {
        Some(&*heap.place(ListCell { value: key, next: None, contents: [key; 30] })?)
    } else {
        None
    };
    let mut node = &*heap.place(TreeNode { key, children: None, items: Some(items), large })?;
    for place in forest {
        let Some(left) = place.take() else {
            *place = Some(node);
            break;
        };
        node = heap.place(TreeNode { key, children: Some([left, node]), items: None, large: None })?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 1 << 16;

    fn heaps() -> (Bump, ComparingBump, bumpalo::Bump) {
        (Bump::builder(BYTES).build().unwrap(), ComparingBump::new(BYTES).unwrap(), bumpalo_heap(BYTES))
    }

    /// `bumpalo` rounds the size of its chunk up.
    fn is_similar(count: u64, expected: u64) -> bool {
        (expected - expected / 10..=expected + expected / 10).contains(&count)
    }

    #[test]
    fn all_heaps_are_filled_with_the_same_lists() {
        let (guarded, compared, other) = heaps();
        let cells = (BYTES / 32) as u64;
        let expected = (cells, 3 * cells * (cells - 1) / 2);
        assert_eq!(list::<2, _>(&guarded).unwrap().sum(), expected);
        assert_eq!(list::<2, _>(&compared).unwrap().sum(), expected);
        assert!(is_similar(list::<2, _>(&other).unwrap().sum().0, cells), "one chunk of about the same size");
    }

    #[test]
    fn all_heaps_are_filled_with_the_same_trees() {
        fn sums<H: ObjectHeap>(heap: &H) -> (u64, u64) {
            let (leaves, forest) = trees(heap);
            (leaves, forest.iter().flatten().map(|tree| tree.sum()).sum())
        }
        let (guarded, compared, other) = heaps();
        let expected = sums(&compared);
        assert!(expected.0 > 400, "{expected:?}");
        assert_eq!(sums(&guarded), expected);
        assert!(is_similar(sums(&other).0, expected.0));
    }

    #[test]
    fn a_cleared_heap_is_filled_with_the_same() {
        let (mut guarded, mut compared, mut other) = heaps();
        for _ in 0..3 {
            assert_eq!(list_cells::<0, _>(&guarded), list_cells::<0, _>(&compared));
            assert!(tree_leaves(&guarded) == 0, "the heap is full");
            assert!(list_cells::<0, _>(&other) > 4000);
            guarded.clear();
            compared.clear();
            other.clear();
        }
    }
}
