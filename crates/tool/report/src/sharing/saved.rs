//! Reads a saved report on sharing, which [`crate::saved::save`] wrote.

use super::Sharing;
use crate::{Error, SavedFile};
use std::path::Path;

/// Reads the file at `path`. Fields that this version does not know are skipped.
///
/// # Errors
/// As [`SavedFile::load`]; [`Error::OtherSchema`] with the schema that was found, if it holds something
/// else.
pub fn load(path: &Path) -> Result<Sharing, Error> {
    let other = |found: &str| Err(Error::OtherSchema { path: path.to_owned(), found: found.to_owned() });
    match SavedFile::load(path)? {
        SavedFile::Sharing(sharing) => Ok(*sharing),
        SavedFile::Profile(_) => other(crate::Profile::SCHEMA),
        SavedFile::RunStats(_) => other(crate::RunStats::SCHEMA),
        SavedFile::Collapse(_) => other(crate::Collapse::SCHEMA),
        SavedFile::Repair(_) => other(crate::saved::REPAIR_SCHEMA),
        SavedFile::HeapErrors(_) => other(crate::HeapError::SCHEMA),
        SavedFile::GuardStats(_) => other(crate::GuardStats::SCHEMA),
        SavedFile::PagingStats(_) => other(crate::PagingStats::SCHEMA),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::fixture;

    fn load_text(text: &str) -> Result<Sharing, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved.json");
        std::fs::write(&path, text).unwrap();
        load(&path)
    }

    #[test]
    fn it_comes_back_as_it_was() {
        for sharing in [fixture::regression(), fixture::clean(), Sharing::default()] {
            let back = load_text(&crate::saved::to_json(&sharing).unwrap()).unwrap();
            assert!(back == sharing, "{back:#?}");
        }
    }

    #[test]
    fn fields_of_a_later_version_are_skipped_and_missing_ones_are_empty() {
        let mut value = serde_json::to_value(fixture::regression()).unwrap();
        value["added"] = 1.into();
        value["findings"][0]["added"] = serde_json::json!({"deep": [1]});
        value["findings"][0]["judged"]["line"]["added"] = 2.into();
        value["findings"][0]["places"][0]["kind"] = "register-window".into();
        for missing in ["threads", "unseen", "sampling", "ignored", "others", "machine", "pid"] {
            value.as_object_mut().unwrap().remove(missing);
        }
        for missing in ["code", "other_redesigns"] {
            value["findings"][1].as_object_mut().unwrap().remove(missing);
        }
        let read = load_text(&value.to_string()).unwrap();
        assert_eq!((read.threads.len(), read.unseen.len(), read.sampling.samples, read.ignored), (0, 0, 0, 0));
        assert_eq!(read.findings[0].places[0].kind, crate::sharing::MemoryKind::Unknown);
        assert_eq!((read.findings.len(), read.findings[1].code.len()), (3, 0));
    }

    #[test]
    fn each_wrong_file_has_its_own_error() {
        for (text, part) in [
            ("<html>", "is not JSON"),
            ("{}", "no schema of Fieldstone"),
            (r#"{"schema": "fieldstone-sharing/2"}"#, "has the schema fieldstone-sharing/2"),
            (r#"{"schema": "fieldstone-sharing/1"}"#, "missing field `program`"),
            (r#"{"schema": "fieldstone-sharing/1", "program": 3}"#, "does not fit"),
        ] {
            let error = load_text(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("saved.json"), "{text}: {error}");
        }
        let profile = crate::saved::to_json(&crate::fixture::profile()).unwrap();
        assert!(
            matches!(load_text(&profile), Err(Error::OtherSchema { found, .. }) if found == "fieldstone-profile/1")
        );
    }
}
