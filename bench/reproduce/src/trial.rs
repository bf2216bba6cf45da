//! One sample: the task of a child process, and the layout that it drew.

use crate::layout::Layout;

/// What a cell's `measure` is given.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The cell.
    pub cell: String,
    /// What this process's memory and code look like.
    pub layout: Layout,
    /// Fewer and shorter rounds.
    pub quick: bool,
    /// Memory that may be used at once.
    pub memory_bytes: u64,
    /// What is to be done.
    pub task: Task,
}

/// What a child does with the kernels of its cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Times them alternately.
    Time,
    /// Calls one a number of times and prints nothing: for a tool that counts from outside.
    Call {
        /// The kernel's row.
        row: String,
        /// How often.
        calls: u64,
    },
}
