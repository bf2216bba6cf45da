//! Errors of this crate: one enum, each variant with its place and its remedy.

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Invalid settings, descriptions or files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is out of its range.
    #[error("setting {field} is {value}: {remedy}")]
    Setting {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The remedy.
        remedy: &'static str,
    },
    /// A line of the ignore file is invalid.
    #[error("cannot read {place}: {text:?} {problem}\ntry: {remedy}")]
    Ignore {
        /// File and line, from 1: `known.txt:2`.
        place: String,
        /// The line.
        text: String,
        /// The problem.
        problem: &'static str,
        /// The remedy.
        remedy: String,
    },
    /// A line of a rules file is invalid.
    #[error(
        "cannot read {place}: {text:?} {problem}\ntry: isolate stats+64 8, or another action (count, log, trace), a place (an \
         address, or a global variable with +OFFSET) and a number of bytes"
    )]
    Request {
        /// File and line, from 1: `rules:2`.
        place: String,
        /// The line.
        text: String,
        /// The problem.
        problem: &'static str,
    },
    /// The description of an object is inconsistent.
    #[error("the layout of {object}: {member} {problem}: {remedy}")]
    Layout {
        /// Name of the object.
        object: String,
        /// The member.
        member: String,
        /// The problem.
        problem: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
}
