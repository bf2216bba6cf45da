//! The records between the supervisor and what it injects into a program.
//!
//! One shared, memory-mapped [`Session`] belongs to each run. The supervisor creates it (a memfd) and writes the
//! [`Config`]; every injected process opens it by the path in [`SESSION_VARIABLE`], checks [`Session::check`], claims a
//! [`ProcessSlot`] and from then on only adds to the slot's counters. Nothing is ever moved or freed, so both sides
//! read without locks.
//!
//! ```text
//! Session  magic | layout | build | Config | claimed | slot 0 | slot 1 | ... | slot 1023
//! ```
#![no_std]

pub mod isolated;
mod mixture;
pub mod mosaic;
mod outside;
mod page_kind;
mod session;
pub mod sites;
mod slot;
pub mod span;
pub mod trace;

pub use mixture::{Mixture, UnknownMixture};
pub use outside::Outside;
pub use page_kind::{PageKind, UnknownPageKind};
pub use session::{BUILD, Config, MAGIC, Mismatch, NAME_BYTES, SESSION_VARIABLE, SLOTS, Session};
pub use slot::{Dormant, Phase, ProcessSlot};
