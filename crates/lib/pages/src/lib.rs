//! The six virtual-memory primitives of Appel and Li, each by the best mechanism that this machine has.
//!
//! | primitive | here |
//! |---|---|
//! | TRAP, PROT1, PROTN, UNPROT | [`Trapping`]: protected pages call a handler |
//! | DIRTY | [`Tracking`]: which pages were written since the last look |
//! | TRAP on what is not there | [`Filling`]: pages come when they are touched; may track writes too |
//! | MAP2 | [`Memory::shared`] and [`Memory::alias`]: the same pages at two addresses |
//! | guards | [`Memory::guard`] |
//!
//! What a region's faults are for is fixed by its type, since the kernel fixes it: userfaultfd's waiting and its noting
//! exclude each other.
//!
//! ```
//! use fieldstone_pages::{Memory, Tracking};
//!
//! let tracking = Tracking::new(Memory::anonymous(1 << 20)?)?;
//! // SAFETY: the byte lies in the memory, which nothing else uses.
//! unsafe { tracking.memory().as_ptr().add(5000).write(1) };
//! let dirty: Vec<_> = tracking.dirty()?.collect::<Result<_, _>>()?;
//! assert_eq!(dirty, [4096..8192]);
//! assert_eq!(tracking.dirty()?.count(), 0, "clean again");
//! # Ok::<(), fieldstone_pages::Error>(())
//! ```
//! A handler runs in a thread of this crate (`new`), where it may do as it likes and system calls that touch the memory wait for it
//! too, or in a signal handler (`in_signal`), which is faster. Mechanisms are tried best first; `mechanism` returns the chosen one,
//! `losses` what it lacks, `with` asks for one. In a forked child all this memory is plain, and can be put under control again.
//!
//! Limits: a thread that blocks `SIGSEGV` and `SIGBUS` is killed at a fault, except with `userfaultfd-thread` and `pagemap-scan`.
//! Writes that do not go through the memory's addresses are not seen: io_uring's to registered buffers, a device's to pinned
//! pages, those to shared memory through another mapping or write(2). The program may close all descriptors: a thread of this
//! crate has copies.
//!
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs*, ASPLOS 1991.

mod choice;
mod custodian;
mod error;
mod fault;
mod filling;
mod fills;
mod fork;
mod guard;
#[doc(hidden)]
pub mod log;
mod mail;
mod memory;
mod region;
mod registry;
mod serve;
mod service;
mod signal;
mod spin;
mod survey;
mod threads;
mod tracking;
mod trapping;

pub use crate::{
    error::{Error, Result},
    fault::{Access, Fault, Outcome},
    filling::Filling,
    guard::GuardMechanism,
    memory::{Alias, Memory},
    region::{Loss, Mechanism, Watch},
    survey::{Lost, Primitive, survey},
    tracking::{Dirty, Tracking},
    trapping::Trapping,
};
