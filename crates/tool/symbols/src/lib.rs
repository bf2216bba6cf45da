//! Names for a program's code and memory: functions and source lines, variables, heap blocks and
//! types.
//!
//! `names` reads the ELF symbols and debug information of files: code address → names.
//!
//! | file | what it answers |
//! |---|---|
//! | `names` | which function, file and line has a code address? |
//! | `names/symbol_file` | the same for one ELF file |
//! | `names/mangled` | what is the source name of a C++ or Rust symbol? |
//! | `names/wrapper` | which frame of a stack is the allocation site? |
//! | `names/remedies` | how do imprecise names become precise? |
//!
//! `objects` reads a running process: memory address → object.
//!
//! | file | what it answers |
//! |---|---|
//! | `objects` | which variable, heap block, stack or mapping has an address? |
//! | `objects/heap` | which block of malloc has an address? |
//! | `objects/globals` | which variable with a fixed address is there? |
//! | `objects/image` | what do the tables of one ELF file contain? |
//! | `objects/modules`, `objects/maps` | which loaded file, which mapping has an address? |
//! | `objects/threads` | whose stack or thread-local memory is it? |
//! | `objects/type_inference` | which type has a heap block, by the pointers to it? |
//! | `objects/scope` | which variables are in scope at an instruction? |
//! | `objects/location`, `objects/unwind` | where is such a variable; where is its frame? |
//! | `objects/layout`, `objects/alignment` | which members and elements, which alignment has a type? |
//! | `objects/dwarf` | where are the entries and attributes of debug information? (`layout` interprets types) |
//! | `objects/words` | which 64-bit words are at an address? |
//! | `objects/address_info` | how is the answer described? |
//! | `error` | why can a process not be read? |

pub mod error;
pub mod names;
pub mod objects;

pub use error::{Error, Result};
pub use names::{CodeLocation, FrameName, NameSource, Symbolizer, UNATTRIBUTED, remedies, site_frames};
