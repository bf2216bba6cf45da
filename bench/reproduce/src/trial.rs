//! The task of a sample's process.

use crate::layout::Layout;

/// The input of [`crate::experiment::Measure`].
#[derive(Clone, Debug)]
pub struct Trial {
    /// The id of the cell.
    pub cell: String,
    /// The layout of this process's memory and code.
    pub layout: Layout,
    /// Whether rounds are fewer and shorter.
    pub quick: bool,
    /// Bytes of memory that may be in use at once.
    pub memory_bytes: u64,
    /// The task.
    pub task: Task,
}

/// What a process does with the kernels of its cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Times all of them alternately.
    Time,
    /// Calls one of them and prints nothing, for a tool that counts from outside.
    Call {
        /// The row of the kernel.
        row: String,
        /// Number of calls.
        calls: u64,
    },
}
