//! What the preloaded agents share.
//!
//! | module | purpose |
//! |---|---|
//! | `arena` | memory until the functions that an agent interposes are found |
//! | `loader` | the loaded file of an address, by the dynamic loader and without a lock |
//! | `syscall` | the system call instruction |
//!
//! Invariants: nothing here allocates, waits for a lock, changes errno, or panics.
#![no_std]
#![allow(
    clippy::cast_possible_truncation,
    reason = "64-bit Linux: the number of a system call and a register have the same width"
)]

#[cfg(test)]
extern crate std;

pub mod arena;
#[cfg(target_arch = "x86_64")]
pub mod loader;
#[cfg_attr(target_arch = "x86_64", path = "syscall/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "syscall/aarch64.rs")]
mod syscall;

pub use syscall::syscall;
