//! Byte-granular remapping of a running process, from outside: bytes with false sharing get cache
//! lines of their own, and the program keeps using their old addresses.
//!
//! ```text
//!   program                                  repairer
//!   add [P + 8], 1  ──── P is missing ─────> userfaultfd: thread and page; ptrace: registers and instruction
//!        |                                     |
//!        |        <── continues in a rewritelet ┘   add [P + 8 + distance], 1
//!   loop head: jmp clone <── patched once ──── the loop around it, cloned: it does not fault again
//! ```
//! | layer | module | |
//! |---|---|---|
//! | 4 | `process` | the repair: pages moved and restored, accesses redirected, children, release |
//! | 3 | `children`, `record` | userfaultfds of forked children; the state kept in the process |
//! | 2 | `page_table` | moved pages, their copies and traps; `page_table/checks`: which pages must not move |
//! | 2 | `code_cache` | clones of loops, rewritelets, probes; threads and signal frames moved out of them |
//! | 1 | `tracer` | threads stopped and resumed, injected system calls |
//! | 0 | `space`, `event`, `error` | free addresses, events, errors |
//!
//! A module uses lower layers only; `code_cache` also uses the data of `page_table::moved`.
//!
//! Invariants: no library is loaded into the program, and its signal handlers do not change. A
//! kernel access to a moved page, as by read(2) or a futex, waits in the kernel until the page is
//! restored. So does an instruction that cannot be redirected.
//!
//! Cost: a redirect by a rewritelet takes some 30 µs, since the thread is stopped. A clone costs
//! its checks only.
//!
//! Source: Taylor, *Cachekata* (seed 002), chapter 5. There a hypervisor revokes the page; here
//! userfaultfd does. There every access faults; here loops are cloned.
#![cfg(target_arch = "x86_64")]

mod children;
mod code_cache;
pub mod error;
mod event;
mod page_table;
mod process;
mod record;
pub mod space;
mod tracer;

pub use error::{Error, Result};
pub use event::{RemapEvent, RestoreReason, Route, WatchedAccess};
pub use page_table::moved::{MovedPage, PageRequest, ProgramView, page_with};
pub use process::Process;
pub use tracer::status::{check_untraced, repaired_by};
