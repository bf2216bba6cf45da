//! The arrays of the paper: trees with up to three levels of blocks. The size determines the depth.
//!
//! ```text
//! depth 1   root = | T T T T ... |                       up to 32 KiB
//! depth 2   root = | . . . . ... | -> | T T T ... |      up to 128 MiB, 4096 pointers per block
//! depth 3   root = | . . . . ... | -> | . . . ... | -> | T T T ... |
//! ```
//! There are three methods to read:
//! - [`PaperTree::get_unchecked`], the paper's `operator[]`, tests the depth at each access. The
//!   depth is a volatile read: otherwise LLVM moves the test out of the loop, which is the next
//!   method.
//! - [`PaperTree::fixed`], "No Branches" and static specialisation, has a constant depth.
//! - [`PaperTree::iter_from`] and [`PaperTree::stride`], the paper's Iterator and software walk
//!   cache, keep the leaf, and walk from the root when they leave it.
//!
//! The library's array is [`fieldstone_blocks::TreeArray`].
//!
//! Source: Zagieboylo's blog, "Custom Array Implementation"; Zagieboylo, Suh and Myers, sections 3
//! and 4.2. Difference: the number of elements per leaf is a power of two. If an element's size is
//! not, the end of a leaf is unused.

#![allow(unsafe_code, reason = "elements are in raw blocks, and a walk follows raw pointers")]

mod iter;

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};

use anyhow::{Result, ensure};
use fieldstone_blocks::Pool;
use fieldstone_workloads::random::SplitMix64;

pub use iter::{Iter, PaperStride};

/// The default block size in bytes, that of the paper.
pub const PAPER_BLOCK_BYTES: usize = 32 << 10;

/// The order of a tree's leaves in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The order of the pool, by address.
    InOrder,
    /// Random order from a seed, as in a fragmented memory.
    Shuffled(u64),
}

/// An array as a tree of blocks of `BLOCK_BYTES`. Elements are `Copy` and are not dropped.
#[derive(Debug)]
pub struct PaperTree<T, const BLOCK_BYTES: usize = PAPER_BLOCK_BYTES> {
    root: NonNull<u8>,
    depth: u32,
    len: usize,
    /// All blocks, to free them.
    blocks: Vec<NonNull<u8>>,
    pool: Pool,
    elements: PhantomData<T>,
}

impl<T: Copy, const BLOCK_BYTES: usize> PaperTree<T, BLOCK_BYTES> {
    const LEAF_SHIFT: u32 = (BLOCK_BYTES / size_of::<T>()).ilog2();
    const NODE_SHIFT: u32 = (BLOCK_BYTES / size_of::<*mut u8>()).ilog2();

    /// Elements per leaf.
    pub const PER_LEAF: usize = 1 << Self::LEAF_SHIFT;

    /// The smallest depth for `len` elements. A depth above 3 is not supported.
    #[must_use]
    pub const fn depth_for(len: usize) -> u32 {
        let mut depth = 1;
        while depth <= 3 && len > 1 << (Self::LEAF_SHIFT + (depth - 1) * Self::NODE_SHIFT) {
            depth += 1;
        }
        depth
    }

    /// A tree of `len` elements with the smallest depth; element `i` is `make(i)`.
    ///
    /// # Errors
    /// If memory is not available, if the pool has another block size, or if three levels are not
    /// enough.
    pub fn build(pool: &Pool, len: usize, order: Order, make: impl FnMut(usize) -> T) -> Result<Self> {
        Self::with_depth(pool, Self::depth_for(len), len, order, make)
    }

    /// The same with a given depth, which may be larger than needed. The blog's "No Branches" trees
    /// always have depth three.
    ///
    /// # Errors
    /// Those of [`PaperTree::build`].
    pub fn with_depth(
        pool: &Pool,
        depth: u32,
        len: usize,
        order: Order,
        mut make: impl FnMut(usize) -> T,
    ) -> Result<Self> {
        ensure!(pool.block_bytes() == BLOCK_BYTES, "the pool's blocks have {} bytes", pool.block_bytes());
        ensure!((Self::depth_for(len)..=3).contains(&depth), "a tree of depth {depth} does not hold {len} elements");
        let root = NonNull::dangling();
        let mut tree = Self { root, depth, len, blocks: Vec::new(), pool: pool.clone(), elements: PhantomData };
        let mut level = tree.leaves(order, &mut make)?;
        for _ in 1..depth {
            level = tree.parents(&level)?;
        }
        tree.root = level[0];
        Ok(tree)
    }

    fn take(&mut self) -> Result<NonNull<u8>> {
        let block = self.pool.alloc()?;
        self.blocks.push(block);
        Ok(block)
    }

    /// Allocates and fills the leaves.
    fn leaves(&mut self, order: Order, make: &mut impl FnMut(usize) -> T) -> Result<Vec<NonNull<u8>>> {
        let count = self.len.div_ceil(Self::PER_LEAF).max(1);
        let mut leaves = (0..count).map(|_| self.take()).collect::<Result<Vec<_>>>()?;
        if let Order::Shuffled(seed) = order {
            let mut random = SplitMix64::new(seed);
            (1..count).rev().for_each(|at| leaves.swap(at, random.below(at + 1)));
        }
        for index in 0..self.len {
            let leaf = leaves[index >> Self::LEAF_SHIFT].cast::<T>();
            // SAFETY: the leaf has space for PER_LEAF elements, and blocks are aligned to a page at
            // least.
            unsafe { leaf.add(index % Self::PER_LEAF).write(make(index)) };
        }
        Ok(leaves)
    }

    /// Allocates the blocks of pointers above a level.
    fn parents(&mut self, children: &[NonNull<u8>]) -> Result<Vec<NonNull<u8>>> {
        let fill = |children: &[NonNull<u8>]| {
            let node = self.take()?;
            for (at, child) in children.iter().enumerate() {
                // SAFETY: a chunk has at most as many children as a block has pointers.
                unsafe { node.cast::<NonNull<u8>>().add(at).write(*child) };
            }
            Ok(node)
        };
        children.chunks(1 << Self::NODE_SHIFT).map(fill).collect()
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of levels, 1 to 3.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// The depth by a volatile read, which the compiler cannot move.
    #[inline(always)]
    fn volatile_depth(&self) -> u32 {
        // SAFETY: `self.depth` is initialised, and `&self` prevents writes to it.
        unsafe { ptr::read_volatile(&raw const self.depth) }
    }

    /// The address of element `index` in a tree of `depth`.
    ///
    /// # Safety
    /// `index < len()`, and the tree has this depth.
    #[inline(always)]
    #[expect(clippy::cast_ptr_alignment, reason = "blocks are aligned to their size, at least a page")]
    unsafe fn place(&self, depth: u32, index: usize) -> *mut T {
        let mut node = self.root.as_ptr();
        let mut level = depth;
        while level > 1 {
            level -= 1;
            let child = (index >> (Self::LEAF_SHIFT + (level - 1) * Self::NODE_SHIFT)) % (1 << Self::NODE_SHIFT);
            // SAFETY: all pointers on the path to an element below the length are set.
            node = unsafe { *node.cast::<*mut u8>().add(child) };
        }
        // SAFETY: the remainder is below PER_LEAF, so the element is in the leaf.
        unsafe { node.cast::<T>().add(index % Self::PER_LEAF) }
    }

    /// Element `index`, by a walk from the root that tests the depth.
    ///
    /// # Safety
    /// `index < len()`.
    #[must_use]
    #[inline(always)]
    pub unsafe fn get_unchecked(&self, index: usize) -> &T {
        // SAFETY: the caller passes an index below the length; the depth is the tree's.
        unsafe { &*self.place(self.volatile_depth(), index) }
    }

    /// Element `index` for writing, by the same walk.
    ///
    /// # Safety
    /// `index < len()`.
    #[must_use]
    #[inline(always)]
    pub unsafe fn get_unchecked_mut(&mut self, index: usize) -> &mut T {
        // SAFETY: the caller passes an index below the length; the depth is the tree's.
        unsafe { &mut *self.place(self.volatile_depth(), index) }
    }

    /// The tree with a constant depth; `None` if it has another.
    #[must_use]
    #[inline(always)]
    pub fn fixed<const DEPTH: u32>(&self) -> Option<FixedDepth<'_, T, DEPTH, BLOCK_BYTES>> {
        (self.depth == DEPTH).then_some(FixedDepth(self))
    }

    /// The elements of a range in order, leaf by leaf.
    ///
    /// # Panics
    /// If the range exceeds the tree.
    #[inline(always)]
    pub fn iter_from(&self, range: Range<usize>) -> Iter<'_, T, BLOCK_BYTES> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is not within {} elements", self.len);
        Iter::new(self, range)
    }

    /// Every `step`-th element of a range, leaf by leaf.
    ///
    /// # Panics
    /// If the range exceeds the tree.
    #[inline(always)]
    pub fn stride(&self, step: usize, range: Range<usize>) -> PaperStride<'_, T, BLOCK_BYTES> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is not within {} elements", self.len);
        PaperStride::new(self, step, range)
    }
}

impl<T, const BLOCK_BYTES: usize> Drop for PaperTree<T, BLOCK_BYTES> {
    fn drop(&mut self) {
        for block in &self.blocks {
            // SAFETY: this tree allocated the block, and nothing uses the tree after `drop`.
            let freed = unsafe { self.pool.free(*block) };
            debug_assert_eq!(freed, Ok(()), "a block of the pool");
        }
    }
}

/// A tree with a constant depth.
#[derive(Clone, Copy, Debug)]
pub struct FixedDepth<'a, T, const DEPTH: u32, const BLOCK_BYTES: usize>(&'a PaperTree<T, BLOCK_BYTES>);

impl<'a, T: Copy, const DEPTH: u32, const BLOCK_BYTES: usize> FixedDepth<'a, T, DEPTH, BLOCK_BYTES> {
    /// Element `index`, by one load per level and without a branch.
    ///
    /// # Safety
    /// `index < len()`.
    #[must_use]
    #[inline(always)]
    pub unsafe fn get_unchecked(self, index: usize) -> &'a T {
        // SAFETY: the caller passes an index below the length, and `fixed` checked the depth.
        unsafe { &*self.0.place(DEPTH, index) }
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_blocks::HeapFrames;
    use proptest::prelude::*;

    use super::*;

    type Small = PaperTree<u32, 4096>;

    fn pool() -> Pool {
        Pool::with_block_bytes(HeapFrames, 4096).unwrap()
    }

    #[test]
    fn depths_are_the_paper_s() {
        let elements = |bytes: usize| bytes / 4;
        for (bytes, depth) in [(4 << 10, 1), (32 << 10, 1), (4 << 20, 2), (128 << 20, 2), (4 << 30, 3), (64 << 30, 3)] {
            assert_eq!(PaperTree::<u32>::depth_for(elements(bytes)), depth, "{bytes}");
        }
        assert!(PaperTree::<u32, 4096>::depth_for(elements(4 << 30)) > 3);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_blocks_come_back() {
        let pool = pool();
        assert!(Small::with_depth(&pool, 1, 1025, Order::InOrder, |_| 0).is_err());
        assert!(PaperTree::<u32>::build(&pool, 1, Order::InOrder, |_| 0).is_err());
        let tree = Small::build(&pool, 5000, Order::Shuffled(3), |_| 0).unwrap();
        assert!(tree.fixed::<1>().is_none() && tree.fixed::<2>().is_some());
        drop(tree);
        assert_eq!(pool.stats().used_bytes, 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_way_of_reading_agrees_with_a_vector(
            len in 1_usize..5000, extra in 0_u32..3, shuffle: bool, step in 1_usize..2000, ends: (u16, u16),
        ) {
            let pool = pool();
            let depth = (Small::depth_for(len) + extra).min(3);
            let order = if shuffle { Order::Shuffled(len as u64) } else { Order::InOrder };
            let make = |at: usize| u32::try_from(at * 7).unwrap();
            let mut tree = Small::with_depth(&pool, depth, len, order, make).unwrap();
            // SAFETY: `0..len` keeps each index below the length of the tree.
            let walk = |tree: &Small| (0..len).all(|at| unsafe { *tree.get_unchecked(at) } == make(at));
            prop_assert!(walk(&tree));
            // SAFETY: `0..len` keeps each index below the length of the tree.
            let fixed = (0..len).all(|at| make(at) == unsafe {
                match depth {
                    1 => *tree.fixed::<1>().unwrap().get_unchecked(at),
                    2 => *tree.fixed::<2>().unwrap().get_unchecked(at),
                    _ => *tree.fixed::<3>().unwrap().get_unchecked(at),
                }
            });
            prop_assert!(fixed);
            let (a, b) = (usize::from(ends.0) % (len + 1), usize::from(ends.1) % (len + 1));
            let (from, to) = (a.min(b), a.max(b));
            prop_assert!(tree.iter_from(from..to).copied().eq((from..to).map(make)));
            prop_assert!(tree.stride(step, from..to).copied().eq((from..to).step_by(step).map(make)));
            // SAFETY: the length is at least 1, so its last index exists.
            unsafe { *tree.get_unchecked_mut(len - 1) = 99 };
            // SAFETY: the length is at least 1, so its last index exists.
            prop_assert_eq!(unsafe { *tree.get_unchecked(len - 1) }, 99);
        }
    }
}
