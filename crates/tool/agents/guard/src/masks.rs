//! Threads of the program cannot block SIGSEGV: the kernel would end the process at a guarded object
//! without calling the handler, and so without a report.
//!
//! Servers and run times often block all signals in their worker threads. The functions that change a
//! thread's mask are interposed: they leave SIGSEGV out of what they block.

#![allow(unsafe_code, reason = "interposes the functions that change a signal mask")]
#![cfg_attr(test, allow(dead_code, reason = "a test binary keeps its own functions"))]

use core::ffi::{CStr, c_int};
use core::ptr::from_ref;

use crate::next::Next;
use crate::raw;

type MaskFunction = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

static REAL_SIGPROCMASK: Next = Next::empty();
static REAL_PTHREAD_SIGMASK: Next = Next::empty();

/// Finds libc's functions, and unblocks SIGSEGV in this thread: a process inherits the mask of its
/// parent.
pub(crate) fn prepare() {
    real(&REAL_SIGPROCMASK, c"sigprocmask");
    real(&REAL_PTHREAD_SIGMASK, c"pthread_sigmask");
    raw::set_blocked(libc::SIGSEGV, false);
}

fn real(function: &Next, name: &CStr) -> MaskFunction {
    function.search_once(name);
    // SAFETY: both names are of functions of this type, which libc has.
    unsafe { function.function() }
}

/// Calls `real` with a mask that does not block SIGSEGV.
///
/// # Safety
/// The caller upholds the contract of the function.
unsafe fn change(real: MaskFunction, how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the program passes null or a mask.
    let Some(mut mask) = unsafe { new.as_ref() }.copied().filter(|_| how != libc::SIG_UNBLOCK) else {
        // SAFETY: the caller upholds the contract.
        return unsafe { real(how, new, old) };
    };
    // SAFETY: the mask is a copy of the program's, which outlives the call.
    unsafe {
        libc::sigdelset(&raw mut mask, libc::SIGSEGV);
        real(how, from_ref(&mask), old)
    }
}

/// Interposes sigprocmask(2).
///
/// # Safety
/// The caller upholds the contract of sigprocmask.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigprocmask(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    // SAFETY: the caller upholds the contract.
    unsafe { change(real(&REAL_SIGPROCMASK, c"sigprocmask"), how, new, old) }
}

/// Interposes pthread_sigmask(3).
///
/// # Safety
/// The caller upholds the contract of pthread_sigmask.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller upholds the contract.
    unsafe { change(real(&REAL_PTHREAD_SIGMASK, c"pthread_sigmask"), how, new, old) }
}
