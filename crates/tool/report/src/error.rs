//! Errors of reports: reading a file, writing one, drawing a page; and an error with its causes in
//! one line.

use std::path::PathBuf;

/// An error and its causes, outermost first: `cannot write report.json: No space left on device`. A
/// cause that the words before it contain is left out.
#[must_use]
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |words, cause| {
        if words.contains(&cause) { words } else { format!("{words}: {cause}") }
    })
}

/// Why a report could not be read or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file is no JSON object.
    #[error("{} is not JSON ({source}): give a file that `fieldstone profile --format json`, `fieldstone sharing --format json` or `fieldstone run --stats` wrote", path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The file is JSON without a known schema.
    #[error("{} has no schema of Fieldstone: give a file that `fieldstone profile --format json`, `fieldstone sharing --format json` or `fieldstone run --stats` wrote", path.display())]
    NoSchema {
        /// The file.
        path: PathBuf,
    },
    /// The file is of another version.
    #[error("{} has the schema {found}; this version reads fieldstone-profile/1, fieldstone-run/1, fieldstone-collapse/1 and fieldstone-sharing/1: open it with the version that wrote it, or measure again", path.display())]
    OtherSchema {
        /// The file.
        path: PathBuf,
        /// Its schema string.
        found: String,
    },
    /// The schema is known, but the contents do not fit it.
    #[error("{} has the schema {schema}, but does not fit it ({source}): it was truncated or edited; measure again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its schema string.
        schema: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A profile was needed, and the file holds another report.
    #[error("{} holds no profile: give a file that `fieldstone profile --format json` wrote", path.display())]
    NotProfile {
        /// The file.
        path: PathBuf,
    },
    /// A value could not be written as JSON.
    #[error("cannot write the measurements as JSON: {source}")]
    Encode {
        /// Why.
        source: serde_json::Error,
    },
    /// The page could not be filled.
    #[error("cannot make the HTML page: {source}")]
    Page {
        /// Why.
        source: minijinja::Error,
    },
    /// A plot could not be drawn.
    #[error("cannot draw the plot of {plot}: {reason}")]
    Plot {
        /// Which one.
        plot: String,
        /// Why.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_reported_once() {
        let source = || std::io::Error::other("no space");
        let error = Error::Write { path: "a.json".into(), source: source() };
        assert_eq!(with_causes(&error), "cannot write a.json: no space");

        #[derive(Debug, thiserror::Error)]
        #[error("not saved")]
        struct Outer(#[source] Error);
        let outer = Outer(Error::Read { path: "b.json".into(), source: source() });
        assert_eq!(with_causes(&outer), "not saved: cannot read b.json: no space");
    }
}
