//! What the preloaded agents share.
//!
//! | module | purpose |
//! |---|---|
//! | `arena` | memory until the functions that an agent interposes are found |
//! | `loader` | the loaded file of an address, by the dynamic loader and without a lock |
//!
//! Invariants: nothing here allocates, waits for a lock, changes errno, or panics.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod arena;
#[cfg(target_arch = "x86_64")]
pub mod loader;
