//! The guard agent: guards heap objects of an unmodified program, and reports accesses past their
//! end, before their start and after their free.
//!
//! The loader loads it by `LD_PRELOAD`; the `fieldstone` command starts the program, names the
//! stacks of findings and prints them.
//!
//! ```text
//! program ── malloc ──→ entries ── not due ───────────────────→ next allocator (a jump)
//!                          └────── due ──→ calls ─→ sites, budget: guard it?
//!                                            └────→ unwind ─→ Slots (crates/lib/guard)
//! program ── access ──→ guard page ── SIGSEGV ──→ faults ─→ Slots::explain ─→ report ─→ mailbox
//! ```
//! | file | purpose |
//! |---|---|
//! | `entries`, `operators` | the malloc family and C++'s operators: the fast path |
//! | `calls` | their slow paths |
//! | `next`, `foreign` | the program's allocator, and blocks that are not its own |
//! | `thread` | each thread's cache of sites |
//! | `sites`, `budget` | which allocations are guarded, and how much time that may take |
//! | `FIRST_OF_SITE` in `tool/heap-errors` | how many first objects of a site are guarded |
//! | `unwind`, `modules`, `probe`, `heap` | stacks of the program |
//! | `private_stack` | stacks of the agent, for all that takes more than a few words |
//! | `range` | the guarded objects |
//! | `faults`, `dispositions` | SIGSEGV and SIGBUS, the agent's and the program's |
//! | `masks` | no thread blocks SIGSEGV |
//! | `buffers` | system calls that read or write guarded objects |
//! | `loading` | libraries that the program loads later |
//! | `report`, `print` | findings |
//! | `ending` | the end of the process waits for findings |
//! | `start`, `fork` | the life of the process |
//! | `raw` | system calls |
//!
//! Source: GWP-ASan (Serebryany et al., ICSE 2024): sampled objects beside guard pages. New here are
//! the choice of objects by allocation site and guards without mappings, so that a process can have
//! hundreds of thousands.
//!
//! Invariants: the agent runs inside another program. It allocates nothing by the program's
//! allocator, changes no errno, waits for no lock without a bound, and calls no function of libc
//! that a program interposes. x86-64 only.
#![cfg(target_arch = "x86_64")]
#![no_std]
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "64-bit Linux: an address, a size and a word of the record are one and the same register"
)]

extern crate alloc;

// The shipped agent aborts on a panic and needs only libc. In other profiles std provides the panic
// handler.
#[cfg(any(test, not(panic = "abort")))]
extern crate std;

mod budget;
mod buffers;
mod calls;
mod dispositions;
mod ending;
mod entries;
mod faults;
mod foreign;
mod fork;
mod heap;
mod loading;
mod masks;
mod modules;
mod next;
mod operators;
mod print;
mod private_stack;
mod probe;
mod range;
mod raw;
mod report;
mod sites;
mod start;
mod thread;
mod unwind;

/// The allocator of the unwinder's lists.
#[cfg_attr(not(test), global_allocator)]
static HEAP: heap::Heap = heap::Heap::new();

/// The loader's arrays of constructors and destructors. A test binary does not run them.
mod hooks {
    #![allow(unsafe_code, reason = "places functions where the loader looks for them")]

    fieldstone_preload::abort_on_panic!();

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
    static START: unsafe extern "C" fn() = crate::start::construct;

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
    static FINISH: unsafe extern "C" fn() = crate::start::finish;
}
