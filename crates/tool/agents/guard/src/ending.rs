//! The end of the process waits for findings that are being reported.
//!
//! ```text
//! STATE     [ ending 1 | fatal 1 | findings that are being reported 30 ]
//!
//! finding   begin: +1 ──→ reported ──→ −1, fatal ──→ complete: waits for 0, sets `ending` ──→ fault
//! exit      wait: for 0, and after a fatal finding for the end of the process
//! ```
//! Without this, a second thread that faults or exits ends the process before the supervisor has read
//! its files. In state `ending`, no further finding is reported: its thread waits for the end.
//!
//! Invariants: each wait has a bound. A child of vfork(2) shares the state with its parent, so the
//! state counts in one process only. Cost: a load for each exit without a finding.

#![allow(unsafe_code, reason = "interposes functions of libc that end the process")]
#![cfg_attr(test, allow(dead_code, reason = "a test binary keeps its own functions"))]

use core::arch::naked_asm;
use core::ffi::c_int;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::next::{self, searched_at_first_call};
use crate::{raw, report, start};

const ENDING: u32 = 1 << 31;
const FATAL: u32 = 1 << 30;
const COUNT: u32 = FATAL - 1;
/// How long to wait for the end of the process.
const END_NS: u64 = 1_000_000_000;

static STATE: AtomicU32 = AtomicU32::new(0);
/// The process whose findings are counted.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Starts to count the findings of this process, also in the child of a fork.
pub(crate) fn prepare() {
    STATE.store(0, Relaxed);
    PROCESS.store(raw::getpid(), Relaxed);
}

fn is_own_process() -> bool {
    PROCESS.load(Relaxed) == raw::getpid()
}

/// A finding that is being reported until this is dropped.
pub(crate) struct Reporting {
    is_counted: bool,
}

/// Begins to report a finding. `None` if the process ends already.
pub(crate) fn begin() -> Option<Reporting> {
    if !is_own_process() {
        return Some(Reporting { is_counted: false });
    }
    let add = |state: u32| (state & ENDING == 0).then_some(state + 1);
    STATE.fetch_update(AcqRel, Acquire, add).is_ok().then_some(Reporting { is_counted: true })
}

impl Drop for Reporting {
    fn drop(&mut self) {
        if self.is_counted {
            let fatal = if start::keeps_going() { 0 } else { FATAL };
            let end = |state: u32| Some((state - 1) | fatal);
            let _ = STATE.fetch_update(AcqRel, Acquire, end);
            raw::wake(&STATE);
        }
    }
}

/// Waits until no finding is being reported. The caller then ends the process; if another thread
/// does so, this waits for it.
pub(crate) fn complete() {
    if !is_own_process() {
        return;
    }
    let is_first = wait_while(report::PATIENCE_NS, |state| {
        state & ENDING == 0
            && (state & COUNT != 0 || STATE.compare_exchange(state, state | ENDING, AcqRel, Acquire).is_err())
    });
    if is_first & ENDING != 0 {
        wait_while(END_NS, |_| true);
    }
}

/// Waits before the program ends the process: for findings that are being reported, and for the
/// fault of a thread whose finding was reported.
pub(crate) extern "C" fn wait() {
    if STATE.load(Acquire) == 0 || !is_own_process() {
        return;
    }
    let state = wait_while(report::PATIENCE_NS, |state| state & COUNT != 0);
    if state & (FATAL | ENDING) != 0 {
        wait_while(END_NS, |_| true);
    }
}

/// Waits while the condition is true, for at most `bound_ns`. Returns the last state.
fn wait_while(bound_ns: u64, condition: impl Fn(u32) -> bool) -> u32 {
    let start = raw::clock_ns(libc::CLOCK_MONOTONIC);
    loop {
        let state = STATE.load(Acquire);
        let waited = raw::clock_ns(libc::CLOCK_MONOTONIC).saturating_sub(start);
        if !condition(state) || waited >= bound_ns {
            return state;
        }
        raw::wait_for(&STATE, state, bound_ns - waited);
    }
}

searched_at_first_call!(ABORT, boot_abort, search_abort, next::find_into(&ABORT, c"abort"));
searched_at_first_call!(QUICK_EXIT, boot_quick_exit, search_quick_exit, next::find_into(&QUICK_EXIT, c"quick_exit"));

/// Searches the functions while no lock can be held: a signal handler may call them.
pub(crate) fn search() {
    search_abort();
    search_quick_exit();
}

/// Ends the process as abort(3) of libc, without waiting.
pub(crate) fn abort() -> ! {
    if ABORT.pointer().is_null() {
        raw::exit(128 + libc::SIGABRT);
    }
    // SAFETY: the pointer is libc's abort, or the routine that searches it.
    unsafe { ABORT.function::<unsafe extern "C" fn() -> !>()() }
}

/// Defines an exported function that waits, and then continues at the next one of its name.
macro_rules! waiting_function {
    ($name:ident, $next:path) => {
        /// Interposes the function of this name.
        ///
        /// # Safety
        /// The caller upholds the contract of the interposed function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!(
                "push rdi",
                "call {wait}",
                "pop rdi",
                "jmp qword ptr [rip + {next}]",
                wait = sym wait,
                next = sym $next,
            )
        }
    };
}

/// The functions that a test binary needs itself.
mod interposed {
    use super::{ABORT, QUICK_EXIT, c_int, naked_asm, raw, wait};

    waiting_function!(abort, ABORT);
    waiting_function!(quick_exit, QUICK_EXIT);

    /// Interposes _exit(2).
    ///
    /// # Safety
    /// Any call is valid.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub(crate) unsafe extern "C" fn _exit(code: c_int) -> ! {
        wait();
        raw::exit(code)
    }

    /// Interposes `_Exit`(3).
    ///
    /// # Safety
    /// Any call is valid.
    #[cfg_attr(not(test), unsafe(export_name = "_Exit"))]
    pub(crate) unsafe extern "C" fn exit_without_handlers(code: c_int) -> ! {
        wait();
        raw::exit(code)
    }
}
