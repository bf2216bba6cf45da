//! AArch64: the instruction `svc`.

#![allow(unsafe_code, reason = "makes system calls")]

use core::arch::asm;
use core::ffi::c_long;

/// Makes the system call `number`; returns its result, or a negated errno.
///
/// # Safety
/// The caller upholds the requirements of the call.
#[inline]
pub unsafe fn syscall(number: c_long, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel preserves every register but x0; the caller upholds the requirements of
    // the call.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0].cast_signed() => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack));
    }
    result
}
