//! The system call instruction of Linux, for code that must not use libc: agents inside another
//! program, and handlers of faults.
//!
//! | file | |
//! |---|---|
//! | `arch`: `x86_64`, `aarch64` or `riscv64` | the instruction of this architecture |
//!
//! Invariants: a call changes no errno, is no cancellation point, and cannot be interposed.
#![no_std]
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

pub use arch::syscall;

/// Whether the result of a system call is an error. Its errno is then `-result`.
#[must_use]
pub const fn failed(result: isize) -> bool {
    -4095 <= result && result < 0
}
