//! x86-64 code in, rewritten code out: bytes that have moved are reached where they are now.
//!
//! A [`RemappedPage`] is made inaccessible and its bytes live elsewhere, each [`RemapRule`]'s in a view of its own, the others at the page's
//! `home`. All distances are multiples of a line's size within ±2 GiB, so an access is redirected by another displacement
//! in the same instruction: no register ever holds an address that the program does not know.
//!
//! ```text
//!   ip, registers ─→ flow ─→ loops ─┬→ walk ──────────────→ which addresses the loop touches: for the detector
//!       (a sample,                  ├→ liveness ─┐
//!        a fault)                   └────────────┴→ clone ─→ patch: the loop's head leads to the clone
//!                      instruction ──────────────→ trampoline: one access, one rewritelet
//! ```
//!
//! | file | |
//! |---|---|
//! | `page`, `registers`, `memory` | the vocabulary: rules, pages and their pieces; a sample's registers; the program's memory |
//! | `error` | what is refused, why, and what to do instead |
//! | `operand`, `effect` | what an instruction touches; which registers and flags it reads and writes |
//! | `flow`, `loops` | control flow around an address by backwards-jump analysis; the loops in it |
//! | `walk/` | once around a loop with known registers: the addresses of its accesses |
//! | `counter` | what counts a loop's laps |
//! | `liveness` | registers and flags that are still needed |
//! | `assembly`, `guard` | code with labels at an address; the check that an address lies in a rule's bytes |
//! | `slots` | pointers in the stack frame that are read again for each access |
//! | `trampoline` | a rewritelet for one access: a guard for a rule, a ladder of them, or none |
//! | `clone` | a copy of a loop whose accesses are redirected, checked where it is entered |
//! | `patch` | the jump at a loop's head, and the copy of what it overwrites |
//! | `protect` | what is run before the kernel protects memory |
//!
//! **Sound before complete**: what cannot be proved safe is [`RefusalReason`] with a reason. Two things cannot be seen from here and
//! are the caller's to hold: that no stack, thread control block or other memory that the processor or the kernel reads by itself lies on a
//! remapped page, and that the code does not change while its copies are in use.
//!
//! Source: Taylor, *Cachekata* (seed 002), chapter 5. There a rewritelet changes the register that holds the address and
//! restores it afterwards; here the displacement changes, so that flags, faults and `mov (%rax), %rax` need no care.
#![forbid(unsafe_code)]

mod assembly;
pub mod clone;
pub mod counter;
pub mod effect;
pub mod error;
pub mod flow;
mod guard;
pub mod liveness;
pub mod loops;
pub mod memory;
pub mod operand;
pub mod page;
pub mod patch;
pub mod probe;
mod redirect;
pub mod registers;
pub mod rewritelet;
mod slots;
pub mod walk;

pub use clone::{ClonePlan, LoopClone};
pub use counter::LoopCounter;
pub use effect::InstructionEffect;
pub use error::{Error, RefusalReason, Result};
pub use flow::{BasicBlock, BlockExit, Flow, TakenJumps, WINDOW_BYTES};
pub use liveness::{LiveSet, Liveness};
pub use loops::{Loop, LoopExit};
pub use memory::{CachedMemory, Memory, MemoryImage};
pub use operand::Operand;
pub use page::{PagePiece, RemapRule, RemappedPage};
pub use patch::{HeadCopy, HeadPatch, PatchWrite, Pun};
pub use redirect::Redirect;
pub use registers::Registers;
pub use rewritelet::{AccessSite, Rewritelet, RewriteletForm};
pub use walk::{LoopAccess, Walk};
