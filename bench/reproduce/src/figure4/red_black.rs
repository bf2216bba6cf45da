//! A red-black tree with nodes from malloc or in blocks. The tree is the same code on both sides
//! (`intrusive-collections`: a node contains its links, and the tree allocates nothing).
//!
//! Source: Zagieboylo, Suh and Myers, section 4.2: "It creates a red-black tree by inserting random
//! elements and then executes an in-order traversal that accesses memory locations with low
//! locality."
//!
//! Difference from the paper: all nodes are allocated and written before the first insertion. So
//! the times contain neither page faults nor the speed of the allocators.

#![allow(unsafe_code, reason = "manages the memory of nodes")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use anyhow::{Result, ensure};
use fieldstone_blocks::Pool;
use fieldstone_blocks::heap::{Heap, Large};
use fieldstone_workloads::random::mix;
use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, UnsafeRef, intrusive_adapter};

/// A node: three words of links and colour, a key, a value. It has 40 bytes, or 48 from malloc.
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

/// The allocator of nodes.
pub trait Nodes {
    /// Allocates the memory of a node.
    ///
    /// # Errors
    /// If memory is not available.
    fn place(&mut self) -> Result<NonNull<Node>>;

    /// Frees the memory of a node.
    ///
    /// # Safety
    /// The node is from [`Nodes::place`] of this allocator, and nothing else uses it.
    unsafe fn free(&mut self, node: NonNull<Node>);
}

/// Nodes from malloc.
#[derive(Debug, Default)]
pub struct Malloc;

impl Nodes for Malloc {
    fn place(&mut self) -> Result<NonNull<Node>> {
        // SAFETY: the layout of a node has a size other than zero.
        let node = unsafe { alloc(Layout::new::<Node>()) };
        let Some(node) = NonNull::new(node) else { handle_alloc_error(Layout::new::<Node>()) };
        Ok(node.cast())
    }

    unsafe fn free(&mut self, node: NonNull<Node>) {
        // SAFETY: the caller passes an unused node of `place`, which allocated it with this layout.
        unsafe { dealloc(node.as_ptr().cast(), Layout::new::<Node>()) };
    }
}

/// Nodes in blocks of a pool's heap.
#[derive(Debug)]
pub struct InBlocks(Heap);

impl InBlocks {
    /// An allocator without nodes.
    ///
    /// # Errors
    /// If memory for the heap's records is not available.
    pub fn new(pool: &Pool) -> Result<Self> {
        Ok(Self(Heap::new(pool, Large::Refuse)?))
    }
}

impl Nodes for InBlocks {
    fn place(&mut self) -> Result<NonNull<Node>> {
        Ok(self.0.alloc(Layout::new::<Node>())?.cast())
    }

    unsafe fn free(&mut self, node: NonNull<Node>) {
        // SAFETY: the caller passes an unused node of `place`, which this heap allocated with this
        // layout.
        unsafe { self.0.free(node.cast(), Layout::new::<Node>()) };
    }
}

/// Allocated and written nodes that are in no tree. Only the tree frees them.
#[derive(Debug)]
pub struct UnlinkedNodes<N> {
    nodes: Vec<NonNull<Node>>,
    source: N,
}

impl<N: Nodes> UnlinkedNodes<N> {
    /// Allocates `count` nodes; node i has the i-th key and the value i.
    ///
    /// # Errors
    /// If memory is not available.
    pub fn new(mut source: N, count: usize) -> Result<Self> {
        let mut nodes = Vec::with_capacity(count);
        for index in 0..count as u64 {
            let node = source.place()?;
            // SAFETY: `place` returned unused memory with the layout of a node.
            unsafe { node.write(Node { link: RBTreeLink::new(), key: key(index), value: index }) };
            nodes.push(node);
        }
        Ok(Self { nodes, source })
    }

    /// The address range of the nodes.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<u64> {
        let addresses = || self.nodes.iter().map(|node| node.addr().get() as u64);
        addresses().min().unwrap_or(0)..addresses().max().map_or(0, |last| last + size_of::<Node>() as u64)
    }

    /// Inserts all nodes, in the order of their allocation.
    #[must_use]
    pub fn insert(self) -> RedBlack<N> {
        let mut tree = RBTree::new(ByKey::new());
        for node in &self.nodes {
            // SAFETY: the node is initialised and in no tree. It does not move until `RedBlack`
            // frees it.
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
    /// Traverses the `count` nodes after key `last`, in the order of the keys, and sets `last` to
    /// the key of the last one. The first node follows the last. Returns a number that depends on
    /// the order.
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

    /// Checks that the tree has `count` nodes in order.
    ///
    /// # Errors
    /// If it does not.
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
                // SAFETY: `source` allocated the node, which was just removed from its only tree.
                unsafe { self.source.free(node) };
            }
        }
    }
}

/// The i-th key. All keys are different, because `mix` is a bijection.
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
        let malloc = UnlinkedNodes::new(Malloc, 10_000).unwrap().insert();
        let blocks = UnlinkedNodes::new(InBlocks::new(&pool).unwrap(), 10_000).unwrap().insert();
        malloc.verify(10_000).unwrap();
        blocks.verify(10_000).unwrap();
        let all = malloc.traverse(&mut { u64::MAX }, 10_000);
        assert_eq!(all, blocks.traverse(&mut { u64::MAX }, 10_000));
        // In two parts, the second beyond the end.
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
        let tree = UnlinkedNodes::new(Malloc, 100).unwrap().insert();
        assert!(tree.verify(99).is_err());
        let other = UnlinkedNodes::new(Malloc, 101).unwrap().insert();
        assert_ne!(tree.traverse(&mut { u64::MAX }, 100), other.traverse(&mut { u64::MAX }, 100));
    }
}
