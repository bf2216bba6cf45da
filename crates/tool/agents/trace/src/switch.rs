//! Two translations of the same code: one that tells each access, and one for while they pass, in which markers alone call back.
//!
//! QEMU keeps translations by address and by some flags of the guest. One of these, QEMU's own for breakpoints on ports, means nothing in
//! its user mode, where no program reaches a port; and no program can see it, set it or clear it. So
//! code that is translated while it is set is a translation of its own, and the flag chooses between the two:
//!
//! ```text
//! set    every block and access calls back    bursts
//! clear  markers call back                    between bursts
//! ```
//!
//! The interface for plugins has nothing of the kind, so this needs a look behind it: the guest's state, whose beginning has been the
//! same since QEMU has had x86-64, and two of QEMU's functions that Debian's QEMU shows by name. The flag is
//! changed outside of translated code (`async_run_on_cpu`), where QEMU looks up the code to go on with anew. Where any of this is missing
//! or not as expected there is one translation, and passing accesses call back too: slower, and nothing else.

#![allow(unsafe_code, reason = "looks behind QEMU's interface")]

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::trace::trace;

/// Where the program's flags lie in the guest's state: behind sixteen registers and the instruction pointer.
const EFLAGS_AT: u64 = 17 * 8;
/// What is always set in a user program's flags, and what never is.
const ALWAYS: u64 = 1 << 1;
const NEVER: u64 = !0x003f_7fd7;
/// Where QEMU's own flags lie: behind those and five words by which it keeps them lazily, two of them half as long.
const OWN_FLAGS_AT: u64 = EFLAGS_AT + 4 * 8 + 2 * 4;
/// `HF_IOBPT`: a breakpoint on a port is set.
const CHOICE: u32 = 1 << 24;
/// What a 64-bit program has there: privilege 3, protected mode, long mode, 64-bit code. And what it has not: a system's management mode,
/// the state of a guest's guest.
const OWN_ALWAYS: u32 = 3 | 1 << 7 | 1 << 14 | 1 << 15;
const OWN_NEVER: u32 = 1 << 17 | 1 << 19 | 1 << 21;
/// The guest's state is a part of QEMU's own state of the processor, which is not larger than this.
const STATE_BYTES: u64 = 1 << 20;

/// Runs a function on a processor between two blocks: QEMU's `async_run_on_cpu`.
type RunBetween = unsafe extern "C" fn(*mut c_void, extern "C" fn(*mut c_void, u64), u64);

thread_local! {
    /// The guest's state of the calling thread, once it is known.
    static HERE: Cell<u64> = const { Cell::new(0) };
}

/// QEMU's function, if it is there to be called.
fn run_between() -> Option<RunBetween> {
    static FOUND: OnceLock<Option<RunBetween>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: a name, looked up among what the process has loaded.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"async_run_on_cpu".as_ptr()) };
        // SAFETY: QEMU's function of this name has had this shape since 2016; a union of eight bytes is passed as a word.
        (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, RunBetween>(found) })
    })
}

/// The processor that the calling thread runs: QEMU's `current_cpu`.
fn processor() -> *mut c_void {
    // SAFETY: for a thread's own variable this gives the calling thread's.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"current_cpu".as_ptr()) };
    // SAFETY: if it is there it is a pointer.
    unsafe { place.cast::<*mut c_void>().as_ref() }.map_or(null_mut(), |&processor| processor)
}

/// Whether the code that is translated now, on this thread, is for while accesses pass.
pub(crate) fn is_bare() -> bool {
    let state = HERE.get();
    // SAFETY: a state that was found is there as long as its thread.
    state != 0 && unsafe { own_flags(state) }.load(Relaxed) & CHOICE == 0
}

fn place<T>(state: u64, at: u64) -> *mut T {
    usize::try_from(state + at).map_or(null_mut(), std::ptr::with_exposed_provenance_mut::<T>)
}

/// The program's flags in a guest's state.
///
/// # Safety
/// `state` is one, and its thread lives.
unsafe fn eflags(state: u64) -> &'static AtomicU64 {
    // SAFETY: the caller's word; only this thread writes the flags.
    unsafe { AtomicU64::from_ptr(place(state, EFLAGS_AT)) }
}

/// QEMU's own flags in it.
///
/// # Safety
/// As for [`eflags`].
unsafe fn own_flags(state: u64) -> &'static AtomicU32 {
    // SAFETY: as above.
    unsafe { AtomicU32::from_ptr(place(state, OWN_FLAGS_AT)) }
}

/// What a thread knows of its guest's state.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Environment {
    /// Where it lies; 0 until it is known, and where there is one translation only.
    state: u64,
    /// Whether it was looked for.
    settled: bool,
    /// Whether a change is under way, and to what.
    changing: bool,
    recording: bool,
}

impl Environment {
    pub(crate) const NEW: Self = Self { state: 0, settled: false, changing: false, recording: false };

    /// Whether the code that runs is what a recording thread wants, or a passing one, as far as there is a choice.
    #[inline(always)]
    pub(crate) fn suits(&self, recording: bool) -> bool {
        if self.state == 0 {
            return self.settled;
        }
        // SAFETY: the state that was found.
        self.changing || (unsafe { own_flags(self.state) }.load(Relaxed) & CHOICE != 0) == recording
    }

    /// Has the code run that a recording thread wants, or a passing one. `state` is where the guest's state would be.
    pub(crate) fn want(&mut self, state: u64, recording: bool) {
        if !self.settled {
            self.settled = true;
            self.state = find(state).unwrap_or(0);
            HERE.set(self.state);
        }
        if self.suits(recording) {
            return;
        }
        if let (Some(run), true) = (run_between(), self.state != 0) {
            (self.changing, self.recording) = (true, recording);
            // SAFETY: the processor of this thread, which is running code; `change` has the type that QEMU calls. A thread's
            // state, and so this, is a static's part.
            unsafe { run(processor(), change, std::ptr::from_mut(self).expose_provenance() as u64) };
        }
    }
}

/// The guest's state, if it is where it is expected, and all that is needed is there.
fn find(state: u64) -> Option<u64> {
    // Without bursts nothing passes.
    if state == 0 || trace().plan.burst == 0 || run_between().is_none() {
        return None;
    }
    let processor = processor().addr() as u64;
    let within = processor != 0 && state > processor && state - processor < STATE_BYTES;
    if !within {
        return None;
    }
    // SAFETY: both lie in what QEMU allocated for the processor.
    let (found, own) = unsafe { (eflags(state).load(Relaxed), own_flags(state).load(Relaxed)) };
    let is_one =
        found & ALWAYS == ALWAYS && found & NEVER == 0 && own & OWN_ALWAYS == OWN_ALWAYS && own & OWN_NEVER == 0;
    is_one.then_some(state)
}

/// Runs between two blocks, on the thread concerned.
extern "C" fn change(_: *mut c_void, environment: u64) {
    let place = usize::try_from(environment).map_or(null_mut(), std::ptr::with_exposed_provenance_mut::<Environment>);
    // SAFETY: a static's part that belongs to this thread, in which no call-back is under way.
    let Some(environment) = (unsafe { place.as_mut() }) else { return };
    environment.changing = false;
    if environment.state != 0 {
        // SAFETY: the state that was found.
        let flags = unsafe { own_flags(environment.state) };
        let now = flags.load(Relaxed);
        flags.store(if environment.recording { now | CHOICE } else { now & !CHOICE }, Relaxed);
    }
}
