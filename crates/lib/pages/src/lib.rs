//! The six virtual-memory primitives of Appel and Li, each by the best mechanism of the machine.
//!
//! | primitive | here |
//! |---|---|
//! | TRAP, PROT1, PROTN, UNPROT | [`Trapping`]: an access to a protected page calls a handler |
//! | DIRTY | [`Tracking`]: the pages written since the last call |
//! | TRAP on missing pages | [`Filling`]: a handler fills pages at their first access |
//! | MAP2 | [`Memory::shared`] and [`Memory::alias`]: the same pages at two addresses |
//! | guards | [`Memory::guard`] |
//! | guards as limit checks | [`resume_faults`]: a thread that faults at a known instruction continues elsewhere |
//!
//! | file | |
//! |---|---|
//! | `mechanism`, `choice` | the mechanisms by name; which one a region gets |
//! | `trapping`, `filling`, `tracking`, `memory`, `guard` | the types of the primitives |
//! | `controlled_range`, `protect`, `mprotect_fill` | what each mechanism does to a range: protect, unprotect, fill |
//! | `control` | the setup that a region needs, and its order |
//! | `region`, `registry` | a range with its handler; the search by address |
//! | `fault` | what a handler knows of a fault and may do |
//! | `signal`, `fault_workers`, `request_queue` | delivery of faults: by signals, or to threads of this crate |
//! | `resume` | instructions that may fault, and where their threads continue |
//! | `shared_userfaultfd`, `descriptor_keeper` | the descriptors of the process; the calls on them are in `userfault/fd` of `base/sys` |
//! | `dirty_log` | dirty pages where the kernel does not record them |
//! | `survey` | the mechanisms of this machine and their costs, for `fieldstone doctor` |
//! | `fork` | what a forked child gets |
//! | `threads` | starts the crate's threads; ends the process without them |
//! | `spin`, `signal_mask` | a lock for signal handlers; the signals blocked under it |
//! | `arch` | the kind of a faulting access; the processor's clock |
//! | `error` | errors, with the operation, its object and the remedy |
//!
//! The type of a region fixes the use of its faults, as the kernel does: userfaultfd's blocking
//! mode and its recording mode exclude each other.
//!
//! ```
//! use fieldstone_pages::{Memory, Tracking};
//!
//! let tracking = Tracking::new(Memory::anonymous(1 << 20)?)?;
//! // SAFETY: the byte is inside the memory, which nothing else uses.
//! unsafe { tracking.memory().as_ptr().add(5000).write(1) };
//! let dirty: Vec<_> = tracking.dirty()?.collect::<Result<_, _>>()?;
//! assert_eq!(dirty, [4096..8192]);
//! assert_eq!(tracking.dirty()?.count(), 0, "clean again");
//! # Ok::<(), fieldstone_pages::Error>(())
//! ```
//! A handler runs in a thread of this crate (`new`), where it may allocate and lock, and where
//! system calls that access the memory wait for it; or in a signal handler (`in_signal`), which is
//! faster. Mechanisms are tried best first. `mechanism` returns the one in use, `losses` what it
//! does not support, and `with` selects one. In a forked child all this memory is plain, and can be
//! controlled again.
//!
//! Limits: a thread that blocks `SIGSEGV` and `SIGBUS` is killed at a fault, except with
//! `userfaultfd-thread` and `pagemap-scan`. Writes that bypass the memory's addresses are not
//! detected: io_uring's to registered buffers, a device's to pinned pages, and writes to shared
//! memory through another mapping or write(2). The program may close all descriptors: a thread of
//! this crate has copies.
//!
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs*, ASPLOS 1991.

#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "arch/other.rs")]
mod arch;
mod choice;
mod control;
mod controlled_range;
mod descriptor_keeper;
#[doc(hidden)]
pub mod dirty_log;
mod error;
mod fault;
mod fault_workers;
mod filling;
mod fork;
mod guard;
mod mechanism;
mod memory;
mod mprotect_fill;
mod protect;
mod region;
mod registry;
mod request_queue;
mod resume;
mod shared_userfaultfd;
mod signal;
mod signal_mask;
mod spin;
mod survey;
mod threads;
mod tracking;
mod trapping;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use crate::{
    error::{Error, Result},
    fault::{Access, Fault, Outcome},
    filling::Filling,
    guard::GuardMechanism,
    mechanism::{Loss, Mechanism, Watch},
    memory::{Alias, Memory},
    resume::{ResumePoint, resume_faults},
    survey::{Limitation, Primitive, survey},
    tracking::{DirtyRanges, Tracking},
    trapping::Trapping,
};
