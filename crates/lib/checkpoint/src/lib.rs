//! Checkpoints: the memory of a program as of one instant, saved while the program runs.
//!
//! ```text
//! begin ─→ copies rounds of written pages while the program writes, until few are left
//!      ─→ safe point: the program's writers wait ─→ copies the rest ─→ writers go on
//!      ─→ writes the rest and the manifest; the save counts from then on
//! ```
//! | file | |
//! |---|---|
//! | `checkpointer` | the memory that is saved, and what changed since the last save |
//! | `save` | a save that runs, and its report |
//! | `rounds` | copies written pages, in rounds |
//! | `stop` | the instant: copies what is left while writers wait |
//! | `copy_before_write` | the instant and the copies where writers do not wait, or write too fast |
//! | `output` | the part of a save that is written |
//! | `packing` | how the contents of pages are stored |
//! | `page_hashes` | hashes of the pages of the last save |
//! | `page_set` | a set of pages |
//! | `memory_words` | reads memory that other threads write |
//! | `format` | the bytes of a save |
//! | `sink`, `file`, `directory`, `objects` | where saves go |
//! | `series`, `merge` | numbered saves that continue each other, and their merging |
//! | `saved`, `restore` | a save that was read, and its memory |
//! | `error` | failed operations |
//!
//! Source: Li, Naughton and Plank, *Real-Time, Concurrent Checkpoint for Parallel Programs* (1990), as
//! described by Appel and Li, *Virtual Memory Primitives for User Programs*, ASPLOS 1991, "Concurrent
//! checkpointing".
//!
//! Limits: 64-bit Linux. Writes that bypass the memory's addresses are not saved: see `fieldstone_pages`.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "64-bit Linux: a number of pages of a memory fits into all of these; a rate is an estimate"
)]

mod checkpointer;
mod copy_before_write;
mod directory;
mod error;
mod file;
mod format;
mod memory_words;
mod merge;
#[cfg(feature = "opendal")]
mod objects;
mod output;
mod packing;
mod page_hashes;
mod page_set;
mod restore;
mod rounds;
mod save;
mod saved;
mod series;
mod sink;
mod stop;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "opendal")]
pub use crate::objects::Objects;
pub use crate::{
    checkpointer::{Checkpointer, CheckpointerBuilder, Compression},
    directory::Directory,
    error::{Error, Result},
    file::File,
    save::{Report, Save},
    saved::Saved,
    sink::{Sink, SinkWriter},
};
