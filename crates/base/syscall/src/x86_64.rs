//! x86-64: the instruction `syscall`.

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
    // SAFETY: the kernel clobbers only rax, rcx and r11; the caller upholds the requirements of the
    // call.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}
