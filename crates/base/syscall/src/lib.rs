//! The system call instruction of Linux, for code that must not use libc: agents inside another
//! program, and handlers of faults.
//!
//! | file | |
//! |---|---|
//! | `arch`: `x86_64`, `aarch64` or `riscv64` | the instruction of this architecture |
//!
//! Invariants: a call changes no errno, is no cancellation point, and cannot be interposed.
#![no_std]
#![allow(unsafe_code, reason = "makes system calls")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "64-bit Linux: the number of a system call and a register have the same width"
)]

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64.rs")]
mod arch;

use core::ffi::c_long;

pub use arch::syscall;

/// An errno.
pub type Errno = i32;

/// Whether the result of a system call is an error. Its errno is then `-result`.
#[must_use]
pub const fn failed(result: isize) -> bool {
    -4095 <= result && result < 0
}

/// Makes the system call `number`.
///
/// # Errors
/// The errno of the call.
///
/// # Safety
/// The caller upholds the requirements of the call.
#[inline]
pub unsafe fn call(number: u32, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller upholds the requirements of the call.
    let result = unsafe { syscall(c_long::from(number), args) };
    if failed(result) { Err(-result as Errno) } else { Ok(result.cast_unsigned()) }
}
