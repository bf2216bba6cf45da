//! Lists: doubly linked nodes, each of which contains several items.
//!
//! ```text
//! list  head, tail, items
//! node  previous, next, its words, items, first used word, then unused words, then the items
//! item  its bytes, then its contents
//! ```
//! Items are added before the first one of the head.

use crate::heap::{Block, Full, Heap};
use crate::size_class::rounded;
use crate::words::words_of;

/// Words of a list.
pub(crate) const LIST_WORDS: usize = 3;
/// Words of a node before its items.
const NODE_HEADER: usize = 5;
/// Words of a node whose items are small.
const NODE_WORDS: usize = 128;

const HEAD: usize = 0;
const TAIL: usize = 1;
const ITEMS: usize = 2;

const PREVIOUS: usize = 0;
const NEXT: usize = 1;
const NODE_SIZE: usize = 2;
const NODE_ITEMS: usize = 3;
const FIRST_ITEM: usize = 4;

/// A list, at three words of the heap.
pub(crate) struct List<'a> {
    heap: &'a Heap,
    at: usize,
}

impl<'a> List<'a> {
    /// The list at these words; an empty one if they are 0.
    pub(crate) const fn at(heap: &'a Heap, at: usize) -> Self {
        Self { heap, at }
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.get_block(self.at + ITEMS)
    }

    /// Adds a value at the front.
    pub(crate) fn push(&self, value: &[u8]) -> Result<(), Full> {
        let (heap, words) = (self.heap, 1 + words_of(value.len()));
        let mut node = heap.get_block(self.at + HEAD);
        if node == 0 || heap.get_block(node + FIRST_ITEM) < NODE_HEADER + words {
            node = self.add_node(rounded(NODE_WORDS.max(NODE_HEADER + words)))?;
        }
        let first = heap.get_block(node + FIRST_ITEM) - words;
        heap.set_block(node + first, value.len());
        heap.write(node + first + 1, value);
        heap.set_block(node + FIRST_ITEM, first);
        self.count(node, 1);
        Ok(())
    }

    /// Removes the value at the front.
    pub(crate) fn pop(&self) {
        let (heap, node) = (self.heap, self.heap.get_block(self.at + HEAD));
        let first = heap.get_block(node + FIRST_ITEM);
        heap.set_block(node + FIRST_ITEM, first + 1 + words_of(heap.get_block(node + first)));
        self.count(node, -1);
        if heap.get(node + NODE_ITEMS) == 0 {
            let next = heap.get_block(node + NEXT);
            heap.set_block(self.at + HEAD, next);
            heap.set_block(if next == 0 { self.at + TAIL } else { next + PREVIOUS }, 0);
            heap.free(node, heap.get_block(node + NODE_SIZE));
        }
    }

    /// `count` values from a position on.
    pub(crate) fn values(&self, start: usize, count: usize) -> Vec<Vec<u8>> {
        let (mut node, first) = self.node_of(start);
        let mut skipped = start - first;
        let mut values = Vec::with_capacity(count);
        while values.len() < count && node != 0 {
            let mut at = node + self.heap.get_block(node + FIRST_ITEM);
            for _ in 0..self.heap.get(node + NODE_ITEMS) {
                let bytes = self.heap.get_block(at);
                if skipped > 0 {
                    skipped -= 1;
                } else if values.len() < count {
                    values.push(self.heap.read(at + 1, bytes));
                }
                at += 1 + words_of(bytes);
            }
            node = self.heap.get_block(node + NEXT);
        }
        values
    }

    /// Frees all nodes.
    pub(crate) fn clear(&self) {
        let mut node = self.heap.get_block(self.at + HEAD);
        while node != 0 {
            let (next, words) = (self.heap.get_block(node + NEXT), self.heap.get_block(node + NODE_SIZE));
            self.heap.free(node, words);
            node = next;
        }
        (self.at..self.at + LIST_WORDS).for_each(|word| self.heap.set(word, 0));
    }

    /// Adds an empty node at the front.
    fn add_node(&self, words: usize) -> Result<Block, Full> {
        let (heap, head) = (self.heap, self.heap.get_block(self.at + HEAD));
        let node = heap.allocate(words)?;
        heap.set(node + PREVIOUS, 0);
        heap.set_block(node + NEXT, head);
        heap.set_block(node + NODE_SIZE, words);
        heap.set(node + NODE_ITEMS, 0);
        heap.set_block(node + FIRST_ITEM, words);
        heap.set_block(if head == 0 { self.at + TAIL } else { head + PREVIOUS }, node);
        heap.set_block(self.at + HEAD, node);
        Ok(node)
    }

    /// Adds to the number of items of a node and of the list.
    fn count(&self, node: Block, change: i64) {
        for word in [node + NODE_ITEMS, self.at + ITEMS] {
            self.heap.set(word, self.heap.get(word).wrapping_add_signed(change));
        }
    }

    /// The node that contains a position of the list, and the position of its first item. Searches from the
    /// closer end.
    fn node_of(&self, position: usize) -> (Block, usize) {
        let items = |node| self.heap.get_block(node + NODE_ITEMS);
        if position < self.len() / 2 {
            let (mut node, mut first) = (self.heap.get_block(self.at + HEAD), 0);
            while first + items(node) <= position {
                first += items(node);
                node = self.heap.get_block(node + NEXT);
            }
            return (node, first);
        }
        let mut node = self.heap.get_block(self.at + TAIL);
        let mut first = self.len() - items(node);
        while first > position {
            node = self.heap.get_block(node + PREVIOUS);
            first -= items(node);
        }
        (node, first)
    }
}
