//! Methods of sampling.

use std::fmt;

use serde::Serialize;

/// A method of sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SamplingMethod {
    /// The kernel's perf events.
    Perf,
    /// Stopping each thread briefly by ptrace.
    Ptrace,
}

impl fmt::Display for SamplingMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Perf => "perf events",
            Self::Ptrace => "ptrace",
        })
    }
}
