//! `fs_tracking`.

#![allow(unsafe_code, reason = "exports symbols")]

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;

use fieldstone_pages::{Memory, Tracking};

use crate::enums;
use crate::list::{FsRange, RangeArray};
use crate::memory::{MemoryHandle, range};
use crate::result::{OutHandle, non_null, run_call, take_memory};

#[unsafe(no_mangle)]
extern "C" fn fs_tracking_new(memory: *mut MemoryHandle, tracking: OutHandle<'_, Tracking>) -> c_int {
    run_call(|| take_memory(memory, tracking, |memory| Ok(Tracking::new(memory)?)))
}

#[unsafe(no_mangle)]
extern "C" fn fs_tracking_with(
    memory: *mut MemoryHandle,
    mechanism: c_uint,
    tracking: OutHandle<'_, Tracking>,
) -> c_int {
    run_call(|| {
        let mechanism = enums::mechanism(mechanism)?;
        take_memory(memory, tracking, |memory| Ok(Tracking::with(memory, mechanism)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_tracking_free(tracking: Option<Box<Tracking>>) {
    run_call(|| {
        drop(tracking);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn fs_tracking_memory(tracking: Option<&Tracking>) -> Option<&Memory> {
    tracking.map(Tracking::memory)
}

#[unsafe(no_mangle)]
extern "C" fn fs_tracking_dirty(
    tracking: Option<&Tracking>,
    rest: Option<&mut FsRange>,
    ranges: *mut FsRange,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    run_call(|| {
        let tracking = non_null(tracking)?;
        RangeArray { rest, ranges, capacity, count }.list(|range| tracking.dirty_in(range))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_tracking_peek(
    tracking: Option<&Tracking>,
    rest: Option<&mut FsRange>,
    ranges: *mut FsRange,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    run_call(|| {
        let tracking = non_null(tracking)?;
        RangeArray { rest, ranges, capacity, count }.list(|range| tracking.peek_in(range))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_tracking_mark(tracking: Option<&Tracking>, offset: usize, bytes: usize) -> c_int {
    run_call(|| Ok(non_null(tracking)?.mark(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_tracking_mechanism(tracking: Option<&Tracking>) -> c_uint {
    tracking.map_or(0, |tracking| enums::number_of(tracking.mechanism()))
}

#[unsafe(no_mangle)]
extern "C" fn fs_tracking_losses(tracking: Option<&Tracking>) -> c_uint {
    tracking.map_or(0, |tracking| enums::bits(&tracking.losses()))
}
