//! Arrays as trees of blocks instead of address translation: what finding an element takes, three ways (Zagieboylo et
//! al., sections 3 and 4.4).
//!
//! ```text
//!   root block     [ · · · · ]                     levels: blocks on the way from the root to a leaf;
//!                    |   \                         an array that fits a block has one, and no pointers
//!   inner blocks   [ · · ] [ · · ]
//!                    |
//!   leaves         [ elements ]
//! ```
//! - **naive**: every access goes down from the root: a pointer read from each block above the leaf.
//! - **cursor**: software keeps the path of its last access (the paper's `Iterator`, a walk cache in software). The same
//!   leaf costs a comparison; another one climbs to the lowest block that both paths share, and goes down from there.
//! - **accelerator**: hardware goes down, with a small cache of (array, level, block) entries; the program issues one
//!   instruction. It is the paper's "hardware acceleration of tree traversals", and made like the paging-structure
//!   caches of `walk`: the deepest entry that is known says where to go on.
//!
//! The access to the element itself is in `accesses`, not in `memory_references`, as with page walks.

use serde::{Deserialize, Serialize};

use crate::lru::{Table, index};

/// Bytes of a pointer in a block.
const POINTER_BYTES: u64 = 8;
/// Instructions of one step down: shift, mask, load.
const STEP_INSTRUCTIONS: u64 = 3;
/// Instructions before the first step: compare the depth, branch.
const DEPTH_INSTRUCTIONS: u64 = 2;
/// Instructions that ask whether a cursor's block is the right one: shift or subtract, compare, branch.
const CHECK_INSTRUCTIONS: u64 = 3;

/// Block size, and how large the largest array is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeShape {
    /// Bytes of a block: leaves and inner blocks alike.
    pub block_bytes: u64,
    /// Bytes of an array: what is accessed lies below.
    pub array_bytes: u64,
}

/// What finding the elements took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TreeCounts {
    /// Elements accessed.
    pub accesses: u64,
    /// Accesses whose leaf was known.
    pub leaf_hits: u64,
    /// Pointers read from blocks.
    pub memory_references: u64,
    /// Instructions that the program ran to find them, the access itself not among them.
    pub instructions: u64,
}

/// The three ways over the same accesses.
#[derive(Debug, Clone)]
pub struct TreeModel {
    levels: u32,
    leaf_shift: u32,
    fanout_shift: u32,
    /// Leaf of the last access, array by array.
    cursors: Vec<Option<u64>>,
    cache: Table,
    naive: TreeCounts,
    cursor: TreeCounts,
    accelerator: TreeCounts,
}

impl TreeShape {
    /// Blocks on the way from the root to an element: 1 for an array that fits one block.
    #[must_use]
    pub fn levels(&self) -> u32 {
        let (leaf, fanout) = self.shifts();
        let mut levels = 1;
        let mut reach_shift = leaf;
        while reach_shift < 64 && self.array_bytes > 1 << reach_shift {
            reach_shift += fanout;
            levels += 1;
        }
        levels
    }

    /// Bits of a leaf's bytes and of a block's pointers.
    fn shifts(&self) -> (u32, u32) {
        let bytes = self.block_bytes.max(2 * POINTER_BYTES).next_power_of_two();
        (bytes.ilog2(), (bytes / POINTER_BYTES).ilog2())
    }
}

impl TreeModel {
    /// Trees of `shape`, an accelerator with a cache of `entries` (at least one). Block sizes are rounded up to powers
    /// of two.
    #[must_use]
    pub fn new(shape: TreeShape, entries: u32) -> Self {
        let (leaf_shift, fanout_shift) = shape.shifts();
        Self {
            levels: shape.levels(),
            leaf_shift,
            fanout_shift,
            cursors: Vec::new(),
            cache: Table::full(entries.clamp(1, Table::MOST_FULL)),
            naive: TreeCounts::default(),
            cursor: TreeCounts::default(),
            accelerator: TreeCounts::default(),
        }
    }

    /// Accesses the byte at `offset` of an array. Arrays are numbered from 0.
    pub fn access(&mut self, array: u32, offset: u64) {
        let leaf = offset >> self.leaf_shift;
        self.go_naively(leaf, array);
        self.go_by_cursor(leaf, array);
        self.accelerate(leaf, array);
    }

    /// Counts from here on: what was accessed before has only brought cursors and cache into their state.
    pub fn start_counting(&mut self) {
        (self.naive, self.cursor, self.accelerator) = Default::default();
    }

    /// Every access from the root.
    #[must_use]
    pub fn naive(&self) -> TreeCounts {
        self.naive
    }

    /// By a cursor for each array.
    #[must_use]
    pub fn cursor(&self) -> TreeCounts {
        self.cursor
    }

    /// By hardware.
    #[must_use]
    pub fn accelerator(&self) -> TreeCounts {
        self.accelerator
    }

    fn inner(&self) -> u64 {
        u64::from(self.levels - 1)
    }

    /// Keeps nothing, so that a leaf is known only where it is the root.
    fn go_naively(&mut self, _leaf: u64, _array: u32) {
        let steps = self.inner();
        self.naive.add(steps, DEPTH_INSTRUCTIONS + steps * STEP_INSTRUCTIONS);
    }

    fn go_by_cursor(&mut self, leaf: u64, array: u32) {
        let array = index(array.into());
        if array >= self.cursors.len() {
            self.cursors.resize(array + 1, None);
        }
        let steps = match self.cursors[array].replace(leaf) {
            Some(old) => self.climb(old ^ leaf),
            None => self.inner(),
        };
        // One check at the leaf, and one at each block on the way up: as many as then lead down again.
        self.cursor.add(steps, CHECK_INSTRUCTIONS + steps * (CHECK_INSTRUCTIONS + STEP_INSTRUCTIONS));
    }

    /// Steps down to a leaf from the lowest block that has both; `difference` of the leaves' numbers.
    fn climb(&self, difference: u64) -> u64 {
        let bits = u64::BITS - difference.leading_zeros();
        u64::from(bits.div_ceil(self.fanout_shift)).min(self.inner())
    }

    fn accelerate(&mut self, leaf: u64, array: u32) {
        let mut steps = 0;
        let mut block = leaf;
        for level in 0..self.inner() {
            if self.cache.touch(0, entry(array, level, block)) {
                break;
            }
            steps += 1;
            block >>= self.fanout_shift;
        }
        self.accelerator.add(steps, 0);
    }
}

impl TreeCounts {
    fn add(&mut self, steps: u64, instructions: u64) {
        self.accesses += 1;
        self.leaf_hits += u64::from(steps == 0);
        self.memory_references += steps;
        self.instructions += instructions;
    }
}

/// A block's name in the cache, never 0: array, level, number in its level.
///
/// ```text
///   63 … 44   43 … 40     39 … 0
///   array     level + 1   block
/// ```
fn entry(array: u32, level: u64, block: u64) -> u64 {
    u64::from(array) << 44 | (level + 1) << 40 | block & ((1 << 40) - 1)
}

#[cfg(test)]
mod tests {
    use super::{TreeCounts, TreeModel, TreeShape};

    const KIB: u64 = 1024;

    /// Blocks of 4 KiB: 512 pointers. 4 KiB, 2 MiB, 1 GiB are one, two, three levels.
    fn shape(array_bytes: u64) -> TreeShape {
        TreeShape { block_bytes: 4 * KIB, array_bytes }
    }

    #[test]
    fn levels_are_those_of_the_paper() {
        let blocks = TreeShape { block_bytes: 32 * KIB, array_bytes: 0 };
        // 32 KiB blocks have 4096 pointers: two levels reach 128 MiB, three 512 GiB.
        let levels = |array_bytes| TreeShape { array_bytes, ..blocks }.levels();
        assert_eq!([4 * KIB, 4 * KIB * KIB, 64 << 30].map(levels), [1, 2, 3]);
        assert_eq!((levels(32 * KIB), levels(32 * KIB + 1)), (1, 2));
        assert_eq!((levels(128 << 20), levels((128 << 20) + 1), levels(0)), (2, 3, 1));
    }

    #[test]
    fn a_block_is_an_array() {
        let mut model = TreeModel::new(shape(4 * KIB), 4);
        (0..512).for_each(|element| model.access(0, element * 8));
        let hits = TreeCounts { accesses: 512, leaf_hits: 512, memory_references: 0, instructions: 0 };
        assert_eq!(model.accelerator(), hits);
        assert_eq!(model.naive(), TreeCounts { instructions: 512 * 2, ..hits });
        assert_eq!(model.cursor(), TreeCounts { instructions: 512 * 3, ..hits });
    }

    #[test]
    fn a_scan_reads_a_pointer_a_leaf() {
        // 4 MiB in three levels, by 8 bytes: 1024 leaves in two inner blocks.
        let mut model = TreeModel::new(shape(1 << 30), 8);
        (0..512 * KIB).for_each(|element| model.access(0, element * 8));
        assert_eq!(model.naive().memory_references, 2 * 512 * KIB);
        // The first access reads 2; 1022 leaves beside the last one 1; the first leaf of the second inner block 2.
        assert_eq!(model.cursor().memory_references, 2 + 1022 + 2);
        assert_eq!(model.cursor().leaf_hits, 512 * KIB - 1024);
        assert_eq!(model.accelerator().memory_references, 2 + 1022 + 2);
        // A check for each access; a check and a step for each pointer.
        assert_eq!(model.cursor().instructions, 3 * 512 * KIB + 6 * 1026);
        assert_eq!(model.accelerator().instructions, 0);
    }

    #[test]
    fn what_warms_up_is_not_counted() {
        let mut model = TreeModel::new(shape(2 << 20), 4);
        model.access(0, 0);
        model.start_counting();
        model.access(0, 8);
        let found = TreeCounts { accesses: 1, leaf_hits: 1, memory_references: 0, instructions: 0 };
        assert_eq!(model.accelerator(), found);
        assert_eq!(model.cursor(), TreeCounts { instructions: 3, ..found });
        assert_eq!(model.naive(), TreeCounts { leaf_hits: 0, memory_references: 1, instructions: 5, ..found });
    }

    #[test]
    fn two_streams_share_an_array_badly() {
        // Two places in turn, in one array: the cursor climbs to the root each time, hardware holds both paths.
        let mut model = TreeModel::new(shape(1 << 30), 8);
        for _ in 0..100 {
            model.access(0, 0);
            model.access(0, 512 << 20);
        }
        assert_eq!(model.cursor().memory_references, 400);
        assert_eq!(model.accelerator().memory_references, 4);
        let mut apart = TreeModel::new(shape(1 << 30), 8);
        for _ in 0..100 {
            apart.access(0, 0);
            apart.access(1, 512 << 20);
        }
        assert_eq!(apart.cursor().memory_references, 4, "an array has a cursor of its own");
    }

    #[test]
    fn a_small_accelerator_forgets() {
        // Five leaves in turn, four entries.
        let mut model = TreeModel::new(shape(2 << 20), 4);
        (0..50).for_each(|step| model.access(0, step % 5 * 4 * KIB));
        assert_eq!(
            model.accelerator().memory_references,
            50,
            "two levels: each leaf's entry is gone when it is needed"
        );
    }
}
