//! The records between the supervisor and what it injects into a program.
#![no_std]

mod page_kind;

pub use page_kind::{PageKind, UnknownPageKind};
