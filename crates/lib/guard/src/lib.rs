//! Guard pages for heaps: guarded slots, and a bump allocator without a limit check.
#![cfg_attr(not(any(feature = "std", test)), no_std)]

#[cfg(feature = "std")]
mod bump;
mod error;
mod finding;
mod kernel;
mod slots;
mod sync;

#[cfg(feature = "std")]
pub use crate::bump::{Bump, BumpBuilder, Heap};
pub use crate::{
    error::{Error, Result},
    finding::{Event, Finding, Kind, Object, StackId, Trace},
    slots::{MAX_FRAMES, Side, SlotStats, Slots, SlotsBuilder},
};
