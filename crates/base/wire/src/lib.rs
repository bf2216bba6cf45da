//! Records shared between the supervisor and the code that it injects into a program.
//!
//! Each run has one memory-mapped [`Session`]. The supervisor creates it as a memfd and writes the
//! [`Config`]. Each injected process opens it by the path in [`SESSION_VARIABLE`], calls
//! [`Session::check`], claims a [`ProcessSlot`], and from then on only increments that slot's
//! counters. No record is moved or freed, so both sides read without locks.
//!
//! ```text
//! Session  magic | build | Config | attention | claimed | slot 0 | slot 1 | ... | slot 1023
//! ```
//! | module | content |
//! |---|---|
//! | `session` | the record of one run: configuration and slots |
//! | `slot` | the state and counters of one injected process |
//! | `page_kind`, `mixture` | page kinds by name: one kind, or a mosaic |
//! | `mosaic` | which chunks of a mosaic have larger pages |
//! | `placement_reason` | why memory is outside the region or on other pages |
//! | `span` | an address range and its kind in one atomic word |
//! | `sites` | allocation sites: record and mailboxes of the site recorder |
//! | `trace` | the record of the tracing plugin |
//! | `isolation` | a program's requests for cache lines of its own |
//! | `remedy` | the form of messages: cause, then remedy; I/O errors in words |
//! | `process_name` | the name of a process |
//! | `guard` | the record of `run --guard`: settings, counters, findings |
//! | `paging` | the record of `run --resident`: settings, counters |
//! | `page_exchange` | pages between a paged process and the command, which stores them on a server |
#![no_std]

pub mod guard;
pub mod isolation;
mod mixture;
pub mod mosaic;
pub mod page_exchange;
mod page_kind;
pub mod paging;
mod placement_reason;
mod process_name;
mod remedy;
mod session;
pub mod sites;
mod slot;
pub mod span;
pub mod trace;

pub use mixture::{Mixture, UnknownMixture};
pub use page_kind::{PageKind, UnknownPageKind};
pub use placement_reason::PlacementReason;
pub use process_name::ProcessName;
pub use remedy::{Cause, Remedy};
pub use session::{BUILD, Config, MAGIC, Mismatch, NAME_BYTES, SESSION_VARIABLE, SLOTS, Session};
pub use slot::{DormancyReason, ProcessPhase, ProcessSlot};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
