//! What can go wrong with blocks, with the remedy where there is one.

use thiserror::Error as ThisError;

/// A result of this crate.
pub type Result<T> = core::result::Result<T, Error>;

/// Why a block or an element could not be had, or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The pool has reached its limit, or its memory is used up.
    #[error(
        "no block of {wanted_bytes} bytes: the pool holds {held_bytes} bytes, all in use; free some, or raise its limit \
         or the memory that it is given"
    )]
    Exhausted {
        /// What was asked for.
        wanted_bytes: usize,
        /// What the pool has.
        held_bytes: usize,
    },
    /// The system refused memory.
    #[error(
        "{operation} of {bytes} bytes failed with errno {errno}: free memory, or raise the limit that stands against it \
         (ulimit -v, the cgroup's memory.max, vm.overcommit_memory, vm.max_map_count; \
         for pages of 1 GiB, their pool: see `fieldstone doctor`)"
    )]
    System {
        /// The call.
        operation: &'static str,
        /// Its size.
        bytes: usize,
        /// Its error number.
        errno: i32,
    },
    /// There are not so many contiguous blocks.
    #[error(
        "no {blocks} contiguous blocks: memory is fragmented, or the frames give single chunks only; \
         hold the data in a tree of blocks instead"
    )]
    NoRun {
        /// How many were asked for.
        blocks: usize,
    },
    /// A block size that is none.
    #[error("a block of {bytes} bytes: blocks are a power of two from 4096 bytes to 2097152")]
    BlockSize {
        /// The size that was asked for.
        bytes: usize,
    },
    /// One element is larger than a block.
    #[error(
        "an element of {element_bytes} bytes does not fit in a block of {block_bytes}: box it, or take a pool of larger blocks (2 MiB at most)"
    )]
    ElementTooLarge {
        /// The element's size.
        element_bytes: usize,
        /// The block's size.
        block_bytes: usize,
    },
    /// A heap that gives no runs was asked for more than a block.
    #[error(
        "{bytes} bytes are more than a block of {largest_bytes}, and this heap gives no runs of blocks: hold the data in a tree \
         of blocks, or make the heap with Large::Runs"
    )]
    Refused {
        /// What was asked for.
        bytes: usize,
        /// The most that it gives.
        largest_bytes: usize,
    },
    /// More elements than can be numbered.
    #[error("{elements} elements are more than an array can number")]
    CapacityOverflow {
        /// How many were asked for.
        elements: usize,
    },
    /// The address is not the start of one of the pool's blocks.
    #[error("{address:#x} is no block of this pool")]
    Foreign {
        /// The address.
        address: usize,
    },
    /// The block is free already.
    #[error("the block at {address:#x} is free already")]
    DoubleFree {
        /// Its address.
        address: usize,
    },
    /// The allocator beneath could not give memory for the tables.
    #[error("no {bytes} bytes for a table: the memory allocator has none left")]
    Table {
        /// What was asked for.
        bytes: usize,
    },
}
