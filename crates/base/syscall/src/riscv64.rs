//! RISC-V, 64 bits: the system call instruction.

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
    // SAFETY: the kernel changes only a0; the caller upholds the requirements of the call.
    unsafe {
        asm!("ecall", in("a7") number, inlateout("a0") args[0].cast_signed() => result,
            in("a1") args[1], in("a2") args[2], in("a3") args[3], in("a4") args[4], in("a5") args[5],
            options(nostack));
    }
    result
}
