//! `fs_trapping`.

#![allow(unsafe_code, reason = "exports symbols; passes on the promise that a handler may run in a signal")]

use std::ffi::{c_int, c_uint, c_void};

use fieldstone_pages::{Memory, Trapping};

use crate::answer::{Place, answer, control, given};
use crate::choices;
use crate::fault::{Handler, handler};
use crate::memory::range;

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_new(
    memory: *mut Memory,
    watch: c_uint,
    function: Handler,
    user: *mut c_void,
    trapping: Place<'_, Trapping>,
) -> c_int {
    answer(|| {
        let (watch, handler) = (choices::watch(watch)?, handler(function, user)?);
        control(memory, trapping, |memory| Ok(Trapping::new(memory, watch, handler)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_in_signal(
    memory: *mut Memory,
    watch: c_uint,
    function: Handler,
    user: *mut c_void,
    trapping: Place<'_, Trapping>,
) -> c_int {
    answer(|| {
        let (watch, handler) = (choices::watch(watch)?, handler(function, user)?);
        // SAFETY: the header asks for a handler that is async-signal-safe.
        control(memory, trapping, |memory| Ok(unsafe { Trapping::in_signal(memory, watch, handler) }?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_with(
    memory: *mut Memory,
    watch: c_uint,
    mechanism: c_uint,
    function: Handler,
    user: *mut c_void,
    trapping: Place<'_, Trapping>,
) -> c_int {
    answer(|| {
        let (watch, handler) = (choices::watch(watch)?, handler(function, user)?);
        let mechanism = choices::mechanism(mechanism)?;
        // SAFETY: the header asks for a handler that is async-signal-safe where the mechanism is one in a signal.
        control(memory, trapping, |memory| Ok(unsafe { Trapping::with(memory, watch, mechanism, handler) }?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_free(trapping: Option<Box<Trapping>>) {
    answer(|| {
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
    answer(|| Ok(given(trapping)?.protect(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_unprotect(trapping: Option<&Trapping>, offset: usize, bytes: usize) -> c_int {
    answer(|| Ok(given(trapping)?.unprotect(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_mechanism(trapping: Option<&Trapping>) -> c_uint {
    trapping.map_or(0, |trapping| choices::number_of(trapping.mechanism()))
}

#[unsafe(no_mangle)]
extern "C" fn fs_trapping_losses(trapping: Option<&Trapping>) -> c_uint {
    trapping.map_or(0, |trapping| choices::bits(&trapping.losses()))
}
