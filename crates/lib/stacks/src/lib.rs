//! Stacks made of blocks: a stack continues in another segment at the end of its own. No stack
//! needs a large contiguous range, and each holds only the memory it uses.
//!
//! | file | content |
//! |---|---|
//! | `grow` | recursion in Rust, bounded by memory alone |
//! | `context` | [`StackContext`], a coroutine's stack; [`StackRanges`], its used ranges |
//! | `coroutine` | a stack for the crate corosensei (feature `corosensei`) |
//! | `segment` | a contiguous part of a stack, linked with its neighbours; the size of a block, and how many a new segment has; headroom for code without checks |
//! | `arena` | the pool of blocks; takes new segments from it, and extends them |
//! | `morestack`, `placement` | the switch to another segment; when to reuse one |
//! | `dynamic` | memory for alloca that does not fit |
//! | `release` | frees segments and alloca memory |
//! | `registers` | which vector registers `__morestack` saves |
//! | `thread`, `limit` | the record of each thread; the report at its limit |
//! | `settings`, `auxv` | settings from the environment; values of the kernel |
//! | `message` | messages to stderr without allocation |
//! | `signals` | blocks signals |
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
//! Source: Zagieboylo, *Evaluating the Performance Implications of Physical Addressing*, "Dealing
//! with the stack"; Zagieboylo, Suh and Myers, *The Cost of Software-Based Memory Management
//! Without Virtual Memory*, section 3. Supports x86-64 Linux with glibc. `fieldstone-cc` compiles C
//! and C++ for the same stacks. It is the shell script `driver/fieldstone-cc`, in a folder beside
//! `src`; the folder `runtime` has the library that it links.

#![cfg_attr(not(feature = "std"), no_std)]
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

mod arena;
mod auxv;
mod context;
#[cfg(feature = "corosensei")]
mod coroutine;
mod dynamic;
#[cfg(feature = "std")]
mod grow;
mod limit;
mod message;
mod morestack;
mod placement;
mod registers;
mod release;
mod segment;
mod settings;
mod signals;
mod thread;

pub use context::{StackContext, StackRanges};
#[cfg(feature = "corosensei")]
pub use coroutine::{BlockStack, Switch};
#[doc(hidden)]
pub use dynamic::allocate as allocate_for_frame;
#[cfg(feature = "std")]
pub use grow::{RED_ZONE_BYTES, grow, grow_with, remaining};
#[doc(hidden)]
pub use limit::abort_without_memory;
pub use limit::{limit_bytes, set_limit_bytes};
#[doc(hidden)]
pub use thread::LOST as LOST_GUARD;
pub use thread::{adopt, allocations, held_bytes, trim};

/// Compiles the example of the README.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
