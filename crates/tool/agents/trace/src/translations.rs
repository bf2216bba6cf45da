//! Two translations of the same code: one with call-backs for all accesses, and one with marker
//! call-backs only.
//!
//! QEMU looks up translations by address and by some flags of the guest state. One of these, for
//! breakpoints on I/O ports, has no effect in user mode: a program cannot access ports, and cannot
//! read, set or clear the flag. Code that is translated while it is set is therefore a second
//! translation, and the flag selects between the two:
//!
//! ```text
//! set    every block and access calls back    bursts
//! clear  markers call back                    between bursts
//! ```
//!
//! The plugin interface cannot do this, so this file uses QEMU's internals: the guest state, whose
//! beginning is the same in all versions with x86-64, and two symbols that Debian's QEMU exports.
//! The flag is changed outside of translated code (`async_run_on_cpu`), after which QEMU looks up
//! the next block again. If any of this is missing or unexpected, there is one translation with all
//! call-backs: tracing is slower, and otherwise the same.

#![allow(unsafe_code, reason = "uses internals of QEMU")]

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::trace::trace;

/// The offset of EFLAGS in the guest state: after sixteen registers and the instruction pointer.
const EFLAGS_OFFSET: u64 = 17 * 8;
/// Bits of EFLAGS that are always set in a user program, and those that never are.
const EFLAGS_SET: u64 = 1 << 1;
const EFLAGS_CLEAR: u64 = !0x003f_7fd7;
/// The offset of QEMU's own flags: after EFLAGS and five words of lazy flags, two of them half as
/// long.
const OWN_FLAGS_OFFSET: u64 = EFLAGS_OFFSET + 4 * 8 + 2 * 4;
/// `HF_IOBPT`: a breakpoint on a port is set.
const IO_BREAKPOINT_FLAG: u32 = 1 << 24;
/// Own flags that a 64-bit program always has: privilege 3, protected mode, long mode, 64-bit code.
/// And those that it never has: system management mode and the states of nested guests.
const OWN_FLAGS_SET: u32 = 3 | 1 << 7 | 1 << 14 | 1 << 15;
const OWN_FLAGS_CLEAR: u32 = 1 << 17 | 1 << 19 | 1 << 21;
/// The largest distance of the guest state from the start of QEMU's processor object, which
/// contains it.
const STATE_BYTES: u64 = 1 << 20;

/// The type of QEMU's `async_run_on_cpu`: runs a function on a processor between two blocks.
type RunOnProcessor = unsafe extern "C" fn(*mut c_void, extern "C" fn(*mut c_void, u64), u64);

thread_local! {
    /// The guest state of the calling thread; 0 until it is found.
    static GUEST_STATE: Cell<u64> = const { Cell::new(0) };
}

/// QEMU's `async_run_on_cpu`, if it is exported.
fn run_on_processor() -> Option<RunOnProcessor> {
    static FUNCTION: OnceLock<Option<RunOnProcessor>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        // SAFETY: `dlsym` looks up a C string and has no other precondition.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"async_run_on_cpu".as_ptr()) };
        // SAFETY: QEMU's function has had this signature since 2016; a union of eight bytes is
        // passed as a word.
        (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, RunOnProcessor>(found) })
    })
}

/// The processor object of the calling thread: QEMU's `current_cpu`.
fn processor() -> *mut c_void {
    // SAFETY: for a thread-local symbol `dlsym` returns the address in the calling thread.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"current_cpu".as_ptr()) };
    // SAFETY: if the symbol exists, it is a pointer variable of this thread.
    unsafe { place.cast::<*mut c_void>().as_ref() }.map_or(null_mut(), |&processor| processor)
}

/// Whether the code that this thread translates now gets marker call-backs only.
pub(crate) fn is_marker_only() -> bool {
    let state = GUEST_STATE.get();
    // SAFETY: a guest state that was found lives as long as its thread.
    state != 0 && unsafe { own_flags(state) }.load(Relaxed) & IO_BREAKPOINT_FLAG == 0
}

fn pointer_at<T>(state: u64, offset: u64) -> *mut T {
    usize::try_from(state + offset).map_or(null_mut(), std::ptr::with_exposed_provenance_mut::<T>)
}

/// EFLAGS in a guest state.
///
/// # Safety
/// `state` has to be the address of a guest state whose thread is alive.
unsafe fn eflags(state: u64) -> &'static AtomicU64 {
    // SAFETY: the caller guarantees a live guest state; only its thread writes the flags.
    unsafe { AtomicU64::from_ptr(pointer_at(state, EFLAGS_OFFSET)) }
}

/// QEMU's own flags in a guest state.
///
/// # Safety
/// `state` has to be the address of a guest state whose thread is alive.
unsafe fn own_flags(state: u64) -> &'static AtomicU32 {
    // SAFETY: the caller guarantees a live guest state; only its thread writes the flags.
    unsafe { AtomicU32::from_ptr(pointer_at(state, OWN_FLAGS_OFFSET)) }
}

/// The translation that a thread executes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TranslationSwitch {
    /// The address of the guest state; 0 if it is unknown, or if there is one translation only.
    state: u64,
    /// Whether the guest state was searched for.
    is_searched: bool,
    /// Whether a change is scheduled, and to which translation.
    is_changing: bool,
    for_recording: bool,
}

impl TranslationSwitch {
    pub(crate) const NEW: Self = Self { state: 0, is_searched: false, is_changing: false, for_recording: false };

    /// Whether the executed translation is the one that is wanted, as far as there is a choice.
    #[inline(always)]
    pub(crate) fn is_current(&self, for_recording: bool) -> bool {
        if self.state == 0 {
            return self.is_searched;
        }
        // SAFETY: `find_guest_state` found the guest state of this thread, which is running.
        self.is_changing || (unsafe { own_flags(self.state) }.load(Relaxed) & IO_BREAKPOINT_FLAG != 0) == for_recording
    }

    /// Switches to the translation for recording or for gaps. `state` is the expected address of
    /// the guest state.
    pub(crate) fn request(&mut self, state: u64, for_recording: bool) {
        if !self.is_searched {
            self.is_searched = true;
            self.state = find_guest_state(state).unwrap_or(0);
            GUEST_STATE.set(self.state);
        }
        if self.is_current(for_recording) {
            return;
        }
        if let (Some(run), true) = (run_on_processor(), self.state != 0) {
            (self.is_changing, self.for_recording) = (true, for_recording);
            // SAFETY: this thread's processor is running; `apply_change` has the type that QEMU
            // calls; `self` is part of a static.
            unsafe { run(processor(), apply_change, std::ptr::from_mut(self).expose_provenance() as u64) };
        }
    }
}

/// The guest state, if it is at the expected address and all that is needed exists.
fn find_guest_state(state: u64) -> Option<u64> {
    // Without bursts there are no gaps.
    if state == 0 || trace().plan.burst == 0 || run_on_processor().is_none() {
        return None;
    }
    let processor = processor().addr() as u64;
    let is_within = processor != 0 && state > processor && state - processor < STATE_BYTES;
    if !is_within {
        return None;
    }
    // SAFETY: both offsets are within the processor object that QEMU allocated.
    let (found, own) = unsafe { (eflags(state).load(Relaxed), own_flags(state).load(Relaxed)) };
    let is_valid = found & EFLAGS_SET == EFLAGS_SET
        && found & EFLAGS_CLEAR == 0
        && own & OWN_FLAGS_SET == OWN_FLAGS_SET
        && own & OWN_FLAGS_CLEAR == 0;
    is_valid.then_some(state)
}

/// Changes the translation; runs between two blocks, on the thread concerned.
extern "C" fn apply_change(_: *mut c_void, environment: u64) {
    let place =
        usize::try_from(environment).map_or(null_mut(), std::ptr::with_exposed_provenance_mut::<TranslationSwitch>);
    // SAFETY: part of a static of this thread, which runs no call-back now.
    let Some(environment) = (unsafe { place.as_mut() }) else { return };
    environment.is_changing = false;
    if environment.state != 0 {
        // SAFETY: `find_guest_state` found the guest state of this thread, which is running.
        let flags = unsafe { own_flags(environment.state) };
        let flags_before = flags.load(Relaxed);
        flags.store(
            if environment.for_recording {
                flags_before | IO_BREAKPOINT_FLAG
            } else {
                flags_before & !IO_BREAKPOINT_FLAG
            },
            Relaxed,
        );
    }
}
