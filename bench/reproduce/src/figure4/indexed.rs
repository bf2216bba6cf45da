//! `array[index]` for all arrays, so that one kernel runs on each: the trees of the paper with
//! dynamic depth and with depth three, and a contiguous array.
//!
//! The C++ code of the paper checks no index. Here each side checks it like a slice, so that the
//! sides differ only in the tree.

#![allow(unsafe_code, reason = "reads trees at indices that were checked")]

use std::ops::{Index, IndexMut};

use anyhow::Result;
use fieldstone_blocks::{Pool, TreeArray};

use crate::pages::Contiguous;
use crate::paper_tree::{FixedDepth, PaperTree};

/// A contiguous array.
#[derive(Debug)]
pub struct Flat<T>(pub Contiguous<T>);

/// A tree array of `len` elements; element `i` is `make(i)`.
///
/// # Errors
/// If memory is not available.
pub fn tree_of<T>(pool: &Pool, len: usize, mut make: impl FnMut(usize) -> T) -> Result<TreeArray<T>> {
    let mut tree = TreeArray::try_new_in(pool)?;
    let mut indices = 0..len;
    // The function is called once per element, in order.
    tree.try_resize_with(len, || make(indices.next().unwrap_or(len)))?;
    Ok(tree)
}

/// A tree with a constant depth of three levels: the blog's "No Branches".
#[derive(Clone, Copy, Debug)]
pub struct ThreeLevels<'a, T, const BLOCK_BYTES: usize> {
    tree: FixedDepth<'a, T, 3, BLOCK_BYTES>,
    len: usize,
}

impl<'a, T: Copy, const BLOCK_BYTES: usize> ThreeLevels<'a, T, BLOCK_BYTES> {
    /// The tree, if it has three levels.
    #[inline(always)]
    pub fn of(tree: &'a PaperTree<T, BLOCK_BYTES>) -> Option<Self> {
        tree.fixed::<3>().map(|fixed| Self { tree: fixed, len: tree.len() })
    }
}

impl<T: Copy> Index<usize> for Flat<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, index: usize) -> &T {
        &(*self.0)[index]
    }
}

impl<T: Copy> IndexMut<usize> for Flat<T> {
    #[inline(always)]
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut (*self.0)[index]
    }
}

impl<T: Copy, const BLOCK_BYTES: usize> Index<usize> for PaperTree<T, BLOCK_BYTES> {
    type Output = T;

    #[inline(always)]
    fn index(&self, index: usize) -> &T {
        check(index, self.len());
        // SAFETY: `check` panics unless the index is below the length.
        unsafe { self.get_unchecked(index) }
    }
}

impl<T: Copy, const BLOCK_BYTES: usize> IndexMut<usize> for PaperTree<T, BLOCK_BYTES> {
    #[inline(always)]
    fn index_mut(&mut self, index: usize) -> &mut T {
        check(index, self.len());
        // SAFETY: `check` panics unless the index is below the length.
        unsafe { self.get_unchecked_mut(index) }
    }
}

impl<T: Copy, const BLOCK_BYTES: usize> Index<usize> for ThreeLevels<'_, T, BLOCK_BYTES> {
    type Output = T;

    #[inline(always)]
    fn index(&self, index: usize) -> &T {
        check(index, self.len);
        // SAFETY: `check` panics unless the index is below the length of this tree.
        unsafe { self.tree.get_unchecked(index) }
    }
}

#[inline(always)]
fn check(index: usize, len: usize) {
    assert!(index < len, "element {index} of {len}");
}

#[cfg(test)]
mod tests {
    use fieldstone_blocks::{HeapFrames, Pool};

    use super::*;
    use crate::layout::Layout;
    use crate::paper_tree::Order;

    #[test]
    fn all_kinds_agree_and_refuse_what_is_beyond() {
        let pool = Pool::with_block_bytes(HeapFrames, 4096).unwrap();
        let make = |at: usize| at as u64 * 3;
        let mut flat = Flat(Contiguous::small_pages(&Layout::of_seed(1), 2000, make).unwrap());
        let mut tree = PaperTree::<u64, 4096>::build(&pool, 2000, Order::InOrder, make).unwrap();
        let deep = PaperTree::<u64, 4096>::with_depth(&pool, 3, 2000, Order::InOrder, make).unwrap();
        assert!(ThreeLevels::of(&tree).is_none());
        let fixed = ThreeLevels::of(&deep).unwrap();
        (flat[1999], tree[1999]) = (7, 7);
        for at in 0..2000 {
            assert!(flat[at] == tree[at] && (at == 1999 || fixed[at] == tree[at]), "{at}");
        }
        let refused = |read: &dyn Fn() -> u64| std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err();
        assert!(refused(&|| flat[2000]) && refused(&|| tree[2000]) && refused(&|| fixed[2000]));
    }
}
