//! The crate's error type. Each message names the object, the cause and a remedy.

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An MMU, a configuration or a measurement that the models cannot use.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not TOML, or not a description of an MMU.
    #[error("line {line} of the processor description: {problem}; start from the output of `fieldstone tlb NAME`")]
    Text {
        /// The line in the text, from 1.
        line: usize,
        /// The parser's message.
        problem: String,
    },
    /// An MMU that is not consistent.
    #[error("processor {mmu}: {field} {problem}; {remedy}")]
    Mmu {
        /// Its name.
        mmu: String,
        /// The field as in the text, for example `data[1].arrays[0].ways`.
        field: String,
        /// The cause.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// A configuration that the MMU does not support, or with an invalid value.
    #[error("configuration {configuration}: {problem}; {remedy}")]
    Configuration {
        /// Its name.
        configuration: String,
        /// The cause.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// A LIMIT that the segment cannot have.
    #[error("cannot set LIMIT to {limit:#x} for a segment from {base:#x} to {old:#x}: {remedy}")]
    Segment {
        /// BASE.
        base: u64,
        /// The current LIMIT.
        old: u64,
        /// The requested LIMIT.
        limit: u64,
        /// The remedy.
        remedy: &'static str,
    },
    /// Measurements that determine no price.
    #[error("{what}: {problem}; {remedy}")]
    Measurement {
        /// The kind of measurement.
        what: &'static str,
        /// The cause.
        problem: String,
        /// The remedy.
        remedy: &'static str,
    },
}
