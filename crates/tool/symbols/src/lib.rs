//! Names for a program's code and memory: functions and source lines, variables, heap blocks and
//! types.
//!
//! ```text
//! names      address in code → function, file, line        from ELF symbols and debug information
//! objects    address in memory → variable, heap block, type, member     from a running process
//! ```

pub mod error;
pub mod names;
pub mod objects;

pub use error::{Error, Result};
pub use names::{CodeLocation, FrameName, NameSource, Symbolizer, UNATTRIBUTED, remedies, site_frames};
