//! `fs_filling`.

#![allow(unsafe_code, reason = "exports symbols; relies on C for handlers that may run in a signal")]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;

use fieldstone_pages::{Filling, Memory};

use crate::enums;
use crate::fault::{CHandler, contents, handler};
use crate::list::{FsRange, RangeArray};
use crate::memory::{MemoryHandle, range};
use crate::result::{OutHandle, non_null, run_call, take_memory};

#[unsafe(no_mangle)]
extern "C" fn fs_filling_new(
    memory: *mut MemoryHandle,
    function: CHandler,
    user: *mut c_void,
    filling: OutHandle<'_, Filling>,
) -> c_int {
    run_call(|| {
        let handler = handler(function, user)?;
        take_memory(memory, filling, |memory| Ok(Filling::new(memory, handler)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_tracked(
    memory: *mut MemoryHandle,
    function: CHandler,
    user: *mut c_void,
    filling: OutHandle<'_, Filling>,
) -> c_int {
    run_call(|| {
        let handler = handler(function, user)?;
        take_memory(memory, filling, |memory| Ok(Filling::tracked(memory, handler)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_in_signal(
    memory: *mut MemoryHandle,
    function: CHandler,
    user: *mut c_void,
    filling: OutHandle<'_, Filling>,
) -> c_int {
    run_call(|| {
        let handler = handler(function, user)?;
        // SAFETY: the header requires an async-signal-safe handler.
        take_memory(memory, filling, |memory| Ok(unsafe { Filling::in_signal(memory, handler) }?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_with(
    memory: *mut MemoryHandle,
    tracked: bool,
    mechanism: c_uint,
    function: CHandler,
    user: *mut c_void,
    filling: OutHandle<'_, Filling>,
) -> c_int {
    run_call(|| {
        let (mechanism, handler) = (enums::mechanism(mechanism)?, handler(function, user)?);
        // SAFETY: the header requires an async-signal-safe handler if the mechanism runs it in a
        // signal.
        take_memory(memory, filling, |memory| Ok(unsafe { Filling::with(memory, tracked, mechanism, handler) }?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_free(filling: Option<Box<Filling>>) {
    run_call(|| {
        drop(filling);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_memory(filling: Option<&Filling>) -> Option<&Memory> {
    filling.map(Filling::memory)
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_fill(filling: Option<&Filling>, offset: usize, page: *const u8, bytes: usize) -> c_int {
    run_call(|| Ok(non_null(filling)?.fill(offset, contents(page, bytes)?)?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_zero(filling: Option<&Filling>, offset: usize) -> c_int {
    run_call(|| Ok(non_null(filling)?.zero(offset)?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_evict(filling: Option<&Filling>, offset: usize, bytes: usize) -> c_int {
    run_call(|| Ok(non_null(filling)?.evict(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_dirty(
    filling: Option<&Filling>,
    rest: Option<&mut FsRange>,
    ranges: *mut FsRange,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    run_call(|| {
        let filling = non_null(filling)?;
        RangeArray { rest, ranges, capacity, count }.list(|range| filling.dirty_in(range))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_mechanism(filling: Option<&Filling>) -> c_uint {
    filling.map_or(0, |filling| enums::number_of(filling.mechanism()))
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_losses(filling: Option<&Filling>) -> c_uint {
    filling.map_or(0, |filling| enums::bits(&filling.losses()))
}
