//! Copy on write: what an array shares with its snapshots, and how it comes to own a leaf again.
//!
//! ```text
//! snapshot()      array ----view----> root (Arc) <---- snapshot         4 ns: nothing is copied
//! first write     array: a directory of its own; each leaf has one more holder in the pool's counts
//! write to leaf   array: that leaf copied, unless the other holders are gone
//! ```
//! An array without snapshots pays one test of a pointer for each write. While leaves are shared, a write also tests a bit.

#![allow(unsafe_code, reason = "shares and copies raw leaves")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::{self, ManuallyDrop};
use core::ptr::{self, NonNull};

use super::teardown::LeafBlock;
use super::{Tree, TreeArray};
use crate::error::{Error, Result};
use crate::sync::Arc;

/// Clones so many elements to a place that has room for them. If it panics, nothing is left there.
pub(super) type CloneLeaf<T> = unsafe fn(*const T, *mut T, usize);

/// What an array shares.
pub(super) struct Hold<T> {
    /// The tree that array and snapshots share whole, until the first write.
    root: Option<Arc<Tree<T>>>,
    /// Bits of the leaves that are known to be the array's alone.
    own: Vec<u64>,
    clone_leaf: CloneLeaf<T>,
}

impl<T> Hold<T> {
    pub(super) const fn has_root(&self) -> bool {
        self.root.is_some()
    }

    fn is_own(&self, leaf: usize) -> bool {
        self.own.get(leaf / 64).is_some_and(|word| word >> (leaf % 64) & 1 == 1)
    }
}

impl<T> TreeArray<T> {
    /// The root that a new snapshot shares: the one there is, or the array's tree made into one.
    pub(super) fn share_root(&mut self, clone_leaf: CloneLeaf<T>) -> Arc<Tree<T>> {
        if let Some(root) = self.hold.as_ref().and_then(|hold| hold.root.clone()) {
            return root;
        }
        // SAFETY: the bytes are copied once; the array's own become a view, which is neither changed nor dropped while the hold
        // has the root.
        let tree = unsafe { ptr::read(&raw const *self.tree) };
        let root = Arc::new(tree);
        self.hold = Some(Box::new(Hold { root: Some(root.clone()), own: Vec::new(), clone_leaf }));
        self.forget_tail();
        root
    }

    /// Makes the leaf of an element ours alone.
    #[cold]
    #[inline(never)]
    pub(super) fn own_leaf_of(&mut self, index: usize) {
        self.try_own_leaf_of(index)
            .unwrap_or_else(|error| panic!("a leaf that a snapshot shares cannot be copied: {error}"));
    }

    /// Makes the leaf of an element ours alone.
    pub(super) fn try_own_leaf_of(&mut self, index: usize) -> Result<()> {
        self.own_root()?;
        let leaf = if self.tree.leaves <= 1 { 0 } else { self.tree.leaf_of(index) };
        self.own_leaf(leaf)
    }

    /// Makes all leaves ours alone.
    pub(super) fn try_own_all(&mut self) -> Result<()> {
        self.own_root()?;
        (0..self.tree.leaves).try_for_each(|leaf| self.own_leaf(leaf))?;
        self.hold = None;
        Ok(())
    }

    /// Makes the tree ours, though not its leaves: takes it back from the root if no snapshot is left, else copies the directory and
    /// adds us to the holders of each leaf.
    pub(super) fn own_root(&mut self) -> Result<()> {
        let Some(hold) = &mut self.hold else { return Ok(()) };
        let Some(root) = hold.root.take() else { return Ok(()) };
        let root = match Arc::try_unwrap(root) {
            Ok(tree) => {
                // The view is the same tree, and is ours again; its leaves may still be those of an older snapshot.
                mem::forget(tree);
                return Ok(());
            }
            Err(root) => root,
        };
        // The hold keeps it meanwhile: a clone may panic, and then the tree is still a view.
        hold.root = Some(root.clone());
        let (tree, own) = duplicate(&root, hold.clone_leaf)?;
        // The old bytes are the root's.
        (hold.root, hold.own) = (None, own);
        self.tree = ManuallyDrop::new(tree);
        self.forget_tail();
        Ok(())
    }

    /// Makes one leaf ours alone. The root is ours.
    fn own_leaf(&mut self, leaf: usize) -> Result<()> {
        let Some(hold) = &mut self.hold else { return Ok(()) };
        if self.tree.small > 0 || Tree::<T>::IS_ZERO_SIZED || hold.is_own(leaf) {
            return Ok(());
        }
        let words = (leaf / 64 + 1).saturating_sub(hold.own.len());
        hold.own.try_reserve(words).map_err(|_| Error::Table { bytes: words * 8 })?;
        // SAFETY: the leaf exists and is a block.
        let block = unsafe { self.tree.block(leaf) };
        if self.tree.pool.is_shared(block) {
            let copy = self.tree.copy_leaf(leaf, hold.clone_leaf)?;
            self.tree.set_leaf(leaf, copy);
            self.tree.release_copied(leaf, block);
        }
        hold.own.resize(hold.own.len().max(leaf / 64 + 1), 0);
        hold.own[leaf / 64] |= 1 << (leaf % 64);
        Ok(())
    }
}

/// A tree that shares the root's leaves, and the bits of those that are its alone: none.
fn duplicate<T>(root: &Tree<T>, clone_leaf: CloneLeaf<T>) -> Result<(Tree<T>, Vec<u64>)> {
    let mut tree = Tree::new(root.pool.clone())?;
    let mut own = Vec::new();
    if root.small > 0 || Tree::<T>::IS_ZERO_SIZED {
        if root.small > 0 {
            tree.resize_small(root.small)?;
        }
        // SAFETY: the new place has room for as many elements, and the root's are initialised.
        unsafe { clone_leaf(root.first, tree.first, root.len) };
        tree.len = root.len;
        return Ok((tree, own));
    }
    let words = root.leaves.div_ceil(64);
    own.try_reserve_exact(words).map_err(|_| Error::Table { bytes: words * 8 })?;
    own.resize(words, 0);
    if root.leaves > 1 {
        tree.reserve_directory(root.leaves)?;
    }
    for leaf in 0..root.leaves {
        // SAFETY: the leaf exists and is a block.
        let block = unsafe { root.block(leaf) };
        // On an error the tree goes, and takes our hold of the leaves before away.
        root.pool.share(block)?;
        tree.set_leaf(leaf, block);
        tree.leaves = leaf + 1;
        tree.len = root.len.min((leaf + 1).saturating_mul(root.per_leaf));
    }
    Ok((tree, own))
}

impl<T> Tree<T> {
    /// A block with clones of a leaf's elements.
    fn copy_leaf(&self, leaf: usize, clone_leaf: CloneLeaf<T>) -> Result<NonNull<u8>> {
        let copy = LeafBlock { tree: self, block: self.pool.alloc()? };
        // SAFETY: the leaf exists; its elements are initialised, and a block has room for as many. If a clone panics, the block goes.
        unsafe {
            let from = self.block(leaf).as_ptr().cast::<T>();
            clone_leaf(from, copy.block.as_ptr().cast(), self.leaf_len(leaf));
        }
        Ok(ManuallyDrop::new(copy).block)
    }

    /// Leaves a block whose elements were cloned to its other holders; if they have gone meanwhile, its elements go too.
    fn release_copied(&self, leaf: usize, block: NonNull<u8>) {
        if self.pool.unshare(block) {
            return;
        }
        let _freed = LeafBlock { tree: self, block };
        let elements = ptr::slice_from_raw_parts_mut(block.as_ptr().cast::<T>(), self.leaf_len(leaf));
        // SAFETY: no other holder is left, and the tree uses the copy from now on.
        unsafe { ptr::drop_in_place(elements) };
    }
}

/// [`CloneLeaf`] for elements that can be cloned.
pub(super) unsafe fn clone_leaf<T: Clone>(from: *const T, to: *mut T, count: usize) {
    /// Drops the clones that are made when the next one panics.
    struct Made<T>(*mut T, usize);
    impl<T> Drop for Made<T> {
        fn drop(&mut self) {
            // SAFETY: so many clones are made there.
            unsafe { ptr::drop_in_place(ptr::slice_from_raw_parts_mut(self.0, self.1)) };
        }
    }
    let mut made = Made(to, 0);
    while made.1 < count {
        // SAFETY: by contract `from` has so many elements and `to` has room for them.
        unsafe { to.add(made.1).write((*from.add(made.1)).clone()) };
        made.1 += 1;
    }
    mem::forget(made);
}
