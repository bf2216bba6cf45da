//! The call-backs that run during execution.
//!
//! Markers need the register in which QEMU's code keeps the guest state (for `translations`). A
//! naked function passes it as an argument, before compiled code can overwrite the register.

#![allow(unsafe_code, reason = "reads a register of QEMU's code")]

#[cfg_attr(not(target_arch = "x86_64"), path = "callbacks/without_state.rs")]
mod with_state;

use std::ffi::{c_uint, c_void};

use crate::callback_word::CallbackWord;
use crate::marker::Marker;
use crate::qemu::Id;
use crate::thread::{GuestThread, all_states, release_state, thread_state};

use with_state::with_state;

with_state! {
    /// A marker in code with all call-backs.
    on_marker(number: c_uint, marker: *mut c_void) in "rdx", marker_with_state
}

extern "C" fn marker_with_state(number: c_uint, marker: *mut c_void, state: u64) {
    // SAFETY: `block` registered the marker with this call-back, and markers are never freed.
    if let (Some(thread), Some(marker)) = (thread_state(number), unsafe { marker.cast::<Marker>().as_ref() })
        && !thread.run_marker(marker)
    {
        thread.handle_marker(state);
    }
}

with_state! {
    /// A marker in code with marker call-backs only.
    on_marker_only(number: c_uint, marker: *mut c_void) in "rdx", marker_only_with_state
}

extern "C" fn marker_only_with_state(number: c_uint, marker: *mut c_void, state: u64) {
    // SAFETY: `block` registered the marker with this call-back, and markers are never freed.
    if let (Some(thread), Some(marker)) = (thread_state(number), unsafe { marker.cast::<Marker>().as_ref() })
        && !thread.add_marker(marker)
    {
        thread.handle_marker(state);
    }
}

/// A block without accesses on its first page, or its second page.
pub(crate) extern "C" fn on_block(number: c_uint, word: *mut c_void) {
    let (Some(thread), word) = (thread_state(number), CallbackWord::of(word)) else { return };
    if !thread.count_block(word) {
        thread.record_fetch(word.page());
    }
}

/// The first access of a block: also counts the block.
pub(crate) extern "C" fn on_first_access(number: c_uint, information: u32, address: u64, word: *mut c_void) {
    let (Some(thread), word) = (thread_state(number), CallbackWord::of(word)) else { return };
    if !thread.count_block(word) {
        return fetch_and_access(thread, information, address, word);
    }
    thread.record_access(information, address, word);
}

#[cold]
#[inline(never)]
fn fetch_and_access(thread: &mut GuestThread, information: u32, address: u64, word: CallbackWord) {
    thread.record_fetch(word.page());
    thread.record_access(information, address, word);
}

/// Another access of a block.
pub(crate) extern "C" fn on_access(number: c_uint, information: u32, address: u64, word: *mut c_void) {
    if let Some(thread) = thread_state(number) {
        thread.record_access(information, address, CallbackWord::of(word));
    }
}

/// An access of an instruction with several accesses or none: not counted with its block.
pub(crate) extern "C" fn on_uncounted_access(number: c_uint, information: u32, address: u64, word: *mut c_void) {
    if let Some(thread) = thread_state(number) {
        thread.count_access();
        thread.record_access(information, address, CallbackWord::of(word));
    }
}

/// A guest thread ends.
pub(crate) extern "C" fn on_thread_exit(_: Id, number: c_uint) {
    if let Some(thread) = thread_state(number) {
        thread.close_lane();
    }
    release_state(number);
}

/// The program ends; QEMU has stopped all other threads.
pub(crate) extern "C" fn on_exit(_: Id, _: *mut c_void) {
    all_states().for_each(|thread| thread.close_lane());
}
