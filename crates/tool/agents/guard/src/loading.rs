//! dlopen(3) without `RTLD_DEEPBIND`.
//!
//! With that flag a library finds libc's `free` before the agent's, and frees guarded objects with
//! it (the extensions of PHP are loaded so). Sanitizers have the same problem. The flag is removed;
//! the call stays the caller's own, since the loader searches by the caller's file.

#![allow(unsafe_code, reason = "interposes a function of the loader")]
#![cfg_attr(test, allow(dead_code, reason = "a test binary keeps its own function"))]

use core::arch::naked_asm;

use crate::next::{self, searched_at_first_call};

/// All bits but `RTLD_DEEPBIND`.
const OTHER_FLAGS: i32 = !libc::RTLD_DEEPBIND;

searched_at_first_call!(DLOPEN, boot_dlopen, search_dlopen, next::find_into(&DLOPEN, c"dlopen"));

/// Interposes dlopen(3).
///
/// # Safety
/// The caller upholds the contract of dlopen.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlopen() {
    naked_asm!(
        "and esi, {flags}",
        "jmp qword ptr [rip + {next}]",
        flags = const OTHER_FLAGS,
        next = sym DLOPEN,
    )
}
