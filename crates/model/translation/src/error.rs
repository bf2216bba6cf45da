//! What can go wrong: one enum; each message names the place and the way out.

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// A machine, a configuration or a measurement that the models cannot take.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not TOML, or not of the shape of a machine.
    #[error("line {line} of the machine's description: {problem}: start from what `fieldstone tlb NAME` prints")]
    Text {
        /// Line in the text, from one.
        line: usize,
        /// What the parser says.
        problem: String,
    },
    /// A machine that could not be built.
    #[error("machine {machine}: {field} {problem}: {remedy}")]
    Machine {
        /// Its name.
        machine: String,
        /// The field, as in the text: `data[1].arrays[0].ways`.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What would be right.
        remedy: String,
    },
    /// A configuration that the machine has no TLB for, or that means nothing.
    #[error("configuration {configuration}: {problem}: {remedy}")]
    Configuration {
        /// Its name.
        configuration: String,
        /// What is wrong.
        problem: String,
        /// What would be right.
        remedy: String,
    },
    /// A segment register that was to go where it cannot.
    #[error("LIMIT {limit:#x} is out of place for a segment that is {base:#x} to {old:#x}: {remedy}")]
    Segment {
        /// BASE.
        base: u64,
        /// LIMIT as it was.
        old: u64,
        /// LIMIT as it was to be.
        limit: u64,
        /// What would be right.
        remedy: &'static str,
    },
    /// Measurements that no line can be drawn through.
    #[error("{what}: {problem}: {remedy}")]
    Measurement {
        /// Which measurement.
        what: &'static str,
        /// What is wrong.
        problem: String,
        /// What would be right.
        remedy: &'static str,
    },
}
