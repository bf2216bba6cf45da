//! Stacks made of blocks: a stack that goes on elsewhere where it comes to the end of what it lies in, so that no stack needs a large
//! contiguous range, and each holds only what it uses.
//!
//! | | |
//! |---|---|
//! | [`grow`] | recursion in Rust that is bounded by memory alone |
//! | [`Context`], [`Parts`] | a stack for a coroutine; what a stack consists of |
//! | `BlockStack` | a stack for coroutines of the crate corosensei (feature `corosensei`) |
//! | `segment`, `arena` | what a stack lies in, and where that comes from: a pool of 32 KiB blocks |
//! | `morestack`, `more` | how a call goes on elsewhere, and where |
//! | `dynamic` | alloca |
//! | `thread`, `limit` | what each thread has, and its end |
//!
//! ```
//! use fieldstone_stacks::grow;
//!
//! fn depth(n: u64) -> u64 {
//!     grow(|| if n == 0 { 0 } else { 1 + depth(n - 1) })
//! }
//! assert_eq!(depth(1_000_000), 1_000_000);
//! ```
//!
//! Source: Zagieboylo, *Evaluating the Performance Implications of Physical Addressing*, "Dealing with the stack"; Zagieboylo, Suh and
//! Myers, *The Cost of Software-Based Memory Management Without Virtual Memory*, section 3. x86-64 Linux with glibc.
//! C and C++ have the same by `fieldstone-cc` (`runtime`, `driver`).

#![cfg_attr(not(feature = "std"), no_std)]
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

mod arena;
mod context;
#[cfg(feature = "corosensei")]
mod coroutine;
mod dynamic;
#[cfg(feature = "std")]
mod grow;
mod limit;
mod more;
mod morestack;
mod segment;
mod thread;

pub use context::{Context, Parts};
#[cfg(feature = "corosensei")]
pub use coroutine::{BlockStack, Switch};
#[doc(hidden)]
pub use dynamic::allocate as allocate_for_frame;
#[cfg(feature = "std")]
pub use grow::{RED_ZONE_BYTES, grow, grow_with, remaining};
#[doc(hidden)]
pub use limit::give_up as no_memory;
pub use limit::{limit_bytes, set_limit_bytes};
#[doc(hidden)]
pub use thread::LOST as LOST_GUARD;
pub use thread::{adopt, allocations, held_bytes, trim};
