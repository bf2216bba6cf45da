//! Byte-granular remapping of a running process, from outside: bytes that fight for a cache line live on lines of their own, and the
//! program goes on looking for them where they were.
//!
//! ```text
//!   program                                   here
//!   add [P + 8], 1  ──── P is missing ──────> userfaultfd: which thread, which page
//!        |                                      which instruction, which address: its registers, by ptrace
//!        |         <── goes on in a rewritelet ─┘  add [P + 8 + distance], 1
//!   loop head: jmp clone <─── written once ──── the loop around it, cloned: from then on nobody is asked
//! ```
//! | file | |
//! |---|---|
//! | `process` | taking hold of a process: its threads, its memory, a userfaultfd of its own |
//! | `threads`, `held`, `tasks` | stopping one, stopping all, signals on their way, what it forks; what the kernel tells of them |
//! | `memory`, `space`, `code` | its memory from outside; free addresses in it; room for code |
//! | `page` | moving a page away, and its bytes to their views |
//! | `events` | what comes: accesses, memory that goes, the end |
//! | `redirect` | one access: by a rewritelet |
//! | `clones`, `heads` | the loop around it: by a clone |
//! | `ladders` | without the loop, as in the thesis' plain form |
//! | `protect` | memory that the program has protected |
//! | `leave` | threads led out of code of ours |
//! | `undo` | everything as it was |
//! | `home`, `left_calls` | where system calls are made in its name; those that a killed repairer was making |
//! | `births`, `forks`, `orphans` | children: their userfaultfds; those that we saw born, and those that nobody did |
//! | `ours`, `record` | all of ours in a process, and what is kept of it there for who comes after us |
//!
//! Nothing is loaded into the program and no handler of its signals is touched. The kernel's own accesses to a moved page (a read(2) into
//! it, a futex) wait in the kernel, and the page is put back: it is never seen half. So is a page that an instruction touches
//! which cannot be redirected.
//!
//! Source: Taylor, *Cachekata* (seed 002), chapter 5: there a hypervisor revokes the page, here userfaultfd; there every
//! access faults, here loops are led into their clones.

#[cfg(target_arch = "x86_64")]
mod births;
#[cfg(target_arch = "x86_64")]
mod clones;
#[cfg(target_arch = "x86_64")]
mod code;
pub mod error;
#[cfg(target_arch = "x86_64")]
mod events;
#[cfg(target_arch = "x86_64")]
mod forks;
#[cfg(target_arch = "x86_64")]
mod frames;
#[cfg(target_arch = "x86_64")]
mod futex;
#[cfg(target_arch = "x86_64")]
mod heads;
#[cfg(target_arch = "x86_64")]
mod held;
#[cfg(target_arch = "x86_64")]
mod home;
#[cfg(target_arch = "x86_64")]
mod ladders;
#[cfg(target_arch = "x86_64")]
mod leave;
#[cfg(target_arch = "x86_64")]
mod left_calls;
mod memory;
#[cfg(target_arch = "x86_64")]
mod orphans;
#[cfg(target_arch = "x86_64")]
mod ours;
#[cfg(target_arch = "x86_64")]
mod page;
#[cfg(target_arch = "x86_64")]
mod process;
#[cfg(target_arch = "x86_64")]
mod protect;
#[cfg(target_arch = "x86_64")]
mod record;
#[cfg(target_arch = "x86_64")]
mod redirect;
pub mod space;
#[cfg(target_arch = "x86_64")]
mod tasks;
#[cfg(target_arch = "x86_64")]
mod threads;
#[cfg(target_arch = "x86_64")]
mod undo;

pub use error::{Error, Result};
#[cfg(target_arch = "x86_64")]
pub use events::{RemapEvent, Route, Touch, Why};
pub use memory::Memory;
#[cfg(target_arch = "x86_64")]
pub use ours::AsSeen;
#[cfg(target_arch = "x86_64")]
pub use page::{Moved, Wanted, page_with};
#[cfg(target_arch = "x86_64")]
pub use process::Process;
#[cfg(target_arch = "x86_64")]
pub use tasks::repaired_by;
