//! Errors of reports: reading a file, writing one, drawing a page; and an error with its causes in
//! one message.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use fieldstone_wire::{Cause, Remedy};

use crate::shell;

/// An error and its causes, outermost first: `cannot write report.json: No space left on device`. A
/// cause that the words before it contain is left out. The innermost remedy is the second line.
#[must_use]
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let message = |error: &(dyn std::error::Error + 'static)| match error.downcast_ref::<io::Error>() {
        Some(error) => Cause(error).to_string(),
        None => error.to_string(),
    };
    let messages: Vec<String> = std::iter::successors(Some(error), |error| error.source()).map(message).collect();
    let (mut words, mut last_remedy) = (String::new(), Remedy(None));
    for message in &messages {
        let (cause, remedy) = Remedy::split(message);
        if words.is_empty() {
            words.push_str(cause);
        } else if !words.contains(cause) {
            words += &format!(": {cause}");
        }
        if remedy.0.is_some() {
            last_remedy = remedy;
        }
    }
    format!("{words}{last_remedy}")
}

/// Why a file cannot be read, and the remedy.
fn read_failure(path: &Path, cause: &io::Error) -> String {
    let directory = directory_of(path);
    match (cause.kind(), missing_directory(directory)) {
        (ErrorKind::NotFound, Some(missing)) => {
            with_remedy(format!("there is no directory {}", missing.display()), list(directory_of(missing)))
        }
        (ErrorKind::NotFound, None) => with_remedy("there is no such file".to_owned(), list(directory)),
        (ErrorKind::PermissionDenied, _) => with_remedy(
            "permission denied".to_owned(),
            "the same command as the owner of the file, or with sudo".into(),
        ),
        (ErrorKind::IsADirectory, _) => with_remedy("it is a directory".to_owned(), list(path)),
        _ => Cause(cause).to_string(),
    }
}

/// Why a file cannot be written, and the remedy.
fn write_failure(path: &Path, cause: &io::Error) -> String {
    let directory = directory_of(path);
    match (cause.kind(), missing_directory(directory)) {
        (ErrorKind::NotFound, Some(missing)) => with_remedy(
            format!("there is no directory {}", missing.display()),
            format!("mkdir -p {}", shell::quote(&directory.to_string_lossy())),
        ),
        (ErrorKind::NotFound, None) => with_remedy(format!("{} takes no new files", directory.display()), writable()),
        (ErrorKind::PermissionDenied, _) => with_remedy("permission denied".to_owned(), writable()),
        (ErrorKind::ReadOnlyFilesystem, _) => {
            with_remedy(format!("the file system of {} is read-only", directory.display()), writable())
        }
        (ErrorKind::StorageFull, _) => with_remedy(Cause(cause).to_string(), writable()),
        (ErrorKind::IsADirectory, _) => with_remedy(
            "it is a directory".to_owned(),
            format!("a file in it, such as {}", path.join("report.json").display()),
        ),
        _ => Cause(cause).to_string(),
    }
}

fn writable() -> String {
    "a file in a directory that this user may write, such as /tmp".to_owned()
}

fn with_remedy(cause: String, remedy: String) -> String {
    cause + &Remedy(Some(remedy)).to_string()
}

fn list(directory: &Path) -> String {
    format!("ls {}", shell::quote(&directory.to_string_lossy()))
}

/// The directory that holds `path`.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The first directory on the way to `directory` that does not exist.
fn missing_directory(directory: &Path) -> Option<&Path> {
    directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).last()
}

/// The files that a report can be made of.
const FILES: Remedy<&str> = Remedy(Some(
    "a file of `fieldstone profile --json FILE`, `fieldstone sharing --json FILE` or `fieldstone run --stats FILE`",
));

/// Why a report could not be read or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read {}: {}", path.display(), read_failure(path, cause))]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The file could not be written.
    #[error("cannot write {}: {}", path.display(), write_failure(path, cause))]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The file ends before its JSON does.
    #[error("cannot read {}: it is incomplete: it ends at byte {bytes}{}", path.display(), Remedy(Some("run the command that wrote it again")))]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        bytes: usize,
    },
    /// The file is no JSON object.
    #[error("cannot read {}: it is not JSON: {source}{FILES}", path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The file is JSON without a known schema.
    #[error("cannot read {}: it has no schema of Fieldstone{FILES}", path.display())]
    NoSchema {
        /// The file.
        path: PathBuf,
    },
    /// The file is of another version.
    #[error("cannot read {}: it has the schema {found}; this version reads fieldstone-profile/1, fieldstone-run/1, fieldstone-collapse/1, fieldstone-sharing/1 and fieldstone-repair/1{}", path.display(), Remedy(Some("the version of fieldstone that wrote it, or measure again")))]
    OtherSchema {
        /// The file.
        path: PathBuf,
        /// Its schema string.
        found: String,
    },
    /// The schema is known, but the contents do not fit it.
    #[error("cannot read {}: it does not fit its schema {schema}: {source}{}", path.display(), Remedy(Some("measure again: the file was edited")))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its schema string.
        schema: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A profile was needed, and the file holds another report.
    #[error("cannot compare {}: it holds no profile{}", path.display(), Remedy(Some("a file of `fieldstone profile --json FILE -- PROGRAM`")))]
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
    fn each_cause_is_reported_once_and_the_remedy_last() {
        let cause = || io::Error::other("no space");
        let error = Error::Write { path: "a.json".into(), cause: cause() };
        assert_eq!(with_causes(&error), "cannot write a.json: no space");

        #[derive(Debug, thiserror::Error)]
        #[error("not saved\ntry: later")]
        struct Outer(#[source] Error);
        let outer = Outer(Error::Read { path: "b.json".into(), cause: cause() });
        assert_eq!(with_causes(&outer), "not saved: cannot read b.json: no space\ntry: later");
    }

    #[test]
    fn a_cause_has_no_error_number() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot start")]
        struct Start(#[source] io::Error);
        assert_eq!(with_causes(&Start(io::Error::from_raw_os_error(2))), "cannot start: No such file or directory");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let path = folder.path().join("no dir/deep/a.json");
        let missing = || io::Error::from(ErrorKind::NotFound);
        let write = Error::Write { path: path.clone(), cause: missing() }.to_string();
        let read = Error::Read { path: path.clone(), cause: missing() }.to_string();
        assert_eq!(
            write,
            format!(
                "cannot write {}: there is no directory {at}/no dir\ntry: mkdir -p '{at}/no dir/deep'",
                path.display()
            )
        );
        assert_eq!(read, format!("cannot read {}: there is no directory {at}/no dir\ntry: ls {at}", path.display()));
        let virtual_file = Error::Write { path: "/proc/page.html".into(), cause: missing() }.to_string();
        assert!(virtual_file.starts_with("cannot write /proc/page.html: /proc takes no new files\ntry: "));
        let here = Error::Read { path: "no-such-file".into(), cause: missing() }.to_string();
        assert_eq!(here, "cannot read no-such-file: there is no such file\ntry: ls .");
    }
}
