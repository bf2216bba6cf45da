//! The graph of OO7, a benchmark of object stores, with several kinds of pointers.
//!
//! ```text
//! complex assembly ─→ 3 assemblies … 7 levels … base assembly ─→ 3 composite parts
//! composite part   ─→ root part ─→ 3 connections ─→ parts of the same composite part
//! ```
//! | module | content |
//! |---|---|
//! | `design` | which objects refer to which others |
//! | `graph` | the trait of a graph, and the traversals T1 and T6 |
//! | `objects` | the objects in memory, for each kind of pointer |
//! | `spaces` | the kinds of pointers |
//! | `store_objects` | the objects of a store |
//!
//! Source: Carey, DeWitt and Naughton, *The OO7 Benchmark*, SIGMOD 1993. The graph has no documents and no
//! manual: they are texts without pointers. The set of visited parts, which OO7 creates for each composite part
//! visit, is a bit for each part here, so that a traversal consists of reads of objects.

mod design;
mod graph;
mod objects;
mod spaces;
mod store_objects;

pub use design::{BASE_COMPONENTS, Design, FAN_OUT, LEVELS, OUTGOING, PartFields};
pub use graph::{AssemblyParts, Graph, Visits, visit_parts, visit_root_parts};
pub use objects::MemoryGraph;
pub use spaces::{Handles, NativePointers, OffsetPointers, ShortPointers, Space};
pub use store_objects::StoreGraph;
