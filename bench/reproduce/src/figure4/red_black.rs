//! A red-black tree whose nodes lie where their source puts them: one by one from malloc, or in blocks. The tree itself is the
//! same code on both sides (`intrusive-collections`: a node carries its links, the tree allocates nothing).
//!
//! Source: Zagieboylo, Suh and Myers, section 4.2: "It creates a red-black tree by inserting random elements and then executes an
//! in-order traversal that accesses memory locations with low locality." Where we differ: all nodes are allocated and written
//! before the first is inserted, so that neither page faults nor the allocators' own speed are in the times.

#![allow(unsafe_code, reason = "nodes are placed by hand")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use anyhow::{Result, ensure};
use fieldstone_blocks::Pool;
use fieldstone_blocks::heap::{Heap, Large};
use fieldstone_workloads::random::mix;
use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, UnsafeRef, intrusive_adapter};

/// A node: three words of links and colour, a key, a value. 40 bytes; 48 from malloc.
#[derive(Debug)]
pub struct Node {
    link: RBTreeLink,
    key: u64,
    value: u64,
}

intrusive_adapter!(ByKey = UnsafeRef<Node>: Node { link => RBTreeLink });

impl<'a> KeyAdapter<'a> for ByKey {
    type Key = u64;

    fn get_key(&self, node: &'a Node) -> u64 {
        node.key
    }
}

/// Where nodes come from.
pub trait Nodes {
    /// Room for a node.
    ///
    /// # Errors
    /// Without memory.
    fn place(&mut self) -> Result<NonNull<Node>>;

    /// Takes a node's room back.
    ///
    /// # Safety
    /// It is from [`Nodes::place`] of this source, and nobody uses it any more.
    unsafe fn free(&mut self, node: NonNull<Node>);
}

/// Nodes from malloc, one by one.
#[derive(Debug, Default)]
pub struct Malloc;

impl Nodes for Malloc {
    fn place(&mut self) -> Result<NonNull<Node>> {
        // SAFETY: a node has a size.
        let node = unsafe { alloc(Layout::new::<Node>()) };
        let Some(node) = NonNull::new(node) else { handle_alloc_error(Layout::new::<Node>()) };
        Ok(node.cast())
    }

    unsafe fn free(&mut self, node: NonNull<Node>) {
        // SAFETY: allocated with this layout, and out of use by contract.
        unsafe { dealloc(node.as_ptr().cast(), Layout::new::<Node>()) };
    }
}

/// Nodes in blocks, from the heap of a pool.
#[derive(Debug)]
pub struct InBlocks(Heap);

impl InBlocks {
    /// No nodes yet.
    ///
    /// # Errors
    /// Without memory for the heap's records.
    pub fn new(pool: &Pool) -> Result<Self> {
        Ok(Self(Heap::new(pool, Large::Refuse)?))
    }
}

impl Nodes for InBlocks {
    fn place(&mut self) -> Result<NonNull<Node>> {
        Ok(self.0.alloc(Layout::new::<Node>())?.cast())
    }

    unsafe fn free(&mut self, node: NonNull<Node>) {
        // SAFETY: from this heap with this layout, and out of use by contract.
        unsafe { self.0.free(node.cast(), Layout::new::<Node>()) };
    }
}

/// Nodes that are placed and written, and in no tree yet. They are freed by the tree alone.
#[derive(Debug)]
pub struct Loose<N> {
    nodes: Vec<NonNull<Node>>,
    source: N,
}

impl<N: Nodes> Loose<N> {
    /// `count` nodes; node i has the i-th key and the value i.
    ///
    /// # Errors
    /// Without memory.
    pub fn new(mut source: N, count: usize) -> Result<Self> {
        let mut nodes = Vec::with_capacity(count);
        for index in 0..count as u64 {
            let node = source.place()?;
            // SAFETY: the room is ours, and large and aligned enough for a node.
            unsafe { node.write(Node { link: RBTreeLink::new(), key: key(index), value: index }) };
            nodes.push(node);
        }
        Ok(Self { nodes, source })
    }

    /// The addresses that the nodes lie between.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<u64> {
        let addresses = || self.nodes.iter().map(|node| node.addr().get() as u64);
        addresses().min().unwrap_or(0)..addresses().max().map_or(0, |last| last + size_of::<Node>() as u64)
    }

    /// Inserts them all, in the order in which they were placed.
    #[must_use]
    pub fn insert(self) -> RedBlack<N> {
        let mut tree = RBTree::new(ByKey::new());
        for node in &self.nodes {
            // SAFETY: the node is written, in no tree, and stays where it is until `RedBlack` frees it.
            tree.insert(unsafe { UnsafeRef::from_raw(node.as_ptr()) });
        }
        RedBlack { tree, source: self.source }
    }
}

/// A red-black tree of random keys.
pub struct RedBlack<N: Nodes> {
    tree: RBTree<ByKey>,
    source: N,
}

impl<N: Nodes> std::fmt::Debug for RedBlack<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedBlack").finish_non_exhaustive()
    }
}

impl<N: Nodes> RedBlack<N> {
    /// Goes on in the order of the keys: through the `count` nodes behind key `last`, which becomes the key of the last of
    /// them. The first node follows the last one. A number that depends on the order.
    #[inline(always)]
    pub fn traverse(&self, last: &mut u64, count: usize) -> u64 {
        let mut cursor = self.tree.lower_bound(Bound::Excluded(&*last));
        let mut sum = 0_u64;
        for _ in 0..count {
            if cursor.is_null() {
                cursor.move_next();
            }
            let Some(node) = cursor.get() else { break };
            sum = sum.rotate_left(1) ^ node.value;
            *last = node.key;
            cursor.move_next();
        }
        sum
    }

    /// Checks that `count` nodes are there and stand in order.
    ///
    /// # Errors
    /// When they do not.
    pub fn verify(&self, count: usize) -> Result<()> {
        let mut last = None;
        let mut found = 0;
        for node in &self.tree {
            ensure!(last < Some(node.key) && node.key == key(node.value), "node {} is out of order", node.value);
            (last, found) = (Some(node.key), found + 1);
        }
        ensure!(found == count, "{found} nodes of {count} are in the tree");
        Ok(())
    }
}

impl<N: Nodes> Drop for RedBlack<N> {
    fn drop(&mut self) {
        for node in self.tree.take() {
            if let Some(node) = NonNull::new(UnsafeRef::into_raw(node)) {
                // SAFETY: placed by this source, and just taken out of its only tree.
                unsafe { self.source.free(node) };
            }
        }
    }
}

/// The i-th key: no two are equal, since `mix` is a bijection.
fn key(index: u64) -> u64 {
    mix(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use fieldstone_blocks::HeapFrames;

    use super::*;

    #[test]
    fn both_places_make_the_same_tree_and_give_everything_back() {
        let pool = Pool::with_block_bytes(HeapFrames, 4096).unwrap();
        let malloc = Loose::new(Malloc, 10_000).unwrap().insert();
        let blocks = Loose::new(InBlocks::new(&pool).unwrap(), 10_000).unwrap().insert();
        malloc.verify(10_000).unwrap();
        blocks.verify(10_000).unwrap();
        let all = malloc.traverse(&mut { u64::MAX }, 10_000);
        assert_eq!(all, blocks.traverse(&mut { u64::MAX }, 10_000));
        // In two parts, over the end.
        let mut last = u64::MAX;
        let parts = (malloc.traverse(&mut last, 6000), malloc.traverse(&mut last, 6000));
        assert_eq!(malloc.traverse(&mut { u64::MAX }, 6000), parts.0);
        assert_ne!(parts.0, parts.1);
        assert_eq!(Some(last), malloc.tree.iter().nth(1999).map(|node| node.key));
        assert!(pool.stats().used_bytes >= 10_000 * size_of::<Node>());
        drop(blocks);
        assert_eq!(pool.stats().used_bytes, 0);
    }

    #[test]
    fn a_missing_node_and_a_changed_one_are_found() {
        let tree = Loose::new(Malloc, 100).unwrap().insert();
        assert!(tree.verify(99).is_err());
        let other = Loose::new(Malloc, 101).unwrap().insert();
        assert_ne!(tree.traverse(&mut { u64::MAX }, 100), other.traverse(&mut { u64::MAX }, 100));
    }
}
