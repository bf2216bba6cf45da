//! Names for a program's code and memory: functions and source lines, variables, heap blocks and types.
//!
//! ```text
//! names      an address in the code → function, file, line; for allocation sites and samples
//! objects    an address in the memory → variable, block, type, member; from a running process
//! ```

pub mod error;
pub mod names;
pub mod objects;

pub use error::{Error, Result};
pub use names::{Frame, FrameName, Known, MAPPED, Symbols, frames_of, remedies};
