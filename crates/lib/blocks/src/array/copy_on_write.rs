//! Copy-on-write: shares leaves between an array and its snapshots, and copies a leaf at its first
//! write.
//!
//! ```text
//! snapshot()      array ----copy----> root (Arc) <---- snapshot         4 ns: no element is copied
//! first write     array gets its own directory; each leaf has one more holder in the pool's counts
//! write to leaf   array copies that leaf, unless it is the only holder
//! ```
//! Without snapshots each write tests one pointer. While leaves are shared, a write also tests a
//! bit.

#![allow(unsafe_code, reason = "shares and copies raw leaves")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::{self, ManuallyDrop};
use core::ptr::{self, NonNull};

use super::teardown::LeafBlock;
use super::{Tree, TreeArray};
use crate::error::{Error, Result};
use crate::sync::Arc;

/// Clones a number of elements into uninitialised memory. If a clone panics, it drops those made
/// before.
pub(super) type CloneLeaf<T> = unsafe fn(*const T, *mut T, usize);

/// The state that an array shares with its snapshots.
pub(super) struct CopyOnWrite<T> {
    /// The tree that array and snapshots share whole, until the first write.
    root: Option<Arc<Tree<T>>>,
    /// A bit per leaf, set if the leaf is known to be unshared.
    unshared: Vec<u64>,
    clone_leaf: CloneLeaf<T>,
}

impl<T> CopyOnWrite<T> {
    pub(super) const fn has_root(&self) -> bool {
        self.root.is_some()
    }

    fn is_unshared(&self, leaf: usize) -> bool {
        self.unshared.get(leaf / 64).is_some_and(|word| word >> (leaf % 64) & 1 == 1)
    }
}

impl<T> TreeArray<T> {
    /// Returns the root for a new snapshot: the existing one, or the array's tree moved into an
    /// `Arc`.
    pub(super) fn share_root(&mut self, clone_leaf: CloneLeaf<T>) -> Arc<Tree<T>> {
        if let Some(root) = self.cow.as_ref().and_then(|cow| cow.root.clone()) {
            return root;
        }
        // SAFETY: the tree moves to the root. The array keeps a bitwise copy, which is neither
        // changed nor dropped while `cow` has the root.
        let tree = unsafe { ptr::read(&raw const *self.tree) };
        let root = Arc::new(tree);
        self.cow = Some(Box::new(CopyOnWrite { root: Some(root.clone()), unshared: Vec::new(), clone_leaf }));
        self.forget_tail();
        root
    }

    /// Unshares the leaf of an element. Panics if there is no memory for the copy.
    #[cold]
    #[inline(never)]
    pub(super) fn unshare_leaf_of(&mut self, index: usize) {
        self.try_unshare_leaf_of(index)
            .unwrap_or_else(|error| panic!("cannot copy a leaf shared with a snapshot: {error}"));
    }

    /// Unshares the leaf of an element.
    pub(super) fn try_unshare_leaf_of(&mut self, index: usize) -> Result<()> {
        self.unshare_root()?;
        let leaf = if self.tree.leaves <= 1 { 0 } else { self.tree.leaf_of(index) };
        self.unshare_leaf(leaf)
    }

    /// Unshares all leaves.
    pub(super) fn try_unshare_all(&mut self) -> Result<()> {
        self.unshare_root()?;
        (0..self.tree.leaves).try_for_each(|leaf| self.unshare_leaf(leaf))?;
        self.cow = None;
        Ok(())
    }

    /// Unshares the tree, but not its leaves. Takes it back from the root if no snapshot is left;
    /// else copies the directory and adds the array as a holder of each leaf.
    pub(super) fn unshare_root(&mut self) -> Result<()> {
        let Some(cow) = &mut self.cow else { return Ok(()) };
        let Some(root) = cow.root.take() else { return Ok(()) };
        let root = match Arc::try_unwrap(root) {
            Ok(tree) => {
                // The bitwise copy is the same tree and owns it again. Its leaves may still be
                // shared with an older snapshot.
                mem::forget(tree);
                return Ok(());
            }
            Err(root) => root,
        };
        // `cow` keeps the root meanwhile: if a clone panics, the tree is still a bitwise copy of
        // it.
        cow.root = Some(root.clone());
        let (tree, unshared) = duplicate(&root, cow.clone_leaf)?;
        // The root owns the old tree, so it is not dropped here.
        (cow.root, cow.unshared) = (None, unshared);
        self.tree = ManuallyDrop::new(tree);
        self.forget_tail();
        Ok(())
    }

    /// Unshares one leaf. The root is unshared.
    fn unshare_leaf(&mut self, leaf: usize) -> Result<()> {
        let Some(cow) = &mut self.cow else { return Ok(()) };
        if self.tree.small > 0 || Tree::<T>::IS_ZERO_SIZED || cow.is_unshared(leaf) {
            return Ok(());
        }
        let words = (leaf / 64 + 1).saturating_sub(cow.unshared.len());
        cow.unshared.try_reserve(words).map_err(|_| Error::Table { bytes: words * 8 })?;
        // SAFETY: callers pass an existing leaf, and the check above excludes leaves that are not
        // blocks.
        let block = unsafe { self.tree.block(leaf) };
        if self.tree.pool.is_shared(block) {
            let copy = self.tree.copy_leaf(leaf, cow.clone_leaf)?;
            self.tree.set_leaf(leaf, copy);
            self.tree.release_block(leaf, block);
        }
        cow.unshared.resize(cow.unshared.len().max(leaf / 64 + 1), 0);
        cow.unshared[leaf / 64] |= 1 << (leaf % 64);
        Ok(())
    }
}

/// Creates a tree that shares the root's leaves, and a bit per leaf for the unshared ones: all
/// clear.
fn duplicate<T>(root: &Tree<T>, clone_leaf: CloneLeaf<T>) -> Result<(Tree<T>, Vec<u64>)> {
    let mut tree = Tree::new(root.pool.clone())?;
    let mut unshared = Vec::new();
    if root.small > 0 || Tree::<T>::IS_ZERO_SIZED {
        if root.small > 0 {
            tree.resize_small(root.small)?;
        }
        // SAFETY: the new buffer has space for the root's elements, which are initialised.
        unsafe { clone_leaf(root.first, tree.first, root.len) };
        tree.len = root.len;
        return Ok((tree, unshared));
    }
    let words = root.leaves.div_ceil(64);
    unshared.try_reserve_exact(words).map_err(|_| Error::Table { bytes: words * 8 })?;
    unshared.resize(words, 0);
    if root.leaves > 1 {
        tree.reserve_directory(root.leaves)?;
    }
    for leaf in 0..root.leaves {
        // SAFETY: `leaf` is below the number of leaves, and the check above excludes leaves that
        // are not blocks.
        let block = unsafe { root.block(leaf) };
        // On an error, dropping `tree` removes it as a holder of the leaves before.
        root.pool.share(block)?;
        tree.set_leaf(leaf, block);
        tree.leaves = leaf + 1;
        tree.len = root.len.min((leaf + 1).saturating_mul(root.per_leaf));
    }
    Ok((tree, unshared))
}

impl<T> Tree<T> {
    /// Allocates a block with clones of a leaf's elements.
    fn copy_leaf(&self, leaf: usize, clone_leaf: CloneLeaf<T>) -> Result<NonNull<u8>> {
        let copy = LeafBlock { tree: self, block: self.pool.alloc()? };
        // SAFETY: the leaf exists and is a block; its elements are initialised and fit in a block.
        // If a clone panics, `LeafBlock` frees the block.
        unsafe {
            let from = self.block(leaf).as_ptr().cast::<T>();
            clone_leaf(from, copy.block.as_ptr().cast(), self.leaf_len(leaf));
        }
        Ok(ManuallyDrop::new(copy).block)
    }

    /// Removes this tree as a holder of a block that it has copied. Drops the elements and frees
    /// the block if no holder is left.
    fn release_block(&self, leaf: usize, block: NonNull<u8>) {
        if self.pool.unshare(block) {
            return;
        }
        let _freed = LeafBlock { tree: self, block };
        let elements = ptr::slice_from_raw_parts_mut(block.as_ptr().cast::<T>(), self.leaf_len(leaf));
        // SAFETY: no other holder is left, and the tree uses the copy from now on.
        unsafe { ptr::drop_in_place(elements) };
    }
}

/// The [`CloneLeaf`] of `T: Clone`.
pub(super) unsafe fn clone_leaf<T: Clone>(from: *const T, to: *mut T, count: usize) {
    /// Drops the clones made so far if the next one panics.
    struct CloneGuard<T>(*mut T, usize);
    impl<T> Drop for CloneGuard<T> {
        fn drop(&mut self) {
            // SAFETY: the first `self.1` clones are initialised.
            unsafe { ptr::drop_in_place(ptr::slice_from_raw_parts_mut(self.0, self.1)) };
        }
    }
    let mut guard = CloneGuard(to, 0);
    while guard.1 < count {
        // SAFETY: by contract `from` has `count` elements and `to` has space for them.
        unsafe { to.add(guard.1).write((*from.add(guard.1)).clone()) };
        guard.1 += 1;
    }
    mem::forget(guard);
}
