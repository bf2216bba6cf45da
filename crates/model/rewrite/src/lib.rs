//! A rewriter for x86-64 code: it makes copies of instructions and loops whose memory accesses go
//! to moved bytes.
//!
//! A [`RemappedPage`] is inaccessible. The bytes of each [`RemapRule`] are in a view, the others in
//! the page's `home` copy. All distances are multiples of a line's size within ±2 GiB. So an access
//! is redirected by another displacement in the same instruction, and no register ever holds an
//! address that the program does not know.
//!
//! ```text
//!   ip, registers ─→ flow ─→ loops ─┬→ walk ──────────────→ addresses that the loop accesses
//!    (of a sample                   ├→ liveness ─┐
//!     or a fault)                   └────────────┴→ clone ─→ patch: the loop's head jumps to the clone
//!                      instruction ──────────────→ rewritelet: one access
//! ```
//!
//! | file | what it decides or does |
//! |---|---|
//! | `operand` | an instruction's memory operand; refuses instructions without exactly one |
//! | `error` | the list of all reasons for refusals, with remedies |
//! | `page`, `registers`, `memory` | rules, pages and their pieces; registers; memory that can be read |
//! | `effect` | the registers and flags that an instruction reads and writes |
//! | `flow` | control flow around an address; refuses undecodable or overlapping instructions |
//! | `loops` | the loops in a flow |
//! | `walk/` | addresses of a loop's accesses, for known registers |
//! | `counter` | the register or word that counts a loop's iterations |
//! | `liveness` | registers and flags that are live |
//! | `assembly` | code with labels; refuses targets beyond 2 GiB |
//! | `guard` | the check of an address; refuses without a free register |
//! | `slots` | pointers in the stack frame that are read for each access |
//! | `rewritelet` | code for one access; refuses one across a rule's end |
//! | `redirect`, `clone` | a copy of a loop with redirected accesses |
//! | `clone/checks` | the checks at its entries; refuses accesses outside rules |
//! | `patch` | the jump at a loop's head; refuses heads that have no space |
//! | `probe` | code that reads moved pages before the kernel protects memory |
//!
//! `tests/differential.rs` runs random loops, original and rewritten. `tests/random_code.rs`
//! decodes random bytes.
//!
//! Invariants: code that is not provably safe to rewrite is refused with a [`RefusalReason`]. The
//! caller ensures two conditions. No stack, thread control block or other memory that the processor
//! or the kernel accesses by itself is on a remapped page. The code does not change while its
//! copies are in use.
//!
//! Source: Taylor, *Cachekata* (seed 002), chapter 5. There a rewritelet changes the register that
//! holds the address and restores it afterwards. Here the displacement changes, so flags, faults
//! and `mov (%rax), %rax` need no special case.
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
pub use memory::{CachedMemory, MemoryImage, ReadableMemory};
pub use operand::Operand;
pub use page::{PagePiece, RemapRule, RemappedPage};
pub use patch::{HeadCopy, HeadPatch, PatchWrite, Pun};
pub use redirect::Redirect;
pub use registers::Registers;
pub use rewritelet::{AccessSite, Rewritelet, RewriteletForm};
pub use walk::{LoopAccess, Walk};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
