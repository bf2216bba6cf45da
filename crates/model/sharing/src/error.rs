//! What can go wrong: one enum; each message names the place and the way out.

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Settings, a description or a file that cannot be taken as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting out of its range.
    #[error("setting {field} is {value}: {remedy}")]
    Setting {
        /// Which one.
        field: &'static str,
        /// What it was to be.
        value: u64,
        /// What would be right.
        remedy: &'static str,
    },
    /// A line of the ignore file that says nothing.
    #[error("line {line} of the ignore file, {text:?}, {problem}: {remedy}")]
    Ignore {
        /// Line in the file, from one.
        line: usize,
        /// The line.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
        /// What would be right.
        remedy: String,
    },
    /// A line of a file of rules that is none.
    #[error(
        "line {line} of the rules, {text:?}, {problem}: write an action (isolate, count, log, trace), a place (an address, or a global \
         variable with +OFFSET) and a number of bytes, for example `isolate stats+64 8`"
    )]
    Request {
        /// Line in the file, from one.
        line: usize,
        /// The line.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The description of an object contradicts itself.
    #[error("the layout of {object}: {member} {problem}: {remedy}")]
    Layout {
        /// The object's name.
        object: String,
        /// The member.
        member: String,
        /// What is wrong with it.
        problem: &'static str,
        /// What would be right.
        remedy: &'static str,
    },
}
