//! `fs_trapping`.

#![allow(unsafe_code, reason = "exports symbols; relies on C for handlers that may run in a signal")]

use std::ffi::{c_int, c_uint, c_void};

use fieldstone_pages::{Memory, Trapping};

use crate::enums;
use crate::fault::{CHandler, handler};
use crate::memory::{MemoryHandle, range};
use crate::result::{OutHandle, non_null, run_call, take_memory};

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_new(
    memory: *mut MemoryHandle,
    watch: c_uint,
    function: CHandler,
    user: *mut c_void,
    trapping: OutHandle<'_, Trapping>,
) -> c_int {
    run_call(|| {
        let (watch, handler) = (enums::watch(watch)?, handler(function, user)?);
        take_memory(memory, trapping, |memory| Ok(Trapping::new(memory, watch, handler)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_in_signal(
    memory: *mut MemoryHandle,
    watch: c_uint,
    function: CHandler,
    user: *mut c_void,
    trapping: OutHandle<'_, Trapping>,
) -> c_int {
    run_call(|| {
        let (watch, handler) = (enums::watch(watch)?, handler(function, user)?);
        // SAFETY: the header requires an async-signal-safe handler.
        take_memory(memory, trapping, |memory| Ok(unsafe { Trapping::in_signal(memory, watch, handler) }?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_with(
    memory: *mut MemoryHandle,
    watch: c_uint,
    mechanism: c_uint,
    function: CHandler,
    user: *mut c_void,
    trapping: OutHandle<'_, Trapping>,
) -> c_int {
    run_call(|| {
        let (watch, handler) = (enums::watch(watch)?, handler(function, user)?);
        let mechanism = enums::mechanism(mechanism)?;
        // SAFETY: the header requires an async-signal-safe handler if the mechanism runs it in a
        // signal.
        take_memory(memory, trapping, |memory| Ok(unsafe { Trapping::with(memory, watch, mechanism, handler) }?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_free(trapping: Option<Box<Trapping>>) {
    run_call(|| {
        drop(trapping);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_memory(trapping: Option<&Trapping>) -> Option<&Memory> {
    trapping.map(Trapping::memory)
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_protect(trapping: Option<&Trapping>, offset: usize, bytes: usize) -> c_int {
    run_call(|| Ok(non_null(trapping)?.protect(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_unprotect(trapping: Option<&Trapping>, offset: usize, bytes: usize) -> c_int {
    run_call(|| Ok(non_null(trapping)?.unprotect(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_mechanism(trapping: Option<&Trapping>) -> c_uint {
    trapping.map_or(0, |trapping| enums::number_of(trapping.mechanism()))
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_losses(trapping: Option<&Trapping>) -> c_uint {
    trapping.map_or(0, |trapping| enums::bits(&trapping.losses()))
}
