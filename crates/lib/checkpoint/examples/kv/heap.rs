//! The heap: one memory, in which a block is addressed by the index of its first word.
//!
//! ```text
//! word 0     the header: magic number, version, first unused word, counts, table
//! word 64    the first free block of each size class, 0 for none
//! word 512   blocks, up to the first unused word; then zeros
//! ```
//! A block has no header: its user knows its size, which is rounded up to a size class. A free block contains
//! the index of the next one of its class. If all words are used, a larger free block is cut; free blocks
//! are never joined.

use std::fmt;
use std::ops::Deref;

use fieldstone_pages::Memory;

use crate::size_class::{CLASSES, class_of, largest_class_within, size_of_class};
use crate::words::Words;

/// The index of the first word of a block; 0 for no block.
pub(crate) type Block = usize;

/// "fieldkv" and a zero.
const MAGIC: u64 = u64::from_le_bytes(*b"fieldkv\0");
const VERSION: u64 = 1;
/// The first free block of class 0, which no block has.
const FREE: Block = 64;
const FIRST_BLOCK: Block = 512;

/// Words of the header.
#[derive(Clone, Copy)]
pub(crate) enum Field {
    Magic,
    Version,
    /// The first word that was never in a block.
    Unused,
    /// Keys in the table.
    Keys,
    /// Write commands since the heap was created.
    Writes,
    /// The seed of the hash of keys.
    Seed,
    /// The directory of the table.
    Directory,
    /// The binary logarithm of the length of the directory.
    Depth,
}

/// No free block is large enough. Nothing was changed.
#[derive(Debug)]
pub(crate) struct Full;

/// Why a memory is not a heap.
#[derive(Debug)]
pub(crate) enum HeapError {
    NotAHeap,
    OtherVersion(u64),
    TooSmall,
}

impl fmt::Display for HeapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAHeap => f.write_str("the save is not of this program"),
            Self::OtherVersion(version) => {
                write!(f, "the heap has version {version}, and this program reads {VERSION}")
            }
            Self::TooSmall => f.write_str("the memory is too small for a heap\ntry: --memory 1M"),
        }
    }
}

impl std::error::Error for HeapError {}

/// Blocks in one memory.
#[derive(Debug)]
pub(crate) struct Heap {
    words: Words,
}

impl Deref for Heap {
    type Target = Words;

    fn deref(&self) -> &Words {
        &self.words
    }
}

impl Heap {
    /// An empty heap in a memory of zeros.
    pub(crate) fn create(memory: Memory, seed: u64) -> Result<Self, HeapError> {
        let heap = Self { words: Words::new(memory) };
        if heap.count() <= 2 * FIRST_BLOCK {
            return Err(HeapError::TooSmall);
        }
        heap.set_field(Field::Magic, MAGIC);
        heap.set_field(Field::Version, VERSION);
        heap.set_field(Field::Seed, seed);
        heap.clear();
        Ok(heap)
    }

    /// The heap in a restored memory; in a memory of `bytes` bytes, if that is larger.
    pub(crate) fn open(restored: Memory, bytes: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let heap = Self { words: Words::new(restored) };
        match (heap.field(Field::Magic), heap.field(Field::Version)) {
            (MAGIC, VERSION) => {}
            (MAGIC, version) => return Err(HeapError::OtherVersion(version).into()),
            _ => return Err(HeapError::NotAHeap.into()),
        }
        if bytes <= heap.bytes() {
            return Ok(heap);
        }
        let larger = Self { words: Words::new(Memory::anonymous(bytes)?) };
        heap.copy_to(&larger);
        Ok(larger)
    }

    /// Frees all blocks at once.
    pub(crate) fn clear(&self) {
        self.set_field(Field::Unused, FIRST_BLOCK as u64);
        (FREE..FREE + CLASSES).for_each(|class| self.set(class, 0));
    }

    pub(crate) fn bytes(&self) -> usize {
        self.memory().bytes()
    }

    /// Bytes up to the first unused word, free blocks included.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.field(Field::Unused) * 8
    }

    pub(crate) fn field(&self, field: Field) -> u64 {
        self.get(field as usize)
    }

    pub(crate) fn set_field(&self, field: Field, value: u64) {
        self.set(field as usize, value);
    }

    /// A block of at least `words` words, of any contents.
    pub(crate) fn allocate(&self, words: usize) -> Result<Block, Full> {
        let class = class_of(words);
        if let Some(block) = self.take_free(class) {
            return Ok(block);
        }
        let (unused, words) = (self.field(Field::Unused) as usize, size_of_class(class));
        if words <= self.count() - unused {
            self.set_field(Field::Unused, (unused + words) as u64);
            return Ok(unused);
        }
        self.cut(class).ok_or(Full)
    }

    /// Frees a block that was allocated with the same number of words.
    pub(crate) fn free(&self, block: Block, words: usize) {
        let first = FREE + class_of(words);
        self.set(block, self.get(first));
        self.set_block(first, block);
    }

    fn take_free(&self, class: usize) -> Option<Block> {
        let block = self.get_block(FREE + class);
        (block != 0).then(|| {
            self.set(FREE + class, self.get(block));
            block
        })
    }

    /// A block of `class` from a free block of a larger one. The rest of that is freed.
    fn cut(&self, class: usize) -> Option<Block> {
        let (larger, block) = (class + 1..CLASSES).find_map(|larger| Some((larger, self.take_free(larger)?)))?;
        let (mut at, end) = (block + size_of_class(class), block + size_of_class(larger));
        while at < end {
            let words = largest_class_within(end - at);
            self.free(at, words);
            at += words;
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_heap_cuts_larger_free_blocks_and_never_returns_a_block_twice() {
        let heap = Heap::create(Memory::anonymous(1 << 20).unwrap(), 1).unwrap();
        let mut blocks = Vec::new();
        while let Ok(block) = heap.allocate(100) {
            blocks.push(block);
        }
        assert!(heap.allocate(100).is_err() && blocks.len() > 1000, "{}", blocks.len());
        blocks.iter().for_each(|&block| heap.free(block, 100));
        let mut small: Vec<_> = std::iter::from_fn(|| heap.allocate(3).ok()).collect();
        assert!(small.len() > blocks.len() * 25, "{} blocks", small.len());
        small.sort_unstable();
        assert!(small.windows(2).all(|pair| pair[0] + 3 <= pair[1]));
    }
}
