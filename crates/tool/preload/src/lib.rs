//! What the preloaded agents share.
//!
//! | module | purpose |
//! |---|---|
//! | `arena` | memory until the functions that an agent interposes are found |
//! | `line` | lines of text to standard error |
//! | `loader` | the loaded file of an address, by the dynamic loader and without a lock |
//! | `process` | name and environment of the process; memory and messages at the start |
//! | `unpaged` | memory of an agent that the paging agent leaves resident |
//!
//! [`abort_on_panic`] defines the panic handler of a shipped agent.
//!
//! Invariants: nothing here allocates, waits for a lock, changes errno, or panics.
#![no_std]
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "64-bit Linux: an address, a descriptor and a system call's word are one and the same register"
)]

#[cfg(test)]
extern crate std;

pub mod arena;
pub mod line;
#[cfg(target_arch = "x86_64")]
pub mod loader;
pub mod process;
pub mod unpaged;

/// Defines the panic handler of a shipped agent, which has no std: it aborts, because the state of
/// the agent is unknown then. In other profiles std provides the handler.
#[macro_export]
macro_rules! abort_on_panic {
    () => {
        #[cfg(all(panic = "abort", not(test)))]
        #[panic_handler]
        fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
            // SAFETY: `abort` takes no arguments and ends the process.
            unsafe { libc::abort() }
        }
    };
}
