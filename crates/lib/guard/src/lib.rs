//! Guard pages for heaps: guarded slots, and a bump allocator without a limit check.
#![cfg_attr(not(feature = "std"), no_std)]

mod error;
mod finding;
mod slots;

pub use crate::{
    error::{Error, Result},
    finding::{Event, Finding, Kind, Object, StackId, Trace},
    slots::{MAX_FRAMES, Side, SlotStats, Slots, SlotsBuilder},
};
