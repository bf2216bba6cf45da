//! x86-64: the kind of a faulting access, and the time-stamp counter.

#![allow(unsafe_code, reason = "reads the context of a signal and a processor's counter")]

use std::ffi::c_void;

/// The page-fault error code: bit 1 is a write, bit 4 an instruction fetch.
///
/// # Safety
/// `context` has to be the third argument of a running signal handler.
unsafe fn error_code(context: *mut c_void) -> i64 {
    // SAFETY: the caller passes the kernel's live `ucontext_t`.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] }
}

/// Whether the access that raised the signal was a write.
///
/// # Safety
/// `context` has to be the third argument of a running signal handler.
pub(crate) unsafe fn is_write(context: *mut c_void) -> bool {
    // SAFETY: the caller passes the context of its signal handler.
    unsafe { error_code(context) & 2 != 0 }
}

/// Whether the access was an instruction fetch, which no handler can resolve.
///
/// # Safety
/// `context` has to be the third argument of a running signal handler.
pub(crate) unsafe fn is_fetch(context: *mut c_void) -> bool {
    // SAFETY: the caller passes the context of its signal handler.
    unsafe { error_code(context) & 16 != 0 }
}

/// The address of the instruction that raised the signal.
///
/// # Safety
/// `context` has to be the third argument of a running signal handler.
pub(crate) unsafe fn instruction(context: *mut c_void) -> Option<usize> {
    // SAFETY: the caller passes the kernel's live `ucontext_t`.
    let address = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] };
    usize::try_from(address).ok()
}

/// Makes the thread continue at an instruction when the signal handler returns.
///
/// # Safety
/// `context` has to be the third argument of a running signal handler, and the code at `address`
/// has to work with the thread's registers.
pub(crate) unsafe fn set_instruction(context: *mut c_void, address: usize) {
    // SAFETY: the caller passes the kernel's live `ucontext_t`.
    unsafe {
        (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] = address.cast_signed() as i64
    };
}

/// The processor's time-stamp counter.
pub(crate) fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, which only reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}
