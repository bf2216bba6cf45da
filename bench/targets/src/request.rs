//! What a section is asked to measure.

use std::time::Duration;

use crate::goals::Goals;

/// The goals, and the user's options.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) goals: &'a Goals,
    /// The time limit of a cell.
    pub(crate) limit: Duration,
    /// A text that the name of a cell contains.
    pub(crate) only: &'a str,
    /// Runs of each program for `wrong_results` of `[sharing]`.
    pub(crate) runs: Option<u32>,
}
