//! `fs_filling`.

#![allow(unsafe_code, reason = "exports symbols; passes on the promise that a handler may run in a signal")]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;

use fieldstone_pages::{Filling, Memory};

use crate::answer::{Place, answer, control, given};
use crate::choices;
use crate::fault::{Handler, contents, handler};
use crate::list::{Array, FsRange};
use crate::memory::range;

#[unsafe(no_mangle)]
extern "C" fn fs_filling_new(
    memory: *mut Memory,
    function: Handler,
    user: *mut c_void,
    filling: Place<'_, Filling>,
) -> c_int {
    answer(|| {
        let handler = handler(function, user)?;
        control(memory, filling, |memory| Ok(Filling::new(memory, handler)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_tracked(
    memory: *mut Memory,
    function: Handler,
    user: *mut c_void,
    filling: Place<'_, Filling>,
) -> c_int {
    answer(|| {
        let handler = handler(function, user)?;
        control(memory, filling, |memory| Ok(Filling::tracked(memory, handler)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_in_signal(
    memory: *mut Memory,
    function: Handler,
    user: *mut c_void,
    filling: Place<'_, Filling>,
) -> c_int {
    answer(|| {
        let handler = handler(function, user)?;
        // SAFETY: the header asks for a handler that is async-signal-safe.
        control(memory, filling, |memory| Ok(unsafe { Filling::in_signal(memory, handler) }?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_with(
    memory: *mut Memory,
    tracked: bool,
    mechanism: c_uint,
    function: Handler,
    user: *mut c_void,
    filling: Place<'_, Filling>,
) -> c_int {
    answer(|| {
        let (mechanism, handler) = (choices::mechanism(mechanism)?, handler(function, user)?);
        // SAFETY: the header asks for a handler that is async-signal-safe where the mechanism is one in a signal.
        control(memory, filling, |memory| Ok(unsafe { Filling::with(memory, tracked, mechanism, handler) }?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_free(filling: Option<Box<Filling>>) {
    answer(|| {
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
    answer(|| Ok(given(filling)?.fill(offset, contents(page, bytes)?)?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_zero(filling: Option<&Filling>, offset: usize) -> c_int {
    answer(|| Ok(given(filling)?.zero(offset)?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_evict(filling: Option<&Filling>, offset: usize, bytes: usize) -> c_int {
    answer(|| Ok(given(filling)?.evict(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_dirty(
    filling: Option<&Filling>,
    rest: Option<&mut FsRange>,
    ranges: *mut FsRange,
    room: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    answer(|| {
        let filling = given(filling)?;
        Array { rest, ranges, room, count }.list(|range| filling.dirty_in(range))
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_mechanism(filling: Option<&Filling>) -> c_uint {
    filling.map_or(0, |filling| choices::number_of(filling.mechanism()))
}

#[unsafe(no_mangle)]
extern "C" fn fs_filling_losses(filling: Option<&Filling>) -> c_uint {
    filling.map_or(0, |filling| choices::bits(&filling.losses()))
}
