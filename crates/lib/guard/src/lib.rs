//! Guard pages for heaps: objects that fault at memory errors, and a bump allocator without a limit
//! check.
//!
//! | type | use |
//! |---|---|
//! | [`Slots`] | an allocator whose objects fault past their end, before their start and after their free; explains the fault |
//! | `Bump` (feature `std`) | a heap that calls its owner when it is full, found by a guard page |
//!
//! | file | |
//! |---|---|
//! | `slots` | guarded slots; its own table lists its files |
//! | `slots/fork` | what a forked child gets |
//! | `bump` | the heap |
//! | `finding` | what an invalid access or free did, and to which object |
//! | `kernel` | system calls without libc |
//! | `sync` | atomics, of the processor or of loom |
//! | `loom_model` | models of the lock-free structures under loom |
//! | `error` | failed operations |
//!
//! Without the feature `std` the crate has `Slots` only. That part is `no_std`, needs no allocator
//! and no libc, and does not panic, so that a preloaded library can use it.
//!
//! Limits: 64-bit Linux on x86-64, AArch64 and RISC-V. docs/guard.md of the repository lists them.
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "64-bit Linux: numbers of slots, classes, threads and stacks have 32 bits by construction"
)]

#[cfg(feature = "std")]
mod bump;
mod error;
mod finding;
mod kernel;
mod slots;
mod sync;

#[cfg(feature = "std")]
pub use crate::bump::{Bump, BumpBuilder, Heap};
/// Compiles and runs the example of the README.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;

pub use crate::{
    error::{Error, Result},
    finding::{Event, Finding, Kind, Object, StackId, Trace},
    slots::{MAX_FRAMES, Side, SlotStats, Slots, SlotsBuilder},
};

#[cfg(all(test, loom))]
mod loom_model;
