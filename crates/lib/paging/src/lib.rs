//! Memory with a bound on its resident size: pages above it are compressed or stored elsewhere, and
//! come back by page faults.
//!
//! ```text
//! program ── access to a missing page ──→ userfaultfd ──→ service ─→ filling ←─ store: lz4, file
//!                                                            └────→ eviction ──→ store
//! ```
//! | file | |
//! |---|---|
//! | `paged` (feature `std`) | memory for a program that links this crate |
//! | `pager` | the parts of a pager; how it uses its stores; how many pages it brings at one time (`AHEAD`) |
//! | `service` | messages of the kernel: faults, forks, changes of the address space |
//! | `child` | a forked child gets all pages |
//! | `filling` | pages come back |
//! | `read_ahead` | pages that are accessed in order come back before they are accessed |
//! | `eviction` | pages leave memory |
//! | `copies` | resident pages that stay stored |
//! | `table` | the state of each page |
//! | `store` | what a store does |
//! | `compressed` | compressed pages in memory; which pages compress too little |
//! | `device`, `file` | pages at numbered places; those of a file |
//! | `exchange` | pages that the `fieldstone` command keeps on a server |
//! | `redis` (feature `redis`) | pages on a Redis server |
//! | `objects` (feature `opendal`) | pages in an object store |
//! | `packed` | a page as a value of these two |
//! | `lz4`, `zstd` (feature `zstd`) | compressions |
//! | `ranges` | the memory that a pager pages |
//! | `slab` | memory for compressed pages |
//! | `arena`, `lock` | the pager's own memory, and its locks |
//! | `userfaultfd`, `kernel` | system calls |
//! | `count`, `error` | changes of counters; failed operations |
//!
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs*, ASPLOS 1991, "Data
//! compression paging".
//!
//! Invariants: the thread that serves faults uses no allocator, no lock and no memory of the
//! program. Limits: x86-64 Linux 6.8 or later, pages of 4 KiB.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "64-bit Linux: an address, a descriptor and a result are one and the same register; numbers of pages in a batch, a span and a store fit by construction"
)]

mod arena;
mod child;
mod compressed;
mod copies;
mod count;
mod device;
mod error;
mod eviction;
mod exchange;
mod file;
mod filling;
mod kernel;
mod lock;
mod lz4;
#[cfg(feature = "opendal")]
mod objects;
#[cfg(any(feature = "redis", feature = "opendal"))]
mod packed;
#[cfg(feature = "std")]
mod paged;
mod pager;
mod ranges;
mod read_ahead;
#[cfg(feature = "redis")]
mod redis;
mod service;
mod slab;
mod store;
mod table;
mod userfaultfd;
#[cfg(feature = "zstd")]
mod zstd;

/// Compiles the example of the README.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;

pub use fieldstone_wire::paging::{PagingCounters, STORES};

#[cfg(feature = "std")]
pub use crate::device::PagesLeft;
#[cfg(feature = "opendal")]
pub use crate::objects::{ObjectStorage, Objects, ObjectsError};
#[cfg(feature = "std")]
pub use crate::paged::{Advice, OnLoss, Paged, PagedBuilder, PagedStats, StoreStats, Words};
#[cfg(feature = "redis")]
pub use crate::redis::{Redis, RedisServer};
#[cfg(feature = "zstd")]
pub use crate::zstd::Zstd;
pub use crate::{
    child::is_served_by_parent,
    device::{Device, DeviceStore},
    error::{Error, Result},
    exchange::Exchange,
    file::TempFile,
    kernel::{Errno, now_ns},
    lz4::Lz4,
    pager::{Callbacks, DecideLoss, Pager, Stores, VisitRanges},
    store::{MAX_KEY, Page, Store, StoreError},
};
