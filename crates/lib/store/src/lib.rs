//! A persistent store in one file: typed tables, objects with pointers, snapshots, and commits that are
//! durable by one write.
//!
//! ```text
//! transaction ─→ copies of the pages that it changes ─→ changed lines ─→ log (durable) ─→ visible
//! log ─→ pages, by a thread, one half of the log at a time
//! snapshot ─→ tree ─→ newest frame of a page that is not newer than the snapshot
//! snapshot ─→ object ─→ page fault ─→ that frame, copied to a window ─→ pointers are followed by an addition
//! ```
//! | file | |
//! |---|---|
//! | `store` | an open store |
//! | `snapshot`, `transaction` | what is read, and what is changed |
//! | `table`, `data` | tables and their types |
//! | `catalog` | the names of the tables |
//! | `tree`, `node` | sorted entries, and a page of them |
//! | `tree/entries` | the entries between two keys, from either end |
//! | `tree/neighbours`, `node/balance` | moves entries of a full leaf to a neighbour |
//! | `node/search` | the search for a key in a node |
//! | `node/verify` | checks of a node of any bytes |
//! | `editor` | the pages of a transaction |
//! | `backup` | a snapshot as a new file |
//! | `compact` | makes the file smaller |
//! | `space` | which pages are in use |
//! | `extent` | large values |
//! | `child_mark` | whether this process is a forked child |
//! | `frames`, `readers` | the pages in memory, their versions, and the readers of each |
//! | `commit`, `log`, `lines` | how a commit gets into the log |
//! | `durable`, `aligned` | how the log becomes durable; buffers for direct writes |
//! | `flush` | how the log becomes empty |
//! | `recovery`, `header` | opening a file |
//! | `new_file` | making a file that has its name only once it is whole |
//! | `progress` | how far a recovery is |
//! | `shared` | what all users of an open store share |
//! | `storage` | the calls on the file |
//! | `lock` | locks a mutex |
//! | `store_file`, `log_records` | a file that is only read |
//! | `check`, `finding` | verifies a file; what it has found |
//! | `stat` | sizes and counts of a file |
//! | `raw`, `contents`, `walk` | all entries as bytes, by a walk that passes damage |
//! | `salvage` | pages to which unreadable branches have led |
//! | `page`, `page_set` | the unit of the file; sets and maps of its numbers |
//! | `fuzz` | corrects checks of changed bytes, for a fuzz target |
//! | `object/stored`, `object/layout` | types of objects; where their pointers are |
//! | `object/object_page`, `object/allocation` | a page of objects; slots for new ones |
//! | `object/types` | the trees of types, roots and pages of objects |
//! | `object/read`, `object/write` | objects of a snapshot and of a transaction |
//! | `object/pointers` | what a pointer of 4 bytes means in a snapshot or transaction |
//! | `object/window`, `object/changes` | the addresses at which objects appear; which pages have changed |
//! | `object/resident` | which pages of a window are in memory |
//! | `object/collection`, `object/marks`, `object/collect` | removes unreachable objects; what is reached; when |
//! | `object/check`, `object/lists` | verifies the objects of a file; what its trees name |
//! | `object/objects` | what an open store has for its objects |
//! | `error` | failed operations |
//!
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs*, ASPLOS 1991, "Persistent stores".
//!
//! Limits: 64-bit Linux, pages of 4 KiB, 256 GiB a store.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_lossless,
    reason = "64-bit Linux: an offset of a page fits into 16 bits, a size of memory into 64"
)]

mod aligned;
mod backup;
mod catalog;
mod check;
#[cfg(test)]
mod check_tests;
mod child_mark;
mod commit;
mod compact;
mod contents;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod damage_tests;
mod data;
mod durable;
mod editor;
mod error;
mod extent;
mod finding;
mod flush;
mod frames;
#[cfg(test)]
mod frames_tests;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(test)]
mod gate_tests;
mod header;
mod lines;
mod lock;
mod log;
#[cfg(test)]
mod log_model;
#[cfg(test)]
mod log_order;
mod log_records;
mod new_file;
mod node;
mod object;
mod page;
mod page_set;
mod progress;
mod raw;
mod readers;
mod recovery;
#[cfg(test)]
mod repair_tests;
mod salvage;
mod shared;
mod snapshot;
mod space;
mod stat;
mod storage;
mod store;
mod store_file;
mod table;
mod transaction;
mod tree;
mod walk;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The entries of a table are borrowed while they are read, so no change can be made meanwhile:
/// ```compile_fail,E0502
/// use fieldstone_store::{Result, Table, Transaction};
///
/// const NUMBERS: Table<u64, u64> = Table::new("numbers");
///
/// fn remove_some(tx: &mut Transaction) -> Result<()> {
///     let mut table = tx.table(NUMBERS)?;
///     for entry in table.range(1..5)? {
///         table.remove(&entry?.0)?;
///     }
///     Ok(())
/// }
/// ```
#[cfg(doctest)]
struct NoChangeWhileEntriesAreRead;

pub use crate::{
    check::{Checked, Scope, check},
    data::{Key, Value},
    error::{Error, ErrorKind, Result},
    finding::{Finding, Lost},
    object::{CollectReport, Field, LongPtr, Object, ObjectEdit, Ptr},
    progress::RecoveryProgress,
    raw::{RawItem, RawTable, RawTableWrite},
    snapshot::{Snapshot, TableRead},
    stat::{CommitBytes, Stat, TableStat, TypeStat},
    store::{Store, StoreBuilder},
    store_file::StoreFile,
    table::{Range, Table},
    transaction::{Savepoint, TableWrite, Transaction},
};
