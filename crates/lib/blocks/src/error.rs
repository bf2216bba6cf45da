//! The crate's error type. Each message names the remedy where there is one.

use thiserror::Error as ThisError;

/// A result of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// Why an operation on a block, an array or a heap failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The pool has reached its limit, or its memory is used up.
    #[error(
        "cannot allocate {wanted_bytes} bytes: all {held_bytes} bytes of the pool are in use; free some, or raise its limit \
         or give it more memory"
    )]
    Exhausted {
        /// Bytes requested.
        wanted_bytes: usize,
        /// Bytes the pool holds.
        held_bytes: usize,
    },
    /// A memory system call failed.
    #[error(
        "{operation} of {bytes} bytes failed with errno {errno}: free memory, or raise the limit that applies \
         (ulimit -v, the cgroup's memory.max, vm.overcommit_memory, vm.max_map_count; \
         for pages of 1 GiB, their pool: see `fieldstone doctor`)"
    )]
    System {
        /// The system call.
        operation: &'static str,
        /// Its size argument, in bytes.
        bytes: usize,
        /// Its error number.
        errno: i32,
    },
    /// The pool has no such number of contiguous blocks.
    #[error(
        "cannot allocate {blocks} contiguous blocks: memory is fragmented, or the frames supply single chunks only; \
         keep the data in a tree of blocks instead"
    )]
    NoRun {
        /// Blocks requested.
        blocks: usize,
    },
    /// The block size is not supported.
    #[error("cannot use blocks of {bytes} bytes: the size must be a power of two from 4096 to 2097152")]
    BlockSize {
        /// Bytes requested.
        bytes: usize,
    },
    /// One element is larger than a block.
    #[error(
        "an element of {element_bytes} bytes does not fit in a block of {block_bytes}: box the element, or use a pool of larger blocks (2 MiB at most)"
    )]
    ElementTooLarge {
        /// Bytes of the element.
        element_bytes: usize,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// A heap made with [`Large::Refuse`](crate::heap::Large::Refuse) got a request larger than a
    /// block.
    #[error(
        "cannot allocate {bytes} bytes: a block has {largest_bytes}, and this heap refuses runs of blocks; keep the data in a tree \
         of blocks, or create the heap with Large::Runs"
    )]
    Refused {
        /// Bytes requested.
        bytes: usize,
        /// The largest request that succeeds, in bytes.
        largest_bytes: usize,
    },
    /// The element count exceeds what an array can index.
    #[error("an array cannot hold {elements} elements: the count overflows")]
    CapacityOverflow {
        /// Elements requested.
        elements: usize,
    },
    /// The address is not the start of one of the pool's blocks.
    #[error("{address:#x} is not a block of this pool")]
    Foreign {
        /// The address.
        address: usize,
    },
    /// The block is already free.
    #[error("the block at {address:#x} is already free")]
    DoubleFree {
        /// Its address.
        address: usize,
    },
    /// The global allocator has no memory for one of the crate's tables.
    #[error("cannot allocate a table of {bytes} bytes: the global allocator is out of memory")]
    Table {
        /// Bytes requested.
        bytes: usize,
    },
}
