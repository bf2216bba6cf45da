//! Arrays as trees of blocks, instead of address translation: the work of finding an element in
//! three ways (Zagieboylo et al., sections 3 and 4.4).
//!
//! ```text
//!   root block     [ · · · · ]                     levels: blocks from the root to a leaf;
//!                    |   \                         an array of one block has one level and no pointers
//!   inner blocks   [ · · ] [ · · ]
//!                    |
//!   leaves         [ elements ]
//! ```
//! - **naive**: every access walks down from the root and reads a pointer from each block above the
//!   leaf.
//! - **cursor**: software caches the path of its last access (the paper's `Iterator`, a software
//!   walk cache). The same leaf costs a comparison; another leaf climbs to the lowest common block
//!   and walks down from there.
//! - **accelerator**: hardware walks down, with a small cache of (array, level, block) entries, for
//!   one instruction. The paper's "hardware acceleration of tree traversals", modelled like the
//!   paging-structure caches of `walk`: the walk starts at the deepest cached entry.
//!
//! The access to the element itself counts in `accesses`, not in `memory_references`, as with page
//! walks.

use serde::{Deserialize, Serialize};

use crate::lru::{LruTable, index};

/// Bytes of a pointer in a block.
const POINTER_BYTES: u64 = 8;
/// Instructions per step down: shift, mask, load.
const STEP_INSTRUCTIONS: u64 = 3;
/// Instructions before the first step: compare the depth, branch.
const DEPTH_INSTRUCTIONS: u64 = 2;
/// Instructions that check whether a cursor's block is the right one: shift or subtract, compare,
/// branch.
const CHECK_INSTRUCTIONS: u64 = 3;

/// The shape of trees: the block size, and the size of the largest array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeShape {
    /// Bytes of a block, for leaves and inner blocks.
    pub block_bytes: u64,
    /// Bytes of an array. Accesses have lower offsets.
    pub array_bytes: u64,
}

/// The work of finding elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TreeCounts {
    /// Elements accessed.
    pub accesses: u64,
    /// Accesses that found their leaf without reading a pointer.
    pub leaf_hits: u64,
    /// Pointers read.
    pub memory_references: u64,
    /// Instructions that the program ran to find elements, without the accesses themselves.
    pub instructions: u64,
}

/// The three ways, modelled over the same accesses.
#[derive(Debug, Clone)]
pub struct TreeModel {
    levels: u32,
    leaf_shift: u32,
    fanout_shift: u32,
    /// The leaf of the last access, by array.
    cursors: Vec<Option<u64>>,
    cache: LruTable,
    naive: TreeCounts,
    cursor: TreeCounts,
    accelerator: TreeCounts,
}

impl TreeShape {
    /// Blocks from the root to an element: 1 for an array of one block.
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

    /// The log2 of a leaf's bytes, and of the pointers per block.
    fn shifts(&self) -> (u32, u32) {
        let bytes = self.block_bytes.max(2 * POINTER_BYTES).next_power_of_two();
        (bytes.ilog2(), (bytes / POINTER_BYTES).ilog2())
    }
}

impl TreeModel {
    /// Creates a model of trees of `shape`, and an accelerator with a cache of `entries` (at least
    /// one). Block sizes are rounded up to powers of two.
    #[must_use]
    pub fn new(shape: TreeShape, entries: u32) -> Self {
        let (leaf_shift, fanout_shift) = shape.shifts();
        Self {
            levels: shape.levels(),
            leaf_shift,
            fanout_shift,
            cursors: Vec::new(),
            cache: LruTable::full(entries.clamp(1, LruTable::MAX_FULL)),
            naive: TreeCounts::default(),
            cursor: TreeCounts::default(),
            accelerator: TreeCounts::default(),
        }
    }

    /// Models an access to the byte at `offset` of an array. Arrays are numbered from 0.
    pub fn access(&mut self, array: u32, offset: u64) {
        let leaf = offset >> self.leaf_shift;
        self.walk_naively(leaf, array);
        self.walk_by_cursor(leaf, array);
        self.walk_in_hardware(leaf, array);
    }

    /// Resets the counts, but not the cursors and the cache.
    pub fn start_counting(&mut self) {
        (self.naive, self.cursor, self.accelerator) = Default::default();
    }

    /// The counts of walking from the root at every access.
    #[must_use]
    pub fn naive(&self) -> TreeCounts {
        self.naive
    }

    /// The counts with a cursor for each array.
    #[must_use]
    pub fn cursor(&self) -> TreeCounts {
        self.cursor
    }

    /// The counts with the hardware accelerator.
    #[must_use]
    pub fn accelerator(&self) -> TreeCounts {
        self.accelerator
    }

    fn inner(&self) -> u64 {
        u64::from(self.levels - 1)
    }

    /// Keeps no state: only a leaf that is the root needs no steps.
    fn walk_naively(&mut self, _leaf: u64, _array: u32) {
        let steps = self.inner();
        self.naive.add(steps, DEPTH_INSTRUCTIONS + steps * STEP_INSTRUCTIONS);
    }

    fn walk_by_cursor(&mut self, leaf: u64, array: u32) {
        let array = index(array.into());
        if array >= self.cursors.len() {
            self.cursors.resize(array + 1, None);
        }
        let steps = match self.cursors[array].replace(leaf) {
            Some(old) => self.steps_from_common_block(old ^ leaf),
            None => self.inner(),
        };
        // One check at the leaf, and one at each block on the way up: as many as the steps down.
        self.cursor.add(steps, CHECK_INSTRUCTIONS + steps * (CHECK_INSTRUCTIONS + STEP_INSTRUCTIONS));
    }

    /// Steps down to a leaf from the lowest common block; `difference` is the XOR of the leaves'
    /// numbers.
    fn steps_from_common_block(&self, difference: u64) -> u64 {
        let bits = u64::BITS - difference.leading_zeros();
        u64::from(bits.div_ceil(self.fanout_shift)).min(self.inner())
    }

    fn walk_in_hardware(&mut self, leaf: u64, array: u32) {
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

/// A block's key in the cache, never 0: array, level, number in its level.
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
    fn an_array_of_one_block_needs_no_steps() {
        let mut model = TreeModel::new(shape(4 * KIB), 4);
        (0..512).for_each(|element| model.access(0, element * 8));
        let hits = TreeCounts { accesses: 512, leaf_hits: 512, memory_references: 0, instructions: 0 };
        assert_eq!(model.accelerator(), hits);
        assert_eq!(model.naive(), TreeCounts { instructions: 512 * 2, ..hits });
        assert_eq!(model.cursor(), TreeCounts { instructions: 512 * 3, ..hits });
    }

    #[test]
    fn a_scan_reads_one_pointer_per_leaf() {
        // 4 MiB in three levels, by 8 bytes: 1024 leaves in two inner blocks.
        let mut model = TreeModel::new(shape(1 << 30), 8);
        (0..512 * KIB).for_each(|element| model.access(0, element * 8));
        assert_eq!(model.naive().memory_references, 2 * 512 * KIB);
        // The first access reads 2; 1022 leaves next to the last one read 1; the first leaf of the
        // second inner block 2.
        assert_eq!(model.cursor().memory_references, 2 + 1022 + 2);
        assert_eq!(model.cursor().leaf_hits, 512 * KIB - 1024);
        assert_eq!(model.accelerator().memory_references, 2 + 1022 + 2);
        // A check for each access; a check and a step for each pointer.
        assert_eq!(model.cursor().instructions, 3 * 512 * KIB + 6 * 1026);
        assert_eq!(model.accelerator().instructions, 0);
    }

    #[test]
    fn warm_up_accesses_are_not_counted() {
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
    fn two_streams_in_one_array_defeat_the_cursor() {
        // Two alternating places in one array: the cursor climbs to the root each time, the
        // hardware caches both paths.
        let mut model = TreeModel::new(shape(1 << 30), 8);
        for _ in 0..100 {
            model.access(0, 0);
            model.access(0, 512 << 20);
        }
        assert_eq!(model.cursor().memory_references, 400);
        assert_eq!(model.accelerator().memory_references, 4);
        let mut separate = TreeModel::new(shape(1 << 30), 8);
        for _ in 0..100 {
            separate.access(0, 0);
            separate.access(1, 512 << 20);
        }
        assert_eq!(separate.cursor().memory_references, 4, "each array has its own cursor");
    }

    #[test]
    fn a_small_accelerator_evicts() {
        // Five leaves in turn, four entries.
        let mut model = TreeModel::new(shape(2 << 20), 4);
        (0..50).for_each(|step| model.access(0, step % 5 * 4 * KIB));
        assert_eq!(
            model.accelerator().memory_references,
            50,
            "two levels: each leaf's entry is evicted before it is needed"
        );
    }
}
